"""How a learner's `with` ends: a transport that is gone, a refusal, a signal, an exception."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll_protos.exits import FINISHED, TERMINATED, ExitCode
from atoll_worker.errors import LearnerError, TransportLostError
from atoll_worker.link import socket as links
from atoll_worker.link.messages import Fail, Finished, Proceed, Tick
from atoll_worker.ranks.peers import lost_error
from atoll_worker.training import process
from atoll_worker.training.obeying import BoundaryWork
from atoll_worker.training.replica import Replica
from unit.worker.fake_transport import LOCKSTEP, FakeTransport, Gate, playing
from unit.worker.tiny_learner import learner_of, model_and_optimizer, train_for_ever

torch.set_num_threads(1)


def test_a_transport_that_has_not_read_for_very_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        done.pass_()

    done = Gate()
    monkeypatch.setattr(links, "UNSENT_BYTES_MAX", 10_000)
    monkeypatch.setattr(process, "LEAVE_SECONDS_MAX", 0.0)
    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(TransportLostError, match="unread"), learner:
            train_for_ever(learner)
        done.open()


def test_the_death_of_the_transport_is_an_error_that_asks_for_a_new_start() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()

    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with (
            pytest.raises(TransportLostError, match="transport process has ended") as caught,
            learner,
        ):
            train_for_ever(learner)
    assert caught.value.exit_code == ExitCode.TRY_AGAIN


def test_a_refusal_carries_its_exit_code() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        fake.send(Fail(exit_code=77, reason="a higher incarnation has the slot"))
        assert "higher incarnation" in fake.until_leaving().reason

    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(atoll.LearnerError, match="higher incarnation") as caught, learner:
            train_for_ever(learner)
    assert caught.value.exit_code == ExitCode.SUPERSEDED


def test_a_refusal_at_the_start_leaves_nothing_behind() -> None:
    def script(fake: FakeTransport) -> None:
        fake.send(Fail(exit_code=65, reason="another layout"))
        fake.until_leaving()

    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(atoll.LearnerError, match="another layout"), learner:
            pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_leaves_the_job_and_exits_with_0() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        assert fake.until_leaving().reason == "terminated"

    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(SystemExit) as caught, learner:
            signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
    def script(fake: FakeTransport) -> None:
        fake.begin()
        fake.until_leaving()

    def end() -> None:
        learner._ranks = others
        if signalled:
            signal.raise_signal(signal.SIGTERM)
        sys.exit(0)

    others: Any = Others()
    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(SystemExit), learner:
            end()
    assert others.told == [signalled]


@pytest.mark.parametrize("told", [True, False])
def test_a_head_that_loses_a_rank_which_was_told_to_end_leaves_as_one_that_was_told(
    told: bool,
) -> None:
    """Its other hosts are told at the same time as it, and may be sooner."""

    def script(fake: FakeTransport) -> None:
        fake.begin()
        assert (fake.until_leaving().reason == TERMINATED) == told

    def fail() -> None:
        learner._ranks = others
        raise RuntimeError("Connection closed by peer")

    others: Any = Others(lost_error("rank 1 has ended", told=told))
    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(atoll.LearnerError) as caught, learner:
            fail()
    assert caught.value.exit_code == ExitCode.TRY_AGAIN


def test_sigterm_ends_a_wait_for_the_syncer() -> None:
    def script(fake: FakeTransport) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert fake.until_leaving().reason == "terminated"

    with playing(script), pytest.raises(SystemExit), learner_of(*model_and_optimizer()):
        pass


def test_sigterm_in_the_middle_of_a_step_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        assert fake.boundary().own_steps == 1
        assert fake.until_leaving().reason == "terminated"

    model, optimizer = model_and_optimizer()
    learner = learner_of(model, optimizer)
    apply_commands = Replica.apply_commands

    def killed_meanwhile(replica: Replica) -> BoundaryWork:
        if learner.own_steps:
            signal.raise_signal(signal.SIGTERM)
        return apply_commands(replica)

    monkeypatch.setattr(Replica, "apply_commands", killed_meanwhile)
    with playing(script), pytest.raises(SystemExit), learner:
        learner.step(tokens=1)


@pytest.fixture
def own_handler() -> Iterator[list[int]]:
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    yield caught
    signal.signal(signal.SIGTERM, before)


def test_the_users_own_handler_stays(own_handler: list[int]) -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        assert fake.until_leaving().reason == "loop ended"

    with playing(script), learner_of(*model_and_optimizer()):
        signal.raise_signal(signal.SIGTERM)
    assert own_handler == [signal.SIGTERM]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine")])
def test_an_exception_leaves_the_job_and_propagates(error: BaseException) -> None:
    reasons: list[str] = []

    def script(fake: FakeTransport) -> None:
        fake.begin()
        reasons.append(fake.until_leaving().reason)

    with playing(script):
        learner = learner_of(*model_and_optimizer())
        with pytest.raises(type(error)), learner:
            raise error
    assert reasons == [
        "interrupted" if isinstance(error, KeyboardInterrupt) else "ValueError: mine"
    ]


@pytest.mark.parametrize("early", [False, True])
def test_the_kubelet_is_told_whether_a_learner_has_finished_or_has_returned_too_early(
    early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr("atoll_worker.training.last_words.TERMINATION_LOG", log)

    def script(fake: FakeTransport) -> None:
        fake.begin()
        fake.boundary()
        fake.send(Tick(tick=100), Proceed() if early else Finished())
        fake.until_leaving()

    for exists in (False, True):  # outside of a pod there is no such file, and none is made
        if exists:
            log.touch()
        with playing(script), learner_of(*model_and_optimizer(), LOCKSTEP) as learner:
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
    monkeypatch.setattr("atoll_worker.training.last_words.TERMINATION_LOG", log)

    def script(fake: FakeTransport) -> None:
        fake.begin()
        fake.until_leaving()

    with playing(script), pytest.raises(type(error)), learner_of(*model_and_optimizer()):
        raise error
    assert log.read_text() == words
