"""How a learner's `with` ends: a transport that is gone, a refusal, a signal, an exception."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import atoll
from atoll_protos.exits import FINISHED, TERMINATED, ExitCode
from atoll_worker import learner as learners
from atoll_worker.errors import LearnerError, TransportLostError
from atoll_worker.link import socket as links
from atoll_worker.link.messages import Boundary, Fail, Finished, Proceed, Tick
from atoll_worker.ranks.lifeline import lost_error
from atoll_worker.script.termination import REPEAT_SECONDS, Termination
from atoll_worker.training import replica
from atoll_worker.training.boundary import BoundaryWork
from atoll_worker.training.replica import Replica
from unit.worker.fake_transport import LOCKSTEP, FakeTransport, Gate, playing
from unit.worker.fixtures import entered, learner_of, model_and_optimizer, train_for_ever

torch.set_num_threads(1)


def test_a_transport_that_has_not_read_for_very_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        done.pass_()

    done = Gate()
    monkeypatch.setattr(links, "UNSENT_BYTES_MAX", 10_000)
    monkeypatch.setattr(replica, "LEAVE_SECONDS_MAX", 0.0)
    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(TransportLostError, match="unread"), learner:
            train_for_ever(learner)
        done.open()


@pytest.mark.parametrize("begun", [False, True])
def test_a_refusal_carries_its_exit_code_and_leaves_nothing_behind(begun: bool) -> None:
    def script(fake: FakeTransport) -> None:
        if begun:
            fake.begin()
        fake.send(Fail(exit_code=77, reason="a higher incarnation has the slot"))
        assert "higher incarnation" in fake.until_leaving().reason

    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(atoll.LearnerError, match="higher incarnation") as caught, learner:
            train_for_ever(learner)
    assert caught.value.exit_code == ExitCode.SUPERSEDED
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_leaves_the_job_and_exits_with_0() -> None:
    learner = learner_of(*model_and_optimizer())
    with pytest.raises(SystemExit) as caught, entered(learner, "terminated"):
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_of_several_sigterms_the_first_alone_interrupts() -> None:
    def end() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    cleaned = list[bool]()
    learner = learner_of(*model_and_optimizer())
    with pytest.raises(SystemExit), entered(learner, "terminated"):
        end()
    assert cleaned


def test_it_leaves_also_where_nobody_reads_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_later(event: str, **_: object) -> None:
        if event == "leaving":
            raise BrokenPipeError

    learner = learner_of(*model_and_optimizer())
    monkeypatch.setattr(learners, "log", SimpleNamespace(info=broken_later))
    with pytest.raises(BrokenPipeError), entered(learner, "terminated"):
        signal.raise_signal(signal.SIGTERM)


class Others:
    """The other ranks of a learner as its head sees them; a collective fails because of `lost`."""

    is_head = True

    def __init__(self, lost: LearnerError | None = None) -> None:
        self.lost, self.told = lost, list[bool]()

    def leave(self, *, in_order: bool, early: bool, told: bool) -> None:
        """Note whether they hear that this rank was told to end."""
        assert not in_order
        assert not early
        self.told.append(told)

    def loss(self, error: BaseException) -> LearnerError | None:
        """Who is lost."""
        return self.lost if isinstance(error, RuntimeError) else None


@pytest.mark.parametrize("signalled", [True, False])
def test_the_other_ranks_hear_of_a_signal_and_not_of_an_exit_of_the_script_s_own(
    signalled: bool,
) -> None:
    def end() -> None:
        learner._ranks = others
        if signalled:
            signal.raise_signal(signal.SIGTERM)
        sys.exit(0)

    others: Any = Others()
    learner = learner_of(*model_and_optimizer())
    with pytest.raises(SystemExit), entered(learner):
        end()
    assert others.told == [signalled]


@pytest.mark.parametrize("told", [True, False])
def test_a_head_that_loses_a_rank_which_was_told_to_end_leaves_as_one_that_was_told(
    told: bool,
) -> None:
    """Its other hosts are told at the same time as it, and may be sooner."""

    def fail() -> None:
        learner._ranks = others
        raise RuntimeError("Connection closed by peer")

    others: Any = Others(lost_error("rank 1 has ended", told=told))
    learner = learner_of(*model_and_optimizer())
    reason = TERMINATED if told else f"LearnerError: {others.lost}"
    with pytest.raises(atoll.LearnerError) as caught, entered(learner, reason):
        fail()
    assert caught.value.exit_code == ExitCode.TRY_AGAIN


def test_sigterm_ends_a_wait_for_the_syncer() -> None:
    def script(fake: FakeTransport) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert fake.until_leaving().reason == "terminated"

    with playing(script), pytest.raises(SystemExit), learner_of(*model_and_optimizer()):
        pass


def test_sigterm_in_the_middle_of_a_step_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(*model_and_optimizer())
    apply_commands = Replica.apply_commands

    def killed_meanwhile(replica: Replica) -> BoundaryWork:
        if learner.own_steps:
            signal.raise_signal(signal.SIGTERM)
        return apply_commands(replica)

    monkeypatch.setattr(Replica, "apply_commands", killed_meanwhile)
    with pytest.raises(SystemExit), entered(learner, "terminated") as fake:
        learner.step(tokens=1)
    assert [each.own_steps for each in fake.received if isinstance(each, Boundary)][-1] == 1


@pytest.fixture
def own_handler() -> Iterator[list[int]]:
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    yield caught
    signal.signal(signal.SIGTERM, before)


def test_the_users_own_handler_stays(own_handler: list[int]) -> None:
    with entered(learner_of(*model_and_optimizer()), "loop ended"):
        signal.raise_signal(signal.SIGTERM)
    assert own_handler == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), "interrupted"), (ValueError("mine"), "ValueError: mine")],
)
def test_an_exception_leaves_the_job_and_propagates(error: BaseException, reason: str) -> None:
    with pytest.raises(type(error)), entered(learner_of(*model_and_optimizer()), reason):
        raise error


@pytest.mark.parametrize("early", [False, True])
def test_the_kubelet_is_told_whether_a_learner_has_finished_or_has_returned_too_early(
    early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr("atoll_worker.script.termination.TERMINATION_LOG", log)
    for exists in (False, True):  # outside of a pod there is no such file, and none is made
        if exists:
            log.touch()
        learner = learner_of(*model_and_optimizer(), LOCKSTEP)
        with entered(learner) as fake:
            fake.send(Tick(tick=100), Proceed() if early else Finished())
            learner.step(tokens=1)
        assert log.exists() == exists
    returned = 'returned at tick 100 of 100; the job is not final: loop "while not'
    assert log.read_text().startswith(returned if early else FINISHED)


@pytest.mark.parametrize(
    ("error", "words"), [(ValueError("boom"), ""), (SystemExit(0), "terminated")]
)
def test_of_a_learner_that_an_error_ends_the_kubelet_keeps_the_log(
    error: BaseException, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    log.write_text("of an earlier Learner of this process")
    monkeypatch.setattr("atoll_worker.script.termination.TERMINATION_LOG", log)

    with pytest.raises(type(error)), entered(learner_of(*model_and_optimizer())):
        raise error
    assert log.read_text() == words


def test_the_first_sigterm_ends_no_script_that_has_the_final_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods of a complete job are removed while the first slot's script may save."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        first, second = Termination(), Termination()
        first.install()
        first.over = True
        os.kill(os.getpid(), signal.SIGTERM)
        with first.leaving():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        first.check()
        ended: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(signal, "raise_signal", ended.append)
            assert first.ignored_at is not None
            first._ignore_once(first.ignored_at + REPEAT_SECONDS / 2)
            assert not ended
            first._ignore_once(first.ignored_at + REPEAT_SECONDS)
        assert ended == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        second.install()
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
