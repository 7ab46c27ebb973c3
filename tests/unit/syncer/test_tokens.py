"""What a shard counts as trained, over restarts, instances, losses and the end (rule 35)."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.length import Length
from atoll_protos.names import COUNTER_MAX
from atoll_syncer.metrics import Metrics
from atoll_syncer.model import log, snapshot
from atoll_syncer.model.effects import Append, Tape
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Trained
from atoll_syncer.rules.status import status
from unit.syncer.recovery_side import asked, empty_shard, held_by
from unit.syncer.shard_side import RUN, Side, begun, head_of, side, version
from unit.syncer.test_shares import limited


def restarted(one: Side) -> Side:
    return side(entries=tuple(one.entries), job=one.job).start()


def go_on(one: Side, session: int, tokens: int) -> None:
    """This learner trains until slice 0 is due, and alone answers its Call."""
    t_m = 5
    while 0 not in one.state.rounds.open:
        t_m, one.now = t_m + 1, one.now + 1.0
        one.report(session, t_m, tokens=tokens)
    give(one, session, 0, t_m)


def give(one: Side, session: int, fragment: int, steps: int) -> None:
    """The slice is due; this learner alone answers its Call, and the grace passes."""
    one.offer(session, fragment, steps)
    one.wait(10.0)


def committed(*reports: int) -> tuple[Side, list[int]]:
    """Learners a-0 and b-0 have reported so many tokens; a-0 alone is in the commit after that."""
    one, sessions = begun("a-0", "b-0")
    for t_m in range(1, 6):
        one.now += 1.0
        for session, tokens in zip(sessions, reports, strict=True):
            one.report(session, t_m, tokens=tokens * t_m // 5)
    give(one, sessions[0], 1, 5)
    assert [part.slot for part in head_of(one.entries, 1).participants] == ["a-0"]
    return one, sessions


# ------------------------------------------------------------ what a version's entry says


def test_a_restart_keeps_what_was_trained_up_to_the_last_version_whoever_is_in_it() -> None:
    one, _ = committed(400, 1000)
    assert head_of(one.entries, 1).tokens == one.state.sessions.tokens == 1400
    assert restarted(one).state.sessions.tokens == 1400


def test_a_learner_that_lives_on_counts_exactly_once_it_reports_again() -> None:
    one, sessions = committed(400, 1000)
    one.report(sessions[1], 5, tokens=1300)
    assert one.state.sessions.tokens == 1700
    following = restarted(one)
    assert following.state.sessions.tokens == 1400  # it has trained on since the version
    for slot in ("a-0", "b-0"):
        following.join(slot, run=RUN, incarnation=1)
    assert following.state.sessions.tokens == 1400
    following.report(2, 6, tokens=1600)
    assert following.state.sessions.tokens == 2000
    shown = {each.slot: each for each in status(following.state, following.now).slots}
    assert (shown["b-0"].tokens, shown["b-0"].tokens_here) == (1600, 600)
    assert (shown["a-0"].tokens, shown["a-0"].tokens_here) == (400, 0)


def test_the_next_instance_adds_to_what_all_before_it_have_trained() -> None:
    one, _ = committed(400, 1000)
    for number, more in ((2, 70), (3, 5)):
        following = restarted(one)
        session = following.join("b-0", instance=f"number {number}")
        assert following.state.history.taken["b-0"].incarnation == number
        following.report(session, 1, tokens=more)
        one = following
    assert one.state.sessions.tokens == 1400 + 5  # the 70 are in no entry: they are below one round
    assert restarted(one).state.sessions.tokens == 1400


def test_an_entry_names_only_slots_whose_counts_the_log_does_not_have() -> None:
    one, sessions = committed(400, 1000)
    assert {*head_of(one.entries, 1).trained} == {"a-0", "b-0"}
    go_on(one, sessions[0], 500)
    trained = {"a-0": Trained(incarnation=1, now=500, said=500)}
    assert head_of(one.entries, 0).trained == trained
    assert restarted(one).state.sessions.tokens == 1500


def test_a_version_that_is_on_its_way_while_a_slot_is_taken_does_not_count_for_its_successor() -> (
    None
):
    """Its entry names what the one before has trained, and comes after the successor's."""
    one, (first, *_) = committed(400, 1000)
    one.leave(2)
    one.durable = False
    go_on(one, first, 500)
    (version_of_0,) = one.queue
    one.queue.clear()
    one.join("b-0", instance="second")
    one.queue.append(version_of_0)
    one.flush()
    assert one.state.history.trained["b-0"] == Trained(incarnation=2, before=1000)
    one.report(3, 1, tokens=30)
    assert one.state.sessions.tokens == 500 + 1030


def test_what_is_above_a_regions_limit_stays_uncounted_over_a_restart_rule_41() -> None:
    """The learner says its total again; only what it adds to that counts, up to the limit."""
    one, _ = begun("b-0")
    one.feed(one.shard.expected_heard(limited(12, "b"), one.now))
    for t_m in range(1, 6):
        one.now += 1.0
        one.report(1, t_m, tokens=200 * t_m)
    give(one, 1, 1, 5)
    assert one.state.sessions.tokens == 60
    following = restarted(one)
    following.feed(following.shard.expected_heard(limited(12, "b"), one.now))
    following.report(following.join("b-0", run=RUN, incarnation=1), 6, tokens=1010)
    assert following.state.sessions.tokens == 70


# ------------------------------------------------------------ the end of a process


def test_a_shard_that_is_told_to_stop_writes_what_its_learners_have_reported_since() -> None:
    one, sessions = committed(400, 1000)
    assert one.shard.stopping() == []
    one.report(sessions[0], 5, tokens=500)
    one.leave(sessions[0])
    (append,) = one.shard.stopping()
    assert append == Append(log.Counted(trained={"a-0": Trained(incarnation=1, now=500, said=500)}))
    one.feed([append])
    assert restarted(one).state.sessions.tokens == one.state.sessions.tokens == 1500
    assert one.shard.stopping() == []


def test_a_process_whose_term_is_not_durable_writes_nothing_when_it_stops() -> None:
    one, sessions = committed(400, 1000)
    one.report(sessions[0], 5, tokens=500)
    one.state.term.durable = False
    assert one.shard.stopping() == []


# ------------------------------------------------------------ losses


def lineage(slot: str, **trained: int) -> pb.SlotMerged:
    return pb.SlotMerged(slot=slot, incarnation=1, trained=pb.Trained(**trained))


def test_a_shard_without_its_log_learns_the_tokens_of_all_slots_from_a_learner_rule_22() -> None:
    one = empty_shard("a-0")
    session = held_by(one, "a-0", 9, 8, incarnation=2)
    one.report(session, 9, tokens=230)
    assert one.state.sessions.tokens == 230
    one.wait(1.0)
    said = [
        lineage("a-0", incarnation=2, before=1000, now=200, said=200),
        lineage("b-0", incarnation=4, before=500, now=7, said=7),
    ]
    for number, (asked_of, fragment, held) in enumerate(((session, 0, 9), (session, 1, 8))):
        assert asked(one) == [(asked_of, fragment, held)]
        one.held(session, version(fragment, held), lineage=said[: 2 - number])
        one.wait(1.0)
    assert one.state.serving
    assert one.state.sessions.tokens == 1230 + 507
    (shown,) = status(one.state, one.now).slots
    assert (shown.tokens, shown.tokens_here) == (1230, 230)
    again = side(shard=1, job=one.job, entries=tuple(one.entries)).start()
    assert again.state.sessions.tokens == 1230 + 507  # what it had heard itself is written, too


def test_a_publish_tells_learners_what_all_slots_have_trained() -> None:
    one, sessions = committed(400, 1000)
    publish = one.shard.publish(sessions[1], 1)
    assert publish is not None
    assert [(each.slot, each.trained.now) for each in publish.lineage] == [("a-0", 400)]


def test_a_lineage_with_impossible_tokens_is_refused_rule_38() -> None:
    one = empty_shard("a-0")
    session = held_by(one, "a-0", 9, 8)
    one.wait(1.0)
    one.ends()
    one.held(session, version(0, 9), lineage=[lineage("a-0", now=COUNTER_MAX + 1)])
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]


# ------------------------------------------------------------ counts of two origins


KNOWN = Trained(incarnation=2, before=100, now=30, said=50)


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (Trained(), KNOWN),
        (Trained(incarnation=2, before=90, now=40, said=60), {"now": 40, "said": 60}),
        (Trained(incarnation=2, before=110, now=20, said=20), {"before": 110}),
        (Trained(incarnation=1, before=60, now=70, said=70), {"before": 130}),
        (Trained(incarnation=1, before=60, now=7, said=7), KNOWN),
        (Trained(incarnation=3, now=5, said=5), Trained(incarnation=3, before=130, now=5, said=5)),
    ],
)
def test_two_counts_of_a_slot_make_one_in_either_order(
    other: Trained, both: Trained | dict[str, int]
) -> None:
    if isinstance(both, dict):
        both = Trained(**{"incarnation": 2, "before": 100, "now": 30, "said": 50, **both})
    assert KNOWN.also(other) == other.also(KNOWN) == both


def test_the_counts_are_in_the_log_and_in_a_snapshot_of_it() -> None:
    one, _ = committed(400, 1000)
    counted = log.Counted(trained={"a-1": KNOWN})
    entries = [log.from_document(log.to_document(each)) for each in (*one.entries, counted)]
    assert entries[-1] == counted
    history = History.of(entries)
    assert {slot: each.total for slot, each in history.trained.items()} == {
        "a-0": 400,
        "b-0": 1000,
        "a-1": 130,
    }
    assert snapshot.from_document(snapshot.to_document(history)).trained == history.trained


# ------------------------------------------------------------ who is told


def test_status_metrics_and_the_tape_say_the_same_number_also_after_a_restart() -> None:
    one, _ = committed(400, 1000)
    (line,) = [e.record for e in one.take(Tape) if e.record["event"] == "commit"]
    (again,) = [one.shard.commit_again(e) for e in one.entries if isinstance(e, log.Committed)]
    assert line["tokens"] == again["tokens"] == 1400
    for process in (one, restarted(one)):
        registry = CollectorRegistry()
        Metrics(registry).refresh(process.state, 0, 0, process.now)
        assert status(process.state, process.now).trained == 1400
        assert "atoll_syncer_tokens 1400.0" in generate_latest(registry).decode()


def test_a_job_in_tokens_ends_when_they_are_trained_whichever_process_counts() -> None:
    one, _ = committed(400, 1000)
    for length, over in ((1400, True), (1401, False)):
        following = restarted(one)
        following.state.ending.length = Length(tokens=length)
        assert following.state.over is over
