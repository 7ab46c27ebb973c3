"""Learners of other machines while their job is suspended."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.parsing import parse
from atoll_operator.local import passes
from atoll_operator.local.local_status import RunSnapshot
from atoll_operator.local.passes import Elsewhere, JobFailedError
from atoll_operator.local.poller import Poller
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.machines.joined.joining import JoinedRun
from atoll_operator.machines.joined.watching import JobNow, JobState
from unit.local.test_atoll_run import training_of
from unit.local.test_local_status import MANIFEST, reply
from unit.machines.test_learners import MACHINE


class Processes:
    """The supervisor of a machine, which notes what is asked of it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.answered: list[bool] = []
        self.children = [SimpleNamespace(given_up="", process=None)]
        self.steps: int | None = None

    def stop(self) -> None:
        self.done.append("stop")

    def begin_again(self) -> None:
        self.done.append("begin again")

    def supervise(self, now: float, *, answered: bool, **_: object) -> None:
        self.done.append("pass")
        self.answered.append(answered)


def test_learners_leave_and_start_again_as_the_server_says() -> None:
    processes: Any = Processes()
    watcher: Any = SimpleNamespace(refusal=None, bundle=MACHINE, fails=False, heard_at=0.0)
    run = JoinedRun(watcher, processes, lambda _: None)

    def passes_with(*states: JobState) -> list[str]:
        processes.done.clear()
        for now, state in enumerate(states):
            watcher.now = JobNow(state=state, tick=5)
            assert run.advance(float(now)) is None
        return list(processes.done)

    assert passes_with(JobState.TRAINING) == ["pass"]
    assert passes_with(JobState.SUSPENDED, JobState.SUSPENDED) == ["stop"]
    assert passes_with(JobState.UNKNOWN, JobState.TRAINING) == ["begin again", "pass", "pass"]


def test_an_answer_from_before_a_learner_ended_says_nothing_of_its_end() -> None:
    """A learner that had finished was started again, and dialled shards that had gone."""
    processes: Any = Processes()
    job = JobNow(state=JobState.TRAINING, tick=5)
    watcher: Any = SimpleNamespace(refusal=None, bundle=MACHINE, now=job, fails=False)
    run = JoinedRun(watcher, processes, lambda _: None)
    for now, heard_at in enumerate([None, 0.5, 0.5, 0.5, 3.5, 3.5]):
        watcher.heard_at = heard_at
        assert run.advance(float(now)) is None
    assert processes.answered == [False, True, False, False, True, False]


def test_a_machine_says_the_length_that_the_server_has_said_last() -> None:
    processes: Any = Processes()
    watcher: Any = SimpleNamespace(refusal=None, bundle=MACHINE, fails=False, heard_at=0.0)
    said: list[str] = []
    run = JoinedRun(watcher, processes, said.append)
    for now, length in ((100.0, 0), (200.0, 60), (300.0, 90), (400.0, 0)):
        watcher.now = JobNow(state=JobState.TRAINING, tick=7, length=length)
        assert run.advance(now) is None
    # Of a server that was away at the start, and of a job that was edited while it ran.
    assert said == ["tick 7", "tick 7 of 60", "tick 7 of 90", "tick 7 of 90"]


def test_a_machine_ends_at_once_when_its_learners_have_finished_and_the_server_has_gone() -> None:
    processes: Any = Processes()
    record = SimpleNamespace(last=SimpleNamespace(left="finished", code=0))
    learner = SimpleNamespace(
        planned=SimpleNamespace(role="learner"),
        process=object(),
        record=record,
        given_up="",
        after="",
        done=True,
    )
    processes.children = [learner]
    job = JobNow(state=JobState.FINAL, tick=5)
    watcher: Any = SimpleNamespace(refusal=None, bundle=MACHINE, now=job, fails=False, heard_at=0.0)
    run = JoinedRun(watcher, processes, lambda _: None)
    assert run.advance(1.0) is None
    watcher.fails = True
    assert run.advance(2.0) is None  # its learner runs
    learner.process = None
    assert run.advance(3.0) is RunResult.COMPLETE


class Machines(Elsewhere):
    """Machines whose learners take some looks to leave."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def leaving(self, seen: RunSnapshot) -> bool:
        self.done.append("leaving")
        return self.done.count("leaving") < 3


def test_machines_hear_of_it_and_have_left_before_the_shards_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "POLL_SECONDS", 0.0)
    training, machines = training_of(tmp_path), Machines()
    asked = Poller(parse(MANIFEST), ("127.0.0.1:1", "127.0.0.1:1"))
    monkeypatch.setattr(asked.links, "ask", lambda **_: [reply(), reply()])
    training.poller, training.elsewhere = asked, machines

    def word(intent: pb.Intent, why: str = "") -> None:
        machines.done.append(pb.Intent.Name(intent))

    monkeypatch.setattr(asked.links, "say", word)

    def stop(roles: object = "all") -> None:
        machines.done.append(f"stop {roles}")

    monkeypatch.setattr(training.supervisor, "stop", stop)
    training._suspend()
    learners = "stop ('learner', 'evaluator')"
    assert machines.done == ["INTENT_SUSPEND", learners, *["leaving"] * 3, "stop all"]
    machines.done.clear()
    training.fail(JobFailedError("QuorumLost", "why"))
    assert machines.done == ["INTENT_FAIL", learners, *["leaving"] * 3]
