"""When fragments are due: 2604.21428's offsets, in the form of rule 9 (docs/protocol.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.job.layout import TensorSpec
from atoll_protos.job.run_file import RunFile, Sync
from atoll_protos.job.schedule import offset, start_distance


def test_with_as_many_fragments_as_ticks_one_is_due_at_every_tick() -> None:
    """2604.21428: P = H = 24, so that one fragment syncs at every step; a large model's default."""
    table = [
        TensorSpec(name=f"blocks.{n}.weight", shape=(8, 8), dtype="float32", merge="rda")
        for n in range(100)
    ]
    fragments = RunFile(job="large", regions=(), steps=1).layout(table).fragments
    sync = Sync().with_fragments(fragments)
    assert [offset(sync, p) for p in range(fragments)] == list(range(24))


@given(st.integers(1, 300), st.data())
def test_due_ticks_lie_evenly_in_the_period(period: int, data: st.DataObject) -> None:
    """Offsets are floor(p*H/P): rising, within the period, H/P apart to within one tick."""
    fragments = data.draw(st.integers(1, period))
    sync = Sync(fragments=fragments, period=period, overlap=0, lockstep=True)
    offsets = [offset(sync, p) for p in range(fragments)]
    apart = [b - a for a, b in zip(offsets, [*offsets[1:], period], strict=True)]
    assert offsets[0] == 0
    assert all(period // fragments <= gap <= -(-period // fragments) for gap in apart)


@pytest.mark.parametrize(("period", "distance"), [(1, 1), (2, 1), (23, 12), (24, 12)])
def test_two_starts_of_a_slice_lie_half_a_period_apart(period: int, distance: int) -> None:
    sync = Sync(fragments=1, period=period, overlap=0, lockstep=True)
    assert start_distance(sync) == distance


@pytest.mark.parametrize(
    ("lockstep", "training", "awaited"),
    [(False, 0, 4), (False, 2, 4), (True, 0, 1), (True, 2, 2), (True, 9, 4)],
)
def test_only_modes_that_wait_lower_the_quorum_to_who_trains(
    lockstep: bool, training: int, awaited: int
) -> None:
    """Rule 10 (docs/protocol.md): there K means min(K, learners Training), at least 1."""
    assert Sync(quorum=4, lockstep=lockstep).awaited(training) == awaited
