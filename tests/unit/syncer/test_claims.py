"""Whatever a learner holds, as it says and gives it: what a shard commits learners take (rule 47).

The rules of both sides meet here: a shard with an honest learner and one that claims anything, and
what an honest learner's rules say of all versions that come of it.
"""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Expected, Region
from atoll_syncer.model.log import Committed
from atoll_syncer.rules.recovery import steps_to
from atoll_worker.rules import validation
from unit.syncer.peer_side import messages
from unit.syncer.shard_side import RUN, Side, side, version
from unit.syncer.test_fuzz import ALWAYS_THE_SAME, STEPS, restarted, the_log_starts, train, training
from unit.worker.fake_driver import learner_side

NUMBERS = st.sampled_from(
    (0, 1, 2, 3, 5, 30, 900, 1_010, 1_011, 1_012, 1_017, 10**4, STEPS, 5 * 10**6, 6 * 10**6)
) | st.sampled_from((6_001_001, 10**7, 12 * 10**6, 10**9, 2**40, 2**53 - 1, 2**53, 2**64 - 1))
LINEAGE = st.lists(
    messages(pb.SlotMerged)
    | st.builds(
        pb.SlotMerged,
        slot=st.sampled_from(["a-0", "a-1", "b-0"]),
        incarnation=st.sampled_from([0, 1, 2, 900_000]),
        cursor=NUMBERS,
        trained=st.builds(pb.Trained, incarnation=st.integers(0, 2), before=NUMBERS, now=NUMBERS),
    ),
    max_size=3,
)
TICKS_MAX = 12 * 10**6  # of a message in a job of STEPS
HONEST = 1  # the session of a-0
CLAIMS = st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans(), NUMBERS, LINEAGE), max_size=4)


class Claims:
    """One learner that says what it holds, in its Join or in a report, and may give it."""

    def __init__(self, one: Side) -> None:
        self.one, self.session = one, 0

    def claims(self, held: int, given: int, by_join: bool, tick: int, lineage: Any) -> None:
        one, name = self.one, "f" * 64
        if self.session not in one.state.sessions.open or by_join:
            one.leave(self.session)
            named: dict[str, Any] = {"held": [version(0, held, name=name)]} if by_join else {}
            self.session = one.join("b-0", "liar", run=RUN, tick_seen=tick, **named)
        if self.session in one.state.sessions.open:
            slices = [pb.SliceProgress(slice=0, held=held, digest=name[:16])]
            one.report(self.session, 1, slices=slices)
        one.wait(31)
        for session, wanted in one.sent("send_held"):
            if session == self.session in one.state.sessions.open:
                given_ = max(given, wanted.version.version.number)
                one.held(session, version(0, given_, name=name), lineage=lineage)
        one.wait(31)


def learners_take(one: Side) -> None:
    """An honest learner of the same job objects to nothing that this shard now sends."""
    state = learner_side(steps=STEPS).exchange.state
    state.run, state.shards[0].epoch = one.state.history.run, one.state.term.epoch
    for fragment, head in one.state.history.heads.items():
        named = pb.Publish(version=one.state.head(fragment), tick=one.state.clock.tick)
        assert validation.of_publish(state, 0, named) == "", head
    session = one.join("a-1", "fresh")
    for receiver, publish in [(n, one.shard.publish(session, n)) for n in one.state.history.heads]:
        assert publish is None or validation.of_publish(state, 0, publish) == "", receiver
    one.leave(session)


@pytest.mark.parametrize("lost", [False, True])
def test_whatever_is_held_learners_take_what_comes_of_it_rule_47(lost: bool) -> None:
    @settings(ALWAYS_THE_SAME, max_examples=25)
    @given(CLAIMS)
    @example([(TICKS_MAX, TICKS_MAX, True, TICKS_MAX, [])])
    def any_claims(said: list[Any]) -> None:
        one = restarted(0) if lost else training()
        state, tokens = one.state, one.state.sessions.tokens
        cursors = dict(state.history.cursors)
        peer = Claims(one)
        for each in said:
            peer.claims(*each)
            learners_take(one)
        recovered = [e for e in one.entries if isinstance(e, Committed) and e.recovered]
        if not lost:
            assert len(recovered) <= 1
            assert all(e.number <= state.clock.tick + 1_001 for e in recovered)
            assert state.sessions.tokens == tokens
            assert {slot: state.history.cursors[slot] for slot in cursors} == cursors
        other = the_log_starts(one)
        learners_take(other)
        report_of_the_newest(other)

    any_claims()


def report_of_the_newest(one: Side) -> None:
    """Whoever has adopted the newest versions says so, and is heard."""
    session = one.join("a-0", "honest")
    one.report(session, 1)
    assert session in one.state.sessions.open, one.ends()


def test_claims_stop_no_honest_learner_rule_47() -> None:
    """One report of a high version, with values that are given: others go on (P1)."""
    for number in (30, 10**6, 10**9, 2**40):
        one = training()
        peer = Claims(one)
        peer.claims(number, number, False, 0, [])
        one.leave(peer.session)
        learners_take(one)
        assert train(one, HONEST, range(17, 41)) >= 4, number


def put_back(**fields: Any) -> tuple[Side, list[pb.SliceVersion]]:
    """A shard whose store lacks the last two commits without a trace; the versions that it had."""
    one = training()
    had = [one.state.head(fragment) for fragment in one.state.fragments]
    commits = [n for n, entry in enumerate(one.entries) if isinstance(entry, Committed)]
    entries = tuple(one.entries[: commits[-2]])
    return side(entries=entries, job=one.job, fresh=False, **fields).start(), had


def test_a_store_that_was_put_back_has_its_versions_again_from_learners_rule_47() -> None:
    one, had = put_back()
    numbers = [each.version.number for each in had]
    assert [head.number for head in one.state.history.heads.values()] < numbers
    session = one.join("a-0", "a-0-process", run=RUN, held=had, incarnation=1, epochs_seen=[1])
    one.report(session, 12, cursor=12)
    for _ in had:
        one.wait(1)
        for _, wanted in one.sent("send_held"):
            lineage = [pb.SlotMerged(slot="a-0", incarnation=1, base=1, capture=9, cursor=9)]
            one.held(session, had[wanted.version.slice], lineage=lineage)
    assert one.state.recovery is None
    assert not one.ends()
    heads = one.state.history.heads
    assert [heads[n].number for n in one.state.fragments] == [number + 1 for number in numbers]
    assert one.state.history.cursors == {"a-0": 9}
    publish = one.shard.publish(session, 0)
    assert publish is not None
    assert (publish.merged.base, publish.merged.capture) == (1, 9)


@pytest.mark.parametrize(
    ("others", "steps"),
    [
        pytest.param(0, 2, id="one of three"),
        pytest.param(1, 0, id="two of three hold this value"),
    ],
)
def test_what_most_learners_hold_is_not_measured_rule_47(others: int, steps: int) -> None:
    listed = Expected(regions=(Region(name="a", learners=3),))
    one, had = put_back(expected=listed)
    number = one.state.history.heads[0].number + 2
    sessions = [
        one.join(f"a-{n}", run=RUN, held=[version(0, number)] if n <= others else had[:0])
        for n in range(3)
    ]
    one.wait(1)
    wanted = next(each for _, each in one.sent("send_held"))
    assert wanted.version.slice == 0
    held = pb.Transfer(held=pb.Held(version=version(0, number)))
    assert steps_to(one.state, sessions[0], held) == steps
    offer = pb.Transfer(offer=pb.Offer(slice=0))
    assert steps_to(one.state, sessions[0], offer) == 0
    one.feed(one.shard.lost({0}, one.now))
    one.leave(sessions[0])
    assert steps_to(one.state, sessions[1], held) == 0  # it may be any
