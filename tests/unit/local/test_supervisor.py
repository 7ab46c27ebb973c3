"""Local mode starts what a template names, as its image would, and again when it ends."""

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local import supervisor
from atoll_operator.local.files import Files
from atoll_operator.local.plan import Planned
from atoll_operator.local.summary import read_lines
from atoll_operator.local.supervisor import (
    Child,
    Supervisor,
    backoff_seconds,
    cannot_train,
    free_ports,
    tail,
)
from atoll_protos.exits import RANK_ENDED

FOREVER = 1e6  # a wait of so long that does not end before runs into the time limit of a test


def learner(*command: str, folder: str = "", role: str = "learner") -> Planned:
    """A planned process."""
    return Planned(role=role, name="here-0", command=command, env={}, folder=folder)


def exiting(code: int) -> Planned:
    return learner(sys.executable, "-c", f"import sys; sys.exit({code})")


class Run:
    """A supervisor of one process, whose clock the test moves."""

    def __init__(self, planned: Planned, out: Path) -> None:
        self.said: list[str] = []
        self.supervisor = Supervisor([planned], Files(out, self.said.append), self.said.append)
        self.now = 0.0

    @property
    def child(self) -> Child:
        return self.supervisor.children[0]

    def start(self, *, final: bool = False) -> bool:
        """Let time pass until it is started; says whether it is."""
        if self.child.process is None:
            self.now += 60.0
            self.supervisor.supervise(self.now, final=final)
        return self.child.process is not None

    def end(self, *, final: bool = False) -> None:
        """Wait for its end, and let the supervisor see it a moment after its start."""
        assert self.child.process is not None
        self.child.process.wait(60)
        self.now += 0.1
        self.supervisor.supervise(self.now, final=final)


Start = Callable[[Planned], Run]


@pytest.fixture
def run_of(tmp_path: Path) -> Iterator[Start]:
    """Makes a run that leaves no process behind."""
    runs: list[Run] = []

    def make(planned: Planned) -> Run:
        runs.append(Run(planned, tmp_path))
        return runs[-1]

    yield make
    for run in runs:
        run.supervisor.stop()


def test_python_in_a_template_is_the_one_that_has_atoll(run_of: Start) -> None:
    run = run_of(learner("python", "-c", "import sys; print(sys.prefix)"))
    assert run.start()
    run.end()
    assert run.child.log.read_text().strip() == sys.prefix


def test_a_process_that_ends_with_0_before_the_job_is_final_is_started_again(
    run_of: Start,
) -> None:
    run = run_of(exiting(0))
    assert run.start()
    run.end()
    assert run.start()
    run.end(final=True)
    assert not run.start(final=True)
    assert run.child.done


def test_back_off_grows_with_every_end(run_of: Start) -> None:
    run = run_of(exiting(75))
    assert run.start()
    waits = []
    for _ in range(4):
        run.end()
        waits.append(run.child.start_at - run.now)
        run.now = run.child.start_at
        run.supervisor.supervise(run.now, final=False)
    assert waits == pytest.approx([0.0, 0.5, 1.0, 2.0])
    assert backoff_seconds(8) == backoff_seconds(10_000) == 30.0


@pytest.mark.parametrize(("code", "starts"), [(64, 1), (65, 1), (70, 5), (1, 5)])
def test_what_starting_again_cannot_help_is_given_up(code: int, starts: int, run_of: Start) -> None:
    run = run_of(exiting(code))
    for _ in range(starts):
        assert run.start()
        run.end()
    assert not run.start()
    assert run.child.done
    assert f"is given up (exit code {code})" in run.said[-1]


def test_a_kill_is_no_failure_of_its_own(run_of: Start) -> None:
    run = run_of(learner(sys.executable, "-c", "import time; time.sleep(100)"))
    for _ in range(7):
        assert run.start()
        run.supervisor.kill(run.child)
        run.end()
    assert run.start()
    assert "SIGKILL" in run.said[-1]


@pytest.mark.parametrize(
    ("code", "complete", "after"),
    [
        (1, False, "exit code 1: its log is empty"),
        (1, True, "exit code 1: its log is empty"),
        (75, False, ""),  # it may still take the final values
        (75, True, "exit code 75"),
        (0, True, ""),
        (-9, True, "SIGKILL"),
    ],
)
def test_what_fails_once_the_job_is_over_is_not_started_again_nor_told_before_the_last_line(
    code: int, complete: bool, after: str, run_of: Start
) -> None:
    end = f"import os, sys; os.kill(os.getpid(), {-code}) if {code} < 0 else sys.exit({code})"
    run = run_of(learner(sys.executable, "-c", end))
    assert run.start()
    assert run.child.process is not None
    run.child.process.wait(60)
    run.supervisor.supervise(run.now, final=True, complete=complete)
    assert run.child.after == after
    assert run.child.done == (bool(after) or code == 0)
    assert bool(run.said) == (code == 75 and not complete)
    assert run.start(final=True) == (code == 75 and not complete)


def test_a_learner_that_waits_for_its_next_start_when_the_job_is_complete_gets_none(
    run_of: Start,
) -> None:
    run = run_of(exiting(75))
    assert run.start()
    run.end()  # started again at once
    run.end()
    run.supervisor.supervise(run.now, final=True)
    assert not run.child.after
    run.supervisor.supervise(run.now, final=True, complete=True)
    assert run.child.done
    assert (run.child.after, run.child.ended) == ("exit code 75", "")


def test_one_that_is_refused_when_the_job_is_over_is_refused_all_the_same(run_of: Start) -> None:
    run = run_of(exiting(65))
    assert run.start()
    assert run.child.process is not None
    run.child.process.wait(60)
    run.supervisor.supervise(run.now, final=True, complete=True)
    assert run.child.given_up
    assert not run.child.after
    assert run.child.done


def test_a_shard_is_started_again_for_the_learners_of_a_complete_job(run_of: Start) -> None:
    env = {"ATOLL_ENDPOINTS": "here:1"}
    run = run_of(Planned(role="shard", name="shard-0", command=exiting(1).command, env=env))
    assert run.start()
    run.end(final=True)
    run.supervisor.supervise(run.now, final=True, complete=True)
    assert run.child.restarts == 1


def test_processes_json_names_every_process_and_its_start(run_of: Start, tmp_path: Path) -> None:
    env = {"ATOLL_ENDPOINTS": "here:1,here:2,here:3,here:4"}
    shard = Planned(role="shard", name="shard-3", command=exiting(75).command, env=env)
    run = run_of(shard)
    assert run.start()
    (row,) = json.loads((tmp_path / "processes.json").read_text())
    assert row["role"] == "shard"
    assert row["shard"] == 3
    assert row["endpoint"] == "here:4"
    assert row["restarts"] == 0
    assert row["pid"] == (run.child.process and run.child.process.pid)
    run.end()
    assert run.start()
    (again,) = json.loads((tmp_path / "processes.json").read_text())
    assert again["restarts"] == 1
    assert again["instance"] != row["instance"]


def test_the_first_end_is_told_with_its_last_words_and_its_log(run_of: Start) -> None:
    run = run_of(learner(sys.executable, "-c", "print('hello')\nraise ValueError('boom')"))
    assert run.start()
    run.end()
    assert run.said == [
        "here-0 ended (exit code 1) and is started again: ValueError: boom (<string>:2); "
        f"log: {run.child.log}"
    ]


RANK_KILLED = json.dumps({RANK_ENDED: 1, "event": "rank 1 on a has ended (SIGKILL)"})


def test_a_rank_that_was_killed_is_told_while_its_launcher_goes_on(run_of: Start) -> None:
    run = run_of(learner("sh", "-c", f"echo early; echo '{RANK_KILLED}'; exec sleep 600"))
    assert run.start()
    while RANK_KILLED not in tail(run.child.log, 0):
        pass
    for _ in range(2):
        run.supervisor.supervise(run.now, final=False)
    assert run.said == [f"here-0: rank 1 on a has ended (SIGKILL); log: {run.child.log}"]


def test_a_rank_is_told_before_the_end_of_its_launcher(run_of: Start) -> None:
    run = run_of(learner("sh", "-c", f"echo '{RANK_KILLED}'; kill -9 $$"))
    assert run.start()
    run.child.planned = exiting(75)  # of the second start
    run.end()
    assert run.said == [
        f"here-0: rank 1 on a has ended (SIGKILL); log: {run.child.log}",
        "here-0 ended (SIGKILL) and is started again",
    ]
    assert run.start()
    run.end()
    assert len(run.said) == 3  # what an earlier start has said is not told again


def test_the_same_words_twice_before_any_step_end_the_starts(run_of: Start) -> None:
    run = run_of(learner(sys.executable, "-c", "raise ValueError('boom')"))
    for _ in range(2):
        assert run.start()
        run.end()
    assert not run.start()
    assert run.said[-1].startswith("here-0 is given up (exit code 1): ValueError: boom")


def test_the_words_of_an_earlier_start_are_not_those_of_the_last(run_of: Start) -> None:
    run = run_of(learner(sys.executable, "-c", "raise ValueError('boom')"))
    assert run.start()
    run.child.planned = exiting(75)  # of the second start
    run.end()
    assert run.start()
    run.end()
    assert run.said[-1] == "here-0 ended (exit code 75) and is started again"


def test_of_a_start_that_lasted_for_days_the_end_of_its_telemetry_is_read(
    run_of: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TELEMETRY_BYTES", 1000)
    starts: list[int] = []

    def reading(path: Path, start: int) -> list[dict[str, Any]]:
        starts.append(start)
        return read_lines(path, start)

    monkeypatch.setattr(supervisor, "read_lines", reading)
    run = run_of(stepping(tmp_path, 200, "raise ValueError('boom')", "ValueError: boom"))
    assert run.start()
    run.end()
    size = (tmp_path / "learners" / "here-0.jsonl").stat().st_size
    assert starts == [size - 1000]
    assert run.child.record.worked
    assert run.child.record.last is not None
    assert run.child.record.last.own_steps == 200


def stepping(tmp_path: Path, own_steps: int, then: str, reason: str) -> Planned:
    """A learner that writes the telemetry of so many steps and of its leaving."""
    folder = tmp_path / "learners"
    folder.mkdir()
    lines = [{"t_m": each + 1, "tokens": 8, "adopted": []} for each in range(own_steps)]
    text = "\n".join(json.dumps(each) for each in [*lines, {"event": "end", "reason": reason}])
    script = f"open({str(folder / 'here-0.jsonl')!r}, 'a').write({text!r} + chr(10)); {then}"
    return learner(sys.executable, "-c", script)


def test_a_crash_after_steps_is_tried_five_times(run_of: Start, tmp_path: Path) -> None:
    run = run_of(stepping(tmp_path, 2, "raise ValueError('boom')", "ValueError: boom"))
    for _ in range(5):
        assert run.start()
        run.end()
    assert not run.start()
    assert len(run.said) == 5


def test_a_script_that_returns_early_is_told_and_given_up(run_of: Start, tmp_path: Path) -> None:
    run = run_of(stepping(tmp_path, 2, "pass", "loop ended"))
    run.supervisor.steps = 400
    for _ in range(3):
        assert run.start()
        assert run.child.process
        run.child.process.wait(60)
        run.supervisor.supervise(run.now, final=False, tick=14)
    assert not run.start()
    sentence = 'returned at tick 14 of 400; the job is not final: loop "while not learner.finished"'
    log = f"log: {run.child.log}"
    assert run.said == [
        *[f"here-0 {sentence}; it is started again; {log}"] * 2,
        f"here-0 is given up (exit code 0): {sentence}; {log}",
    ]


@pytest.mark.parametrize("reason", ["finished", "terminated"])
def test_a_learner_that_was_told_to_end_has_not_returned_early(
    reason: str, run_of: Start, tmp_path: Path
) -> None:
    run = run_of(stepping(tmp_path, 2, "pass", reason))
    for _ in range(5):
        assert run.start()
        run.end()
    assert run.said == []
    wait = run.child.start_at - run.now
    assert wait >= 2.0  # the job is final in a moment


def test_of_a_log_the_end_of_the_present_start_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log, 0) == ""
    log.write_bytes(b"before\n\xff after\n")
    assert tail(log, 7) == "\ufffd after\n"
    log.write_bytes(b"x" * 1_000_000 + b"end")
    assert tail(log, 0).endswith("xend")
    assert len(tail(log, 0)) < 100_000


def test_a_wait_ends_when_a_process_ends_when_one_is_due_and_after_its_limit(
    run_of: Start,
) -> None:
    sleeping = run_of(learner(sys.executable, "-c", "import time; time.sleep(1e6)"))
    assert sleeping.start()
    sleeping.supervisor.wait(sleeping.now, 0.05)
    for _ in range(2):  # after the first end it is started at once, after the second it waits
        sleeping.supervisor.kill(sleeping.child)
        sleeping.supervisor.wait(sleeping.now, FOREVER)
        sleeping.end()
    assert sleeping.child.process is None
    sleeping.supervisor.wait(sleeping.child.start_at - 0.05, FOREVER)


def hosts(*scripts: str, needed: int = 2) -> list[Planned]:
    """The hosts of one learner, each a Python script; it trains with so many of them."""
    return [
        Planned(
            role="learner",
            name=f"here-0-{host}",
            command=(sys.executable, "-c", script),
            env={},
            slot="here-0",
            host=host,
            hosts_needed=needed,
        )
        for host, script in enumerate(scripts)
    ]


SLEEP = "import time; time.sleep(600)"


def test_a_host_that_is_given_up_takes_the_others_along_and_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    run = Supervisor(
        hosts(SLEEP, "import sys; sys.exit(64)"), Files(tmp_path, said.append), said.append
    )
    run.supervise(0.0, final=False)
    first, second = run.children
    rows = json.loads((tmp_path / "processes.json").read_text())
    assert [(row["slot"], row["host"]) for row in rows] == [("here-0", 0), ("here-0", 1)]
    assert first.telemetry == second.telemetry == tmp_path / "learners" / "here-0.jsonl"
    try:
        assert second.process is not None
        second.process.wait(60)
        run.supervise(1.0, final=False)
        assert first.process is not None
        first.process.wait(60)
        run.supervise(2.0, final=False)
    finally:
        run.stop()
    assert (first.given_up_with, second.given_up_with) == ("here-0-1", "")
    assert first.given_up == second.given_up == "its log is empty"
    assert first.done
    assert second.done
    assert not first.ended
    assert len(said) == 1


@pytest.mark.parametrize("given_up", [0, 1])
def test_a_learner_that_needs_fewer_hosts_goes_on_without_one_that_is_given_up_but_not_host_0(
    given_up: int, tmp_path: Path
) -> None:
    scripts = [SLEEP, SLEEP]
    scripts[given_up] = "import sys; sys.exit(64)"
    run = Supervisor(hosts(*scripts, needed=1), Files(tmp_path, print), lambda text: None)
    run.supervise(0.0, final=False)
    ended, other = run.children[given_up], run.children[1 - given_up]
    try:
        assert ended.process is not None
        ended.process.wait(60)
        run.supervise(1.0, final=False)
        assert ended.given_up
        assert bool(other.given_up) == cannot_train(run.children) == (given_up == 0)
    finally:
        run.stop()


def test_a_host_that_ends_alone_is_started_again_alone_and_chaos_kills_all(tmp_path: Path) -> None:
    run = Supervisor(
        hosts(SLEEP, "import sys; sys.exit(75)"), Files(tmp_path, print), lambda text: None
    )
    run.supervise(0.0, final=False)
    first, second = run.children
    try:
        assert second.process is not None
        second.process.wait(60)
        run.supervise(1.0, final=False)
        assert (first.restarts, second.restarts) == (0, 1)
        assert second.process is not None
        assert first.process is not None
        run.kill(second)
        assert first.process.wait(60) == -9
    finally:
        run.stop()


def test_a_learner_is_done_when_one_of_its_hosts_has_ended_in_order(tmp_path: Path) -> None:
    run = Supervisor(
        hosts("import sys; sys.exit(0)", "import sys; sys.exit(75)"),
        Files(tmp_path, print),
        lambda text: None,
    )
    run.supervise(0.0, final=True)
    try:
        for child in run.children:
            assert child.process is not None
            child.process.wait(60)
        run.supervise(1.0, final=True)
        assert all(child.done for child in run.children)
        assert [child.restarts for child in run.children] == [0, 0]
    finally:
        run.stop()


def test_ports_are_free_and_none_that_an_outgoing_connection_may_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program's connection had a shard's port by the time that the shard listened."""
    found = free_ports(100)
    assert len(set(found)) == 100
    assert max(found) < 32_768  # the first that Linux gives to outgoing connections
    with socket.create_server(("127.0.0.1", found[0])):
        monkeypatch.setattr(supervisor, "PORTS", found[:4])
        assert sorted(free_ports(3)) == sorted(found[1:4])
        with pytest.raises(OSError, match="only 3 of the ports"):
            free_ports(4)
