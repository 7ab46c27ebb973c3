"""When a pass of `atoll run` makes a fault: by --chaos, and by a plan."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.child import Child
from atoll_operator.local.local_status import NO_REPORTS, ProcessReports, RunSnapshot
from unit.local.test_atoll_run import learner, training_of
from unit.local.test_local_status import job, reply, snapshot


def test_chaos_kills_only_when_all_have_trained_for_a_while(tmp_path: Path) -> None:
    """Kills at fixed times left a slow machine no time between the starts in which to train."""
    replies: list[pb.StatusReply | None] = []
    killed: list[Child] = []

    def poll(now: float, ends: ProcessReports = NO_REPORTS) -> RunSnapshot:
        return snapshot(replies, ends)

    training = training_of(tmp_path, learner("a-0"), learner("a-1"))
    processes: Any = training.supervisor
    processes.children[0].process = SimpleNamespace(poll=lambda: None)
    processes.kill = killed.append
    training.poller = SimpleNamespace(poll=poll, job=job())  # type: ignore[assignment]
    training.chaos = True

    def kills(at: float, *now_said: pb.StatusReply | None) -> int:
        replies[:] = now_said
        training.advance(at)
        return len(killed)

    some, every = reply(training=("a-0", "b-0")), reply()
    for second in range(0, 100, 10):
        assert kills(second, some, some) == 0
        assert kills(second + 5, every, None) == 0
    assert kills(100.0, every, every) == 0
    assert kills(114.9, every, every) == 0
    assert kills(115.0, every, every) == 1  # 20 s after the last that was not so
    assert kills(134.9, every, every) == 1
    processes.children[1].given_up = "ValueError: boom"
    assert kills(135.0, some, some) == 2  # who is given up is not waited for


def test_faults_of_a_plan_wait_for_all_and_end_with_the_training(tmp_path: Path) -> None:
    replies: list[pb.StatusReply | None] = []
    asked: list[bool | str] = []
    training = training_of(tmp_path, learner("a-0"))
    poll = SimpleNamespace(poll=lambda *_, **__: snapshot(replies), job=job())
    training.poller = poll  # type: ignore[assignment]
    faults: Any = SimpleNamespace(
        advance=lambda now, all_train: asked.append(all_train), end=lambda: asked.append("end")
    )
    training.faults = faults

    def then(*now_said: pb.StatusReply | None) -> list[bool | str]:
        replies[:] = now_said
        training.advance(1.0)
        return asked

    some, every = reply(training=("a-0", "b-0")), reply()
    assert then(some, some) == [False]
    assert then(every, None) == [False, False]
    assert then(every, every) == [False, False, True]
    final = reply("Final")
    assert then(final, final)[3:] == ["end"]
    stopping: Any = SimpleNamespace(
        children=(), supervise=stop_at_once, suspended=False, complete_at=None
    )
    training.supervisor = stopping
    with pytest.raises(KeyboardInterrupt):
        training.run(stop_at_once)
    assert asked[4:] == ["end"]


def stop_at_once(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
