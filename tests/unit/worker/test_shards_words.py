"""What a shard says is checked like its transfers: any words end its session, and nothing else."""

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Fail
from atoll_worker.rules.learner_state import Dial, HangUp, SendMessage, SendOffer
from unit.worker.fake_driver import RUN, learner_side

HONEST, LIAR = 0, 1
EXTREMES = [0, 1, 2, 3, 1 << 20, 1 << 31, (1 << 32) - 1, (1 << 53) - 1, 1 << 53, (1 << 64) - 1]
LONG = st.sampled_from(EXTREMES) | st.integers(0, (1 << 64) - 1)
SHORT = st.sampled_from([each for each in EXTREMES if each < 1 << 32])
TEXT = st.sampled_from([RUN, "", "x", "y" * 600, "1/0 v1 e1"])
VERSION = st.builds(pb.Version, run=TEXT, number=LONG, epoch=LONG, digest=TEXT)
NAMED = st.builds(pb.SliceVersion, slice=SHORT, version=VERSION)
NAMEDS = st.lists(NAMED, max_size=3)
LENGTH = st.builds(
    pb.Length, revision=LONG, steps=LONG, tokens=LONG, ends=st.lists(LONG, max_size=3)
)
WELCOME = st.builds(
    pb.Welcome,
    run=TEXT,
    incarnation=LONG,
    epoch=LONG,
    session=LONG,
    tick=LONG,
    cursor=LONG,
    needs_model=st.booleans(),
    newest=NAMEDS,
    secret=TEXT,
    data_state=st.none() | st.binary(max_size=4),
    length=LENGTH,
    lanes=SHORT,
)
TENSOR = st.builds(pb.Tensor, name=TEXT, shape=st.lists(LONG, max_size=3), dtype=TEXT, merge=TEXT)
END = st.builds(
    pb.End,
    code=st.integers(0, 30),
    reason=TEXT,
    retry=st.just(True),
    model=st.none() | st.builds(pb.Model, tensors=st.lists(TENSOR, max_size=2)),
)
MESSAGES = st.one_of(
    st.builds(pb.ToLearner, welcome=WELCOME),
    st.builds(pb.ToLearner, call=st.builds(pb.Call, slice=SHORT, base=LONG, due=LONG)),
    st.builds(pb.ToLearner, tick=st.builds(pb.Tick, tick=LONG, length=LENGTH)),
    st.builds(pb.ToLearner, send_held=st.builds(pb.SendHeld, version=NAMED)),
    st.builds(pb.ToLearner, final=st.builds(pb.Final, versions=NAMEDS)),
    st.builds(pb.ToLearner, end=END),
    st.just(pb.ToLearner()),
)
MERGED = st.builds(pb.Merged, incarnation=LONG, base=LONG, capture=LONG)
LINEAGE = st.builds(pb.SlotMerged, slot=TEXT, incarnation=LONG, base=LONG, capture=LONG)
PUBLISH = st.builds(
    pb.Publish,
    version=NAMED,
    difference=st.booleans(),
    base=LONG,
    merged=st.none() | MERGED,
    tick=LONG,
    last=st.booleans(),
    lineage=st.lists(LINEAGE, max_size=2),
)


class Words(RuleBasedStateMachine):
    """A learner in training between two shards, of which one says anything at any time."""

    @initialize(lockstep=st.booleans(), joined=st.booleans())
    def begin(self, *, lockstep: bool, joined: bool) -> None:
        self.lockstep, self.dialled = lockstep, set[int]()
        self.side = learner_side(shards=2, lockstep=lockstep)
        if joined:
            self.side.begin()
            return
        self.side.feed(self.side.exchange.start(self.side.now))
        self.side.welcome(HONEST)
        self.side.feed(self.side.exchange.connected(LIAR, self.side.now))

    @rule(message=MESSAGES)
    def says(self, message: pb.ToLearner) -> None:
        self.side.feed(self.side.exchange.message(LIAR, message, self.side.now))

    @rule(publish=PUBLISH, whole=st.booleans())
    def publishes(self, publish: pb.Publish, whole: bool) -> None:
        side = self.side
        if side.exchange.publish_started(LIAR, publish, side.now) and whole:
            side.feed(side.exchange.published(LIAR, publish, side.now))

    @rule(fragment=st.integers(0, 1), number=st.integers(0, 6))
    def publishes_what_it_should(self, fragment: int, number: int) -> None:
        publish = self.side.publish(LIAR, fragment, number)
        self.publishes(publish, whole=True)

    @rule()
    def steps(self) -> None:
        if self.side.exchange.state.started:
            self.side.step()
            self.side.again()

    @rule(seconds=st.sampled_from([0.1, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        """The honest shard is never silent for long (rule 44)."""
        self.side.now += seconds
        self.side.exchange.heard(HONEST, self.side.now)
        self.side.feed(self.side.exchange.tick_time(self.side.now))

    @rule(tick=st.integers(0, 40))
    def dialled_again(self, tick: int) -> None:
        """The shard is itself again, or one that has never lied."""
        if LIAR in self.dialled:
            self.dialled.discard(LIAR)
            self.side.welcome(LIAR, tick=tick, epoch=self.side.exchange.state.shards[LIAR].epoch)

    @rule()
    def an_honest_shard_is_served(self) -> None:
        """Its values are adopted, its Calls are answered, and it hears of every step."""
        side, state = self.side, self.side.exchange.state
        if state.finished or state.failed:
            return
        if not state.started or self.lockstep:
            self.time_passes(2.0)
            assert [shard for shard, _ in side.messages("report") if shard == HONEST]
            return
        base = state.slices[HONEST, 0].number + 1
        side.value(HONEST, 0, base)
        side.step()
        assert state.slices[HONEST, 0].number == base
        side.call(HONEST, 0, base)
        side.step()
        sent = [each.offer for each in side.take(SendOffer) if each.shard == HONEST]
        assert [(offer.slice, offer.base, offer.capture) for offer in sent] == [(0, base, 1)]

    @invariant()
    def everything_can_be_done(self) -> None:
        """What the rules ask for fits its messages; who was hung up on is dialled again."""
        if not hasattr(self, "side"):
            return
        side, state = self.side, self.side.exchange.state
        for sent in side.take(SendMessage):
            sent.message.SerializeToString()
        side.exchange.deadline()
        for each in side.take(HangUp):
            assert each.shard == LIAR
            side.lose(each.shard)
            assert state.shards[each.shard].dial_at is not None
        self.dialled |= {each.shard for each in side.take(Dial)}
        assert state.run in ("", RUN)
        assert state.incarnation == 3
        if any(isinstance(each, Fail) for each in side.inbox):  # another run, or a seed: rule 2
            assert state.failed


Words.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWords = Words.TestCase


WELL: dict[str, Any] = {"run": RUN, "incarnation": 3, "epoch": 1, "session": 1}
NO_WELCOMES: list[dict[str, Any]] = [
    {"incarnation": 4},
    {"epoch": 1 << 60},
    {"tick": 1 << 60},
    {"cursor": 1 << 53},
    {"lanes": 1 << 20},
    {"length": pb.Length(ends=range(1, 2000))},
    {"length": pb.Length(ends=[1 << 63])},
    {"length": pb.Length(ends=[0, 5])},
    {"length": pb.Length(steps=1 << 63)},
    {"length": pb.Length(revision=1 << 63)},
    {"run": ""},
    {"secret": "s" * 10_000},
    {"data_state": bytes((1 << 20) + 1)},
]


@pytest.mark.parametrize("fields", NO_WELCOMES, ids=lambda fields: next(iter(fields)))
def test_a_welcome_that_cannot_be_true_ends_its_session_and_leaves_nothing_rule_38(
    fields: dict[str, Any],
) -> None:
    side = learner_side(shards=2).begin()
    side.lose(LIAR)
    side.feed(side.exchange.connected(LIAR, side.now))
    known = dataclasses.replace(side.exchange.state.shards[LIAR])
    side.receive(LIAR, welcome=pb.Welcome(**{**WELL, **fields}))
    (hang_up,) = side.take(HangUp)
    assert hang_up.reason not in ("", "hung up")
    after = side.exchange.state.shards[LIAR]
    assert (after.tick, after.epoch) == (known.tick, known.epoch)
    side.receive(LIAR, tick=pb.Tick(tick=7))
    assert after.tick == known.tick, "nothing that still comes counts"
    side.end(LIAR, pb.SUPERSEDED)
    assert not side.exchange.state.failed
    side.lose(LIAR)
    side.welcome(LIAR, tick=5)
    assert side.take(HangUp) == []
    assert after.tick == 5


def test_a_shard_in_the_middle_of_a_recovery_may_lack_versions_rule_22() -> None:
    """It was killed when one slice had come back, and the others are still at the learners."""
    side = learner_side(shards=2).begin()
    side.lose(LIAR)
    side.welcome(LIAR, newest=side.newest(LIAR, 0)[:1], epoch=2)
    assert side.take(HangUp) == []
    assert side.exchange.state.shards[LIAR].welcomed


def test_a_final_names_every_slice_of_its_shard_rule_27() -> None:
    side = learner_side(shards=2).begin()
    side.receive(LIAR, final=pb.Final(versions=side.newest(LIAR, 1)))
    assert side.take(HangUp) == []
    side.receive(LIAR, final=pb.Final(versions=side.newest(LIAR, 1)[:1]))
    (hang_up,) = side.take(HangUp)
    assert "1 of its 2" in hang_up.reason


def of_model(**fields: Any) -> pb.End:
    """A refusal for good, with a model of one tensor."""
    return pb.End(code=pb.OTHER_LAYOUT, model=pb.Model(tensors=[pb.Tensor(**fields)]))


@pytest.mark.parametrize(
    "message",
    [
        {"call": pb.Call(slice=9, base=0)},
        {"call": pb.Call(slice=0, base=1 << 53)},
        {"tick": pb.Tick(tick=1 << 63)},
        {"tick": pb.Tick(length=pb.Length(tokens=1 << 60))},
        {"final": pb.Final(versions=[pb.SliceVersion(slice=0)])},
        {"send_held": pb.SendHeld(version=pb.SliceVersion(slice=0))},
        {"welcome": pb.Welcome(**WELL)},
        {"end": pb.End(reason="r" * 20_000)},
        {"end": of_model(name="n" * 600)},
        {"end": of_model(dtype="d" * 600)},
        {"end": of_model(merge="m" * 600)},
        {"end": of_model(shape=[1] * 600)},
        {"end": pb.End(model=pb.Model(tensors=[pb.Tensor()] * 100_001))},
    ],
    ids=lambda message: next(iter(message)),
)
def test_what_cannot_be_true_ends_the_session_of_who_says_it_rule_38(message: Any) -> None:
    side = learner_side(shards=2).begin()
    side.receive(LIAR, **message)
    assert [each.shard for each in side.take(HangUp)] == [LIAR]
    side.lose(LIAR)
    assert side.exchange.state.shards[LIAR].dial_at is not None
    side.step()
    assert [shard for shard, _ in side.messages("report")] == [HONEST]


def test_a_publish_of_a_number_that_no_job_reaches_is_not_received_rule_38() -> None:
    """Once adopted, no honest version would ever be above it."""
    side = learner_side(shards=2).begin()
    for number in (1 << 40, (1 << 64) - 1):
        publish = side.publish(LIAR, 0, number)
        assert not side.exchange.publish_started(LIAR, publish, side.now)
    side.value(LIAR, 0, 1)
