"""A data state that the script gives with its steps, as `Learner` keeps and returns it."""

from typing import Any

import pytest

from atoll_protos.errors import SpecError
from atoll_worker.link.messages import Capture, Proceed
from atoll_worker.training import boundary
from unit.worker.fake_transport import LOCKSTEP, FakeTransport, playing
from unit.worker.fixtures import entered, learner_of, model_and_optimizer


def test_a_data_state_goes_with_the_capture_of_its_step_and_comes_back_on_entering() -> None:
    learner = learner_of(*model_and_optimizer())
    with entered(learner, cursor=7, data_state=b"at 7") as fake:
        assert (learner.cursor, learner.data_state) == (7, b"at 7")
        fake.send(Capture(slices=fake.end.memory.plan.slices))
        learner.step(tokens=1, state=b"at 8")
        learner.step(tokens=1, state=b"at 9")
        assert (learner.cursor, learner.data_state) == (9, b"at 7")
        assert [fake.boundary().data_state for _ in range(2)] == [b"at 8", None]


def test_a_function_of_the_data_state_is_called_in_the_step_of_a_capture_and_no_other() -> None:
    learner = learner_of(*model_and_optimizer())
    called: list[int] = []

    def state() -> bytes:
        called.append(learner.cursor)
        return f"at {learner.cursor}".encode()

    with entered(learner, cursor=7) as fake:
        learner.step(tokens=1, state=state)
        assert called == [8]  # once, to see that it is right
        learner.step(tokens=1, state=state)
        fake.send(Capture(slices=fake.end.memory.plan.slices))
        learner.step(tokens=1, state=state)
        learner.step(tokens=1, state=state)
        states = [fake.boundary().data_state for _ in range(4)]
    assert (called, states) == ([8, 10], [None, None, b"at 10", None])


def test_in_lock_step_the_data_state_is_that_of_the_step_that_waits() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        for state in (b"1", b"2"):
            assert fake.boundary().data_state is None
            for key in fake.end.memory.plan.slices:
                fake.send(Capture(slices=(key,)))
                assert fake.boundary().data_state == state
            fake.send(Proceed())
        fake.until_leaving()

    states = iter([b"1", b"2", b"3"])
    with playing(script), learner_of(*model_and_optimizer(), LOCKSTEP) as learner:
        for _ in range(2):
            learner.step(tokens=1, state=lambda: next(states))
        assert next(states) == b"3"


def give(kept: boundary.KeptDataState, state: Any) -> None:
    """As the first step of a script does."""
    kept.give(state)
    kept.try_once()


@pytest.mark.parametrize("state", [bytes(17), lambda: bytes(17), "here", lambda: 3])
def test_what_is_no_data_state_is_refused_in_the_step_that_gives_it(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "DATA_STATE_BYTES_MAX", 16)
    kept = boundary.KeptDataState()
    kept.give(b"0123456789abcdef")
    assert kept.take() == b"0123456789abcdef"
    with pytest.raises(SpecError, match="state"):
        give(kept, state)
