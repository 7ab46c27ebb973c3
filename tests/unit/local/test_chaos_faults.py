"""The faults of a plan begin and end by the run's passes, and are written down."""

import contextlib
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll_operator.local.chaos import means
from atoll_operator.local.chaos.faults import Chaos
from atoll_operator.local.chaos.links import Links
from atoll_operator.local.chaos.plan import DrawnFault, FaultWord
from atoll_operator.local.folder.run_files import CHAOS_FILE, Files, read_lines

SECONDS_MAX = 60.0
CUT = DrawnFault(at=4.0, word=FaultWord.CUT, target="a-0", shard="shard-0", seconds=600.0)


class Storm:
    """A run of learner a-0 and shard 0; the test moves the clock and looks."""

    def __init__(self, out: Path, *faults: DrawnFault) -> None:
        self.said: list[str] = []
        self.killed: list[Any] = []
        endpoints = {"a-0": "", "shard-0": "127.0.0.1:7"}
        planned = [SimpleNamespace(whole=n, endpoint=each) for n, each in endpoints.items()]
        self.children = [SimpleNamespace(planned=each, process=None) for each in planned]
        self.links = Links(faults, ["127.0.0.1:7"])
        supervisor: Any = SimpleNamespace(meant=self.meant, kill=self.kill)
        files = Files(out, self.said.append)
        self.chaos = Chaos(waiting=[*faults], supervisor=supervisor, links=self.links, files=files)
        self.out = out

    def meant(self, name: str) -> list[Any]:
        return [each for each in self.children if each.planned.whole == name]

    def kill(self, child: Any) -> None:
        if child.process is not None:
            self.killed.append(child.planned.whole)
            child.process.kill()

    def at(self, now: float, *, all_train: bool = True) -> list[Any]:
        """One pass; the lines of chaos.jsonl after it."""
        self.chaos.advance(now, all_train=all_train)
        return read_lines(self.out / CHAOS_FILE)

    def line(self) -> Any:
        """The first line of chaos.jsonl, once it is there."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (lines := read_lines(self.out / CHAOS_FILE)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return lines[0]


@pytest.fixture
def sleeping() -> Iterator[Callable[[], Any]]:
    with contextlib.ExitStack() as stack:

        def start() -> Any:
            words = [sys.executable, "-c", "import time; time.sleep(600)"]
            process = stack.enter_context(subprocess.Popen(words))
            stack.callback(process.kill)
            return process

        yield start


def test_times_count_from_the_moment_when_all_train(tmp_path: Path) -> None:
    storm = Storm(tmp_path, CUT)
    link = storm.links.of("a-0", "shard-0")
    storm.at(100.0, all_train=False)
    assert storm.chaos.seconds_left(100.0) == math.inf
    storm.at(200.0)
    storm.at(201.0, all_train=False)  # that they do not any more changes nothing
    assert storm.chaos.seconds_left(201.0) == 3.0
    assert storm.chaos.seconds_left(300.0) == 0.0
    assert storm.at(203.9) == []
    assert link.faults == {}
    assert storm.at(204.0) == []
    assert link.faults == {FaultWord.CUT: 0.0}
    assert link.cut_port == 7  # of the process that has the shard
    assert storm.said == ["chaos: cut a-0 - shard-0, 600 s"]
    storm.chaos.end()


def test_a_fault_lasts_as_long_as_the_plan_says_however_long_a_pass_is(tmp_path: Path) -> None:
    storm = Storm(tmp_path, replace(CUT, at=0.0, seconds=0.2))
    storm.at(0.0)
    line = storm.line()
    assert storm.links.of("a-0", "shard-0").faults == {}
    assert line["target"] == ["a-0", "shard-0"]
    assert (line["fault"], line["planned"], line["seconds"]) == ("cut", 0.0, 0.2)
    assert line["began"] + 0.19 <= line["ended"] == line["time"]
    storm.chaos.end()
    assert len(storm.at(1.0)) == 1


def test_at_the_end_of_a_run_what_lasts_is_taken_back_and_nothing_begins(tmp_path: Path) -> None:
    storm = Storm(tmp_path, CUT, DrawnFault(at=5.0, word=FaultWord.KILL, target="a-0"))
    storm.at(0.0)
    storm.at(4.5)
    assert storm.links.of("a-0", "shard-0").faults
    storm.chaos.end()
    assert storm.links.of("a-0", "shard-0").faults == {}
    assert len(storm.at(100.0)) == 1
    assert storm.said[-1] == "chaos: the run is over before 1 of the faults"
    storm.chaos.end()
    assert len(storm.said) == 2


def test_a_fault_that_cannot_be_made_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    faults = [
        DrawnFault(at=0.0, word=FaultWord.KILL, target="a-0"),
        DrawnFault(at=0.0, word=FaultWord.PAUSE, target="shard-0", seconds=3.0),
        DrawnFault(at=0.0, word=FaultWord.LOSE_STORE, target="shard-0", seconds=3.0),
    ]
    lines = Storm(tmp_path, *faults).at(0.0)
    assert [each["not_made"] for each in lines] == [
        *("it did not run", "it did not run", "its folder was not there"),
    ]


def test_a_kill_waits_for_the_end_and_damage_comes_with_one(
    tmp_path: Path, sleeping: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [
        DrawnFault(at=0.0, word=FaultWord.KILL, target="a-0"),
        DrawnFault(at=0.0, word=FaultWord.TRUNCATE, target="shard-0"),
    ]
    storm = Storm(tmp_path, *faults)
    entry = tmp_path / "commits/0/log/1"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"0123")
    for child in storm.children:
        child.process = sleeping()
    assert len(storm.at(0.0)) == 2
    assert storm.killed == ["a-0", "shard-0"]
    assert entry.read_bytes() == b"01"
    assert {child.process.poll() for child in storm.children} == {-signal.SIGKILL}
    storm.children[1].process = None  # it waits for its next start
    storm.chaos.waiting.append(faults[1])
    assert "not_made" not in storm.at(1.0)[-1]
    assert entry.read_bytes() == b"0"


def test_what_cannot_be_taken_back_is_said(tmp_path: Path) -> None:
    storm = Storm(
        tmp_path, DrawnFault(at=0.0, word=FaultWord.LOSE_STORE, target="shard-0", seconds=600.0)
    )
    (tmp_path / "commits/0").mkdir(parents=True)
    storm.at(0.0)
    (tmp_path / "commits/0").mkdir()
    storm.chaos.end()
    assert storm.line()["fault"] == "loseStore"
    away = tmp_path / "commits" / means.AWAY.format(0)
    assert storm.said[-1].endswith(f"the shard has begun a new one; the old is {away}")
