"""Whatever a peer says, in whatever order: no exception, the log still starts, others still commit.

A shard's rules with an honest learner in region a, and a peer that may say anything as region b, as
its certificate allows (rule 37). The peer's messages have extreme and random fields (peer_side).
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Expected, Fragments, Region
from atoll_protos.names import split_slot
from atoll_syncer.model.effects import Ask, EndProcess, Send, SendReply, StorePrevious
from atoll_syncer.model.log import Committed, from_document, to_document
from atoll_syncer.rules.status import status
from unit.syncer.peer_side import fields, messages
from unit.syncer.shard_side import KEY, RUN, Side, begun, digest, run_file, side, step_all, version

STEPS = 10**6
TRAINED = range(1, 13)
ALWAYS_THE_SAME = settings(  # so that a failure is of a change
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def training(**sync: Any) -> Side:
    one, sessions = begun("a-0", steps=STEPS, **sync)
    train(one, sessions[0], TRAINED)
    return one


def restarted(*lost: int) -> Side:
    entries, expected = (
        tuple(training().entries),
        Expected(regions=(Region(name="a", learners=2), Region(name="b", learners=1))),
    )
    one = side(entries=entries, job=run_file(steps=STEPS), fresh=False, expected=expected).start()
    return one.feed(one.shard.lost(set(lost), one.now)) if lost else one


def of_the_second_shard() -> Side:
    one = side(shard=1, job=run_file(shards=2, steps=STEPS), fresh=False).start()
    return one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))


BEGINNINGS: dict[str, Callable[[], Side]] = {
    "training": training,
    "lock-step": lambda: training(lockstep=True, overlap=1),
    "fragments that follow from the model": lambda: training(fragments=Fragments.AUTO),
    "restarted": restarted,
    "an object is lost": lambda: restarted(0),
    "no version yet": lambda: side(job=run_file(steps=STEPS)).start(),
    "no run yet": lambda: side(job=run_file(steps=STEPS), fresh=False).start(),
    "second shard": of_the_second_shard,
}


def train(one: Side, session: int, ticks: range) -> int:
    """An honest learner that answers what it is asked; returns the commits meanwhile."""
    before = commits(one)
    for t_m in ticks:
        step_all(one, [session], range(t_m, t_m + 1))
        one.feed(one.shard.tick_time(one.now))
        for slice_ in one.state.fragments if one.state.sync.lockstep else ():
            due = slice_ in one.state.history.heads and t_m % 8 == 4 * slice_ and t_m >= 4
            if due:
                one.offer(session, slice_, t_m, t_m=t_m)
        for asked, call in one.sent("call"):
            if asked == session:
                one.offer(session, call.slice, t_m)
    return commits(one) - before


def commits(one: Side) -> int:
    return sum(isinstance(entry, Committed) for entry in one.entries)


def of_region_b(slot: str) -> bool:
    """What `admission` lets a learner of region b say."""
    try:
        return split_slot(slot)[0] == "b"
    except SpecError:
        return True


JOIN = {
    "run": RUN,
    "incarnation": 1,
    "held": [version(0, 0), version(1, 1)],
    "epochs_seen": [1],
    "tick_seen": 9,
}
NAMES_A_RUN = {"run", "held", "incarnation"}
HONEST = {"protocol", "run_hash"}  # with others a Join is refused before it is read
joins = st.builds(
    lambda honest, lie: {
        **{key: JOIN[key] for key in honest},
        **{key: each for key, each in lie.items() if key not in HONEST},
    },
    st.sets(st.sampled_from(sorted(JOIN))),
    fields(pb.Join.DESCRIPTOR),
)
actions = st.one_of(
    st.tuples(st.just("join"), joins),
    st.tuples(st.just("say"), messages(pb.ToShard)),
    st.tuples(st.just("report"), fields(pb.Report.DESCRIPTOR)),
    st.tuples(st.just("send"), messages(pb.Transfer)),
    st.tuples(st.just("answer"), st.lists(messages(pb.SlotMerged), max_size=2)),
    st.tuples(st.just("hang up"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 2.0, 31.0])),
)


class Peer:
    """Says anything; forgets a session that has ended."""

    def __init__(self, one: Side) -> None:
        self.one, self.session = one, 0

    def does(self, kind: str, what: Any) -> None:
        one, now = self.one, self.one.now
        match kind:
            case "join":
                if not one.state.history.run:  # whoever names a run first is believed (rule 2)
                    what = {key: each for key, each in what.items() if key not in NAMES_A_RUN}
                slot = what.pop("slot", "b-0")
                instance = what.pop("instance", "liar")
                if of_region_b(slot) or what.get("observer"):
                    self.session = one.join(slot, instance=instance or "liar", **what)
            case "say":
                one.feed(one.shard.message(self.session, what, now))
            case "report":
                one.report(self.session, **{"t_m": 1, "steps": 1, **what})
            case "send":
                self.sends(what)
            case "answer":
                for session, wanted in one.sent("send_held"):
                    if session == self.session:
                        one.held(session, wanted.version, lineage=what)
            case "hang up":
                one.leave(self.session)
            case "wait":
                one.wait(what)

    def sends(self, transfer: pb.Transfer) -> None:
        """A transfer comes whole only if its head was accepted."""
        one = self.one
        before = len(one.effects)
        one.feed(one.shard.transfer_started(self.session, transfer, one.now))
        if any(type(each).__name__ == "Accept" for each in one.effects[before:]):
            one.feed(one.shard.transfer_verified(self.session, transfer, one.now))


def nothing_is_broken(one: Side) -> None:
    """All that is sent can be sent, and every question has an answer."""
    for effect in one.effects:
        assert not isinstance(effect, EndProcess), effect
        if isinstance(effect, Send | SendReply):
            effect.message.SerializeToString()
    status(one.state, one.now).SerializeToString()
    for session in one.state.sessions.open:
        for fragment in one.state.fragments:
            one.shard.publish(session, fragment)


def the_log_starts(one: Side) -> Side:
    """Another process reads what is durable."""
    entries = tuple(from_document(to_document(entry)) for entry in one.entries)
    other = side(shard=one.state.number, entries=entries, job=one.job, fresh=False).start()
    nothing_is_broken(other)
    return other


def an_honest_learner_commits(one: Side) -> None:
    """It holds the newest versions, and waits until what others have claimed is given up."""
    held = [one.state.head(fragment) for fragment in sorted(one.state.history.heads)]
    fields: dict[str, Any] = {"instance": "honest", "run": RUN, "held": held}
    fields["incarnation"] = 0 if one.state.registrar else 1
    session = one.join("a-0", **fields)
    for _ in range(3):
        answer(one, session, held)
        if session not in one.state.sessions.open:
            one.wait(31)
            session = one.join("a-0", **fields)
    assert session in one.state.sessions.open, one.ends()
    one.model(session)
    for _ in range(26):
        answer(one, session, held)
        one.now += 5
        one.feed(one.shard.tick_time(one.now))
    one.report(session, 0)
    begin = one.state.clock.tick - one.state.clock.tick % 8 + 8
    one.report(session, begin, steps=1)
    assert train(one, session, range(begin + 1, begin + 40))


def answer(one: Side, session: int, held: list[pb.SliceVersion]) -> None:
    """What the store, an honest learner and the registrar give when they are asked."""
    store_previous(one)
    for ask in one.take(Ask):
        if isinstance(ask.request, pb.MarkBegunRequest):
            one.feed(one.shard.answered(pb.MarkBegunReply(run=RUN), one.now))
    for asked, wanted in one.sent("send_held"):
        known = [each for each in held if each.slice == wanted.version.slice]
        if asked == session and known:
            one.held(session, known[0])
    if one.state.seed.session == session and not one.state.seed.arrived:
        one.seed(session)


def store_previous(one: Side) -> None:
    for lost in one.take(StorePrevious):
        made = digest(lost.slice, lost.number, one.state.term.epoch), f"object {lost.number}"
        one.feed(one.shard.merged(lost.slice, *made, one.now))


def check(beginning: str, said: list[tuple[str, Any]]) -> None:
    one = BEGINNINGS[beginning]()
    peer = Peer(one)
    for kind, what in said:
        peer.does(kind, dict(what) if isinstance(what, dict) else what)
        nothing_is_broken(one)
        store_previous(one)
        one.effects.clear()
    the_log_starts(one)
    for session in list(one.instances):
        one.leave(session)
    an_honest_learner_commits(one)
    nothing_is_broken(one)
    the_log_starts(one)


def fuzz(beginning: str, count: int) -> None:
    @settings(ALWAYS_THE_SAME, max_examples=count)
    @given(st.lists(actions, max_size=12))
    def any_words(said: list[tuple[str, Any]]) -> None:
        check(beginning, [("join", {}), *said])

    any_words()


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_whatever_a_peer_says_others_go_on_rule_38(beginning: str) -> None:
    fuzz(beginning, 15)


@pytest.mark.seeds
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_whatever_a_peer_says_in_more_sequences_rule_38(beginning: str) -> None:
    fuzz(beginning, 100)


calls = st.one_of(
    *(
        messages(kind)
        for kind in (
            pb.HelloRequest,
            pb.MarkBegunRequest,
            pb.ReportFinalRequest,
            pb.SetOwnerRequest,
        )
    )
)


@settings(ALWAYS_THE_SAME, max_examples=30)
@given(st.lists(calls, max_size=8))
def test_whatever_is_called_the_log_still_starts_rule_38(requests: list[Any]) -> None:
    one = side(job=run_file(shards=2, steps=STEPS)).start()
    for token, request in enumerate(requests):
        if isinstance(request, pb.HelloRequest):
            request.run_hash = one.job.hash
        if not one.shard.objection(request):
            one.feed(one.shard.registrar_request(token, request, one.now))
        nothing_is_broken(one)
    the_log_starts(one)


def test_an_epoch_that_is_named_before_version_0_shows_no_loss_rule_47() -> None:
    one = BEGINNINGS["no version yet"]()
    peer = Peer(one)
    peer.does("join", {**JOIN, "epochs_seen": [2]})
    peer.does("join", {"held": JOIN["held"], "epochs_seen": [1]})
    an_honest_learner_commits(one)
