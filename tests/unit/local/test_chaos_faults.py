"""The faults of a plan begin and end by the run's passes, and are written down."""

import contextlib
import math
import os
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

from atoll_operator.local.chaos import Chaos, Fault, FaultKind, Links
from atoll_operator.local.run_files import CHAOS_FILE, Files, read_lines

SECONDS_MAX = 60.0
CUT = Fault(at=4.0, kind=FaultKind.CUT, target="a-0", shard="shard-0", seconds=600.0)


class Storm:
    """A run of learner a-0 and shard 0; the test moves the clock and looks."""

    def __init__(self, out: Path, *faults: Fault) -> None:
        self.said: list[str] = []
        self.killed: list[Any] = []
        endpoints = {"a-0": "", "shard-0": "unix:/run/shard-0"}
        planned = [SimpleNamespace(whole=n, endpoint=each) for n, each in endpoints.items()]
        self.children = [SimpleNamespace(planned=each, process=None) for each in planned]
        self.links = Links(faults, ["unix:/run/shard-0"])
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
    assert link.cuts == 0
    assert storm.at(204.0) == []
    assert link.cuts == 1
    assert storm.said == ["chaos: cut a-0 - shard-0, 600 s"]
    storm.chaos.end()


def test_a_fault_lasts_as_long_as_the_plan_says_however_long_a_pass_is(tmp_path: Path) -> None:
    storm = Storm(tmp_path, replace(CUT, at=0.0, seconds=0.2))
    storm.at(0.0)
    line = storm.line()
    assert storm.links.of("a-0", "shard-0").cuts == 0
    assert line["target"] == ["a-0", "shard-0"]
    assert (line["fault"], line["planned"], line["seconds"]) == ("cut", 0.0, 0.2)
    assert line["began"] + 0.19 <= line["ended"] == line["time"]
    storm.chaos.end()
    assert len(storm.at(1.0)) == 1


def test_at_the_end_of_a_run_what_lasts_is_taken_back_and_nothing_begins(tmp_path: Path) -> None:
    storm = Storm(tmp_path, CUT, Fault(at=5.0, kind=FaultKind.KILL, target="a-0"))
    storm.at(0.0)
    storm.at(4.5)
    assert storm.links.of("a-0", "shard-0").cuts == 1
    storm.chaos.end()
    assert storm.links.of("a-0", "shard-0").cuts == 0
    assert len(storm.at(100.0)) == 1
    assert storm.said[-1] == "chaos: the run is over before 1 of the faults"
    storm.chaos.end()
    assert len(storm.said) == 2


def test_a_fault_that_cannot_be_made_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    faults = [
        Fault(at=0.0, kind=FaultKind.KILL, target="a-0"),
        Fault(at=0.0, kind=FaultKind.PAUSE, target="shard-0", seconds=3.0),
    ]
    lines = Storm(tmp_path, *faults).at(0.0)
    assert [each["not_made"] for each in lines] == ["it did not run"] * 2


def test_a_kill_waits_for_the_end_of_the_process(
    tmp_path: Path, sleeping: Callable[[], Any]
) -> None:
    storm = Storm(tmp_path, Fault(at=0.0, kind=FaultKind.KILL, target="a-0"))
    storm.children[0].process = sleeping()
    (line,) = storm.at(0.0)
    assert "not_made" not in line
    assert storm.killed == ["a-0"]
    assert storm.children[0].process.poll() == -signal.SIGKILL


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_pause_stops_a_process_with_its_children_and_continues_them(
    tmp_path: Path, sleeping: Callable[[], Any]
) -> None:
    fault = Fault(at=0.0, kind=FaultKind.PAUSE, target="a-0", seconds=600.0)
    storm = Storm(tmp_path, fault)
    program = "import subprocess, sys; subprocess.run(['sleep', '600'], stdin=sys.stdin)"
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        storm.children[0].process = process
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + SECONDS_MAX
        while not (pids := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        those = [process.pid, *map(int, pids)]
        storm.at(0.0)
        while {state_of(pid) for pid in those} != {"T"}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        storm.chaos.end()
        while "T" in {state_of(pid) for pid in those}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
