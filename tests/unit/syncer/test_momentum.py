"""The momentum of a slice's next merge (docs/algorithm.md, Outer optimizer; rule 19)."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos import documents
from atoll_protos.job.run_file import Merge as MergeKind
from atoll_protos.job.run_file import Sync
from atoll_protos.job.schedule import Length
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model import log
from atoll_syncer.model.effects import MergeOffers, TapeLine
from atoll_syncer.model.history import History
from atoll_syncer.model.roster import MOMENTUM_MAX, momentum, ticks_expected
from atoll_syncer.rules import offers
from unit.syncer.shard_side import Side, begun, side
from unit.syncer.values_side import SLOTS, STEPS, bits
from unit.syncer.values_side import Bench as ValuesBench

LENGTHS = st.integers(1, 10**9)
SYNCS = st.builds(Sync, period=st.integers(3, 10**4), overlap=st.just(2))


def f32(value: float) -> float:
    return float(np.float32(value))


@given(SYNCS, st.integers(0, 10**6), LENGTHS)
def test_it_begins_at_zero_and_grows_with_the_merges_to_the_published_value(
    sync: Sync, merges: int, steps: int
) -> None:
    found = momentum(sync, merges, steps)
    assert momentum(sync, 0, steps) == 0 <= found <= momentum(sync, merges + 1, steps)
    assert momentum(sync, 10**12, steps) == f32(MOMENTUM_MAX)
    assert found == f32(found), "a tape of f32 has all of its bits"


@given(SYNCS, st.integers(0, 1000), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_longer_job_begins_more_slowly(sync: Sync, merges: int, steps: int, more: int) -> None:
    assert momentum(sync, merges, steps + more) <= momentum(sync, merges, steps)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 99), LENGTHS)
def test_a_momentum_that_a_user_writes_is_exact(given_: float, merges: int, steps: int) -> None:
    assert momentum(Sync(outer_momentum=given_), merges, steps) == given_


def test_the_first_difference_is_in_the_momentum_of_the_second_merge(tmp_path: Path) -> None:
    """The first merge has no momentum, and yet its difference is what the next one goes on with."""
    sync = Sync(fragments=2, wire_up=Wire.F32, merge=MergeKind.MEAN)
    bench = ValuesBench(tmp_path, sync)
    bench.seed()
    part, buffer = bench.values.slices[1], np.zeros(0, np.float32)
    exact = part.recipe.form.exact
    used = []
    for capture in range(1, 6):
        before = part.master.copy()
        entry = bench.commit(1, [bench.offer(1, SLOTS[0], capture)])
        offer = bytearray(bench.recorded[1, SLOTS[0], 1, capture])
        delta = np.frombuffer(offer, np.float32)[exact:]
        mu = entry.momentum
        buffer = delta if capture == 1 else mu * buffer + delta
        step = before[exact:] - 0.7 * (delta + mu * buffer)
        np.testing.assert_allclose(part.master[exact:], step, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(part.momentum[exact:], buffer, rtol=1e-5, atol=1e-7)
        used.append(mu)
    assert used == [f32(k / (k + (STEPS / sync.period) ** 0.5)) for k in range(5)]
    assert [entry.merges for entry in bench.entries] == [1, 2, 3, 4, 5]


def test_a_version_without_work_leaves_momentum_and_counter_as_they_are(tmp_path: Path) -> None:
    bench = ValuesBench(tmp_path, Sync(fragments=2))
    bench.seed()
    bench.round(0, 1)
    before = bits(bench.values, 0)
    assert bench.commit(0, [], last=True).merges == 1
    assert bits(bench.values, 0)[:2] == before[:2]


def trained(one: Side, sessions: list[int], steps: range) -> list[float]:
    """Everybody trains and answers every Call; returns the momenta of the merges of slice 0."""
    for t_m in steps:
        one.now += 1.0
        for session in sessions:
            one.report(session, t_m, tokens=10 * t_m)
        for session, call in one.sent("call"):
            one.offer(session, call.slice, t_m)
    return [each.momentum for each in one.take(MergeOffers) if each.slice == 0]


def test_a_shard_counts_merges_of_each_slice_and_writes_what_it_used() -> None:
    """Rules 19 and 29: entry and tape have the momentum, also where a kill has cost the line."""
    one, sessions = begun("a-0", "a-1", steps=200)
    used = trained(one, sessions, range(1, 42))
    slowness = 5.0  # the root of 200 / 8, here less than 64 / 8
    assert used == [f32(k / (k + max(slowness, 8.0))) for k in range(5)]
    entries = [e for e in one.entries if isinstance(e, log.Committed) and e.slice == 0]
    assert [(each.momentum, each.merges) for each in entries] == [
        *zip(used, range(1, 6), strict=True)
    ]
    tape = [e.record for e in one.take(TapeLine) if e.record.get("slice") == 0]
    assert [line["momentum"] for line in tape] == used
    again = [offers.commit_again(one.state, each) for each in entries]
    assert [line["momentum"] for line in again] == used


def test_the_counter_outlives_the_process_in_the_log_and_in_snapshots() -> None:
    before, sessions = begun("a-0", "a-1", steps=200)
    trained(before, sessions, range(1, 30))
    history = History.of(before.entries)
    heads = before.state.history.heads
    assert [each.merges for _, each in sorted(heads.items())] == [3, 4]
    for found in (history, documents.from_document(History, documents.to_document(history))):
        assert found.heads == heads
        one = side(history=found, job=before.job).start()
        assert momentum(one.state.sync, one.state.history.heads[1].merges, 200) == f32(4 / 12)


def test_the_momentum_follows_the_length_that_the_job_has_now() -> None:
    one, sessions = begun("a-0", "a-1", steps=800)
    trained(one, sessions, range(1, 10))
    one.feed(one.shard.length_heard(Length(revision=1, steps=80_000), one.now))
    assert trained(one, sessions, range(10, 18)) == [f32(1 / 101)]


def test_of_a_length_in_tokens_the_ticks_are_those_that_its_tokens_take() -> None:
    """Two learners of 10 tokens a step: 16,000 tokens are 800 ticks, of 100 merges."""
    one, sessions = begun("a-0", "a-1", steps=None, tokens=16_000)
    used = trained(one, sessions, range(1, 34))
    assert used == pytest.approx([k / (k + 10) for k in range(4)], rel=0.03)
    one.feed(one.shard.length_heard(Length(revision=1, tokens=64_000), one.now))
    assert trained(one, sessions, range(34, 42)) == pytest.approx([4 / (4 + 20)], rel=0.03)


def test_a_process_that_takes_over_expects_as_many_ticks_in_all() -> None:
    """Tick and tokens are those of the whole run, and not of a process."""
    before, sessions = begun("a-0", "a-1", steps=None, tokens=16_000)
    trained(before, sessions, range(1, 34))
    state = side(history=History.of(before.entries), job=before.job).start().state
    found = ticks_expected(state.ending.length, state.clock.tick, state.sessions.tokens)
    assert found == pytest.approx(800, rel=0.05)


def test_in_lock_step_the_clock_moves_with_the_commit_so_the_round_has_the_tick() -> None:
    one, sessions = begun(
        "a-0", "a-1", steps=None, tokens=16_000, overlap=0, lockstep=True, quorum=2
    )
    used = []
    for due in range(4, 28, 4):
        for session in sessions:
            one.report(session, due, steps=min(due, 8), tokens=10 * due, waiting=True)
        for session in sessions:
            one.offer(session, due // 4 % 2, min(due, 8), t_m=due)
        used += [each.momentum for each in one.take(MergeOffers) if each.slice == 0]
    assert used == [f32(k / (k + 10)) for k in range(3)]
