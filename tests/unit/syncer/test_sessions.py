"""Sessions: rules 1, 3, 4, 5, 8, 24 and 25, from a Join to what a lost session leaves."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.layout import TensorSpec, build_layout
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Ask,
    Drop,
    EndSession,
    Exit,
    PublishHead,
    Reply,
    SetModel,
    StoreSeed,
)
from unit.syncer.shard_side import (
    FRAGMENTS,
    KEY,
    RUN,
    Side,
    begun,
    layout_of,
    run_file,
    side,
    step_all,
    version,
)


def test_only_the_registrars_word_starts_a_run_rule_1() -> None:
    one = side(shard=1, job=run_file(shards=2)).start()
    session = one.join("a-0", incarnation=1)
    assert one.sent("welcome") == []
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))
    assert one.state.history.run == RUN
    assert [to for to, _ in one.sent("welcome")] == [session]


def test_a_join_that_comes_before_the_run_is_answered_once_it_is_known_rule_1() -> None:
    one = side(fresh=False).start()
    gone, stays = one.join("a-0"), one.join("a-1")
    one.leave(gone)
    assert one.ends() == []
    one.wait(31.0)
    assert [to for to, _ in one.sent("welcome")] == [stays]
    assert one.state.sessions.early == {}


def test_a_seed_counts_when_all_its_slices_are_there_in_one_entry_rule_1() -> None:
    one = side().start()
    session = one.join("a-0")
    one.model(session)
    one.send(session, pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32))
    assert one.take(StoreSeed) == []
    one.send(session, pb.Transfer(seed=pb.Seed(slice=1), encoding=pb.F32))
    assert len(one.take(StoreSeed)) == 1
    assert len([e for e in one.entries if isinstance(e, log.Seeded)]) == 1


def test_a_seeding_learner_that_dies_half_way_gives_way_to_the_next_rule_1() -> None:
    one = side().start()
    first, second = one.join("a-0"), one.join("a-1")
    one.model(first)
    one.send(first, pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32))
    one.leave(first)
    assert [session for session, _ in one.sent("send_seed")] == [first, second]
    one.send(second, pb.Transfer(seed=pb.Seed(slice=1), encoding=pb.F32))
    assert one.take(StoreSeed) == []


def test_no_round_opens_before_the_mark_is_durable_rule_1() -> None:
    one = side(shard=1, job=run_file(shards=2)).start()
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))
    session = one.join("a-0", incarnation=1)
    one.model(session)
    one.seed(session)
    asked = [ask.request for ask in one.take(Ask)]
    assert pb.MarkBegunRequest(shard=1, run=RUN) in asked
    step_all(one, [session], range(1, 20))
    assert one.sent("call") == []
    one.feed(one.shard.answered(pb.MarkBegunReply(), one.now))
    step_all(one, [session], range(20, 40))
    assert one.sent("call")


def test_a_mark_is_durable_before_it_is_answered_rule_1() -> None:
    one, _ = begun("a-0")
    one.effects.clear()
    for run in (RUN, ""):  # a shard of an earlier version names none
        request = pb.MarkBegunRequest(shard=1, run=run)
        effects = one.shard.registrar_request(7, request, one.now)
        assert effects == [Append(log.Begun(shard=1)), Reply(7, pb.MarkBegunReply(run=RUN))]


def test_a_mark_of_another_run_is_not_made_and_its_caller_ends_rule_1() -> None:
    """It was on its way while the registrar lost its store and began another run."""
    one, _ = begun("a-0")
    request = pb.MarkBegunRequest(shard=1, run="an earlier run")
    effects = one.shard.registrar_request(7, request, one.now)
    assert effects == [Reply(7, pb.MarkBegunReply(run=RUN))]
    entries = (log.RunStarted(run="an earlier run"),)
    other = side(shard=1, job=run_file(shards=2), entries=entries).start()
    other.feed(other.shard.answered(pb.MarkBegunReply(run=RUN), other.now))
    assert [each.code for each in other.take(Exit)] == [ExitCode.OTHER_JOB]
    assert not other.state.seed.marked


def test_a_mark_is_made_by_a_registrar_that_names_no_run_rule_1() -> None:
    """It is of an earlier version, or has lost its log and does not know the run yet."""
    lost = side(fresh=False, job=run_file(shards=2)).start()
    effects = lost.shard.registrar_request(7, pb.MarkBegunRequest(shard=1, run=RUN), lost.now)
    assert effects == [Append(log.Begun(shard=1)), Reply(7, pb.MarkBegunReply())]
    one = side(shard=1, job=run_file(shards=2), entries=(log.RunStarted(run=RUN),)).start()
    one.feed(one.shard.answered(pb.MarkBegunReply(), one.now))
    assert one.take(Exit) == []
    assert one.state.seed.marked


def test_a_welcome_comes_only_after_the_incarnation_is_durable_rules_4_and_5() -> None:
    one = side().start()
    one.durable = False
    one.join("a-0")
    assert one.sent("welcome") == []
    one.flush()
    ((_, welcome),) = one.sent("welcome")
    assert (welcome.incarnation, welcome.run, welcome.epoch) == (1, RUN, 1)


def test_before_its_term_is_durable_a_shard_welcomes_no_learner_rule_20() -> None:
    one = side(entries=(log.RunStarted(run=RUN),))
    one.durable = False
    one.start()
    one.join("a-0")
    assert [(end.code, end.retry) for end in one.ends()] == [(pb.NOT_READY, True)]


def test_an_old_word_changes_nothing_rule_4() -> None:
    """[Without n, a late word locks a slot for good.]"""
    one, _ = begun("a-0")
    one.effects.clear()
    for word, uid in ((0, "first"), (0, "late"), (1, "second")):
        request = pb.SetOwnerRequest(slot="a-0", uid=uid, word=word)
        one.feed(one.shard.registrar_request(1, request, one.now))
    assert [reply.message.word for reply in one.take(Reply)] == [1, 1, 2]
    assert one.state.history.owned["a-0"].uid == "second"


def test_of_two_words_with_one_number_the_first_counts_rule_4() -> None:
    one, _ = begun("a-0")
    one.durable = False
    for uid in ("first", "late"):
        request = pb.SetOwnerRequest(slot="a-0", uid=uid, word=0)
        one.feed(one.shard.registrar_request(1, request, one.now))
    one.flush()
    assert [reply.message.word for reply in one.take(Reply)] == [1, 1]
    assert one.state.history.owned["a-0"].uid == "first"
    assert [e.uid for e in one.entries if isinstance(e, log.Owned)] == ["first"]


def test_a_word_for_another_pod_ends_the_session_rule_4() -> None:
    one, (session,) = begun("a-0")
    request = pb.SetOwnerRequest(slot="a-0", uid="another", word=0)
    one.feed(one.shard.registrar_request(1, request, one.now))
    assert [end.code for end in one.ends()] == [pb.SUPERSEDED]
    assert session not in one.state.sessions.open


def test_a_higher_incarnation_ends_the_lower_session_and_drops_its_offers_rule_5() -> None:
    """[Else a dead incarnation's complete offer is merged beside its successor's.]"""
    one, sessions = begun("a-0", "a-1", quorum=2)
    step_all(one, sessions, range(1, 10))
    one.offer(sessions[0], 1, 5)
    one.leave(sessions[0])
    assert "a-0" in one.state.rounds.open[1].complete
    one.join("a-0", instance="new")
    assert [(d.slot, d.slice) for d in one.take(Drop)] == [("a-0", 1)]
    assert "a-0" not in one.state.rounds.open[1].complete


def test_a_replaced_session_does_not_move_the_clock_by_its_whole_t_m_rule_8() -> None:
    one, (session,) = begun("a-0")
    step_all(one, [session], range(1, 20))
    tick = one.state.clock.tick
    one.instances.clear()  # the old connection is not closed yet
    again = one.join("a-0", t_m=19)
    assert [end.code for end in one.ends()] == [pb.REPLACED]
    one.report(again, 20, steps=5)
    one.report(again, 21, steps=6)
    assert one.state.clock.tick - tick <= 2


def test_a_report_of_a_session_that_is_not_its_slots_newest_counts_nothing_rule_5() -> None:
    """Should a rule ever leave the older one open."""
    one, (older,) = begun("a-0")
    one.report(older, 3)
    slot = one.state.sessions.slots["a-0"]
    slot.open(99, one.now, incarnation=1)
    tick, report = one.state.clock.tick, slot.report
    one.report(older, 30)
    assert one.state.clock.tick == tick
    assert slot.report == report


def test_what_a_joiner_has_seen_elsewhere_raises_the_tick_and_all_are_told_rule_8() -> None:
    one, (session,) = begun("a-0")
    one.join("b-0", tick_seen=50)
    assert one.state.clock.tick == 0
    one.hear_tick(50)
    one.wait(0.5)
    assert one.state.clock.tick >= 50
    assert (session, pb.Tick(tick=50)) in one.sent("tick")


def test_a_join_of_another_run_is_refused_before_anything_of_it_is_used_rule_3() -> None:
    one, _ = begun("a-0", "b-0")
    before = one.state.clock.tick
    joins: list[dict[str, Any]] = [
        {"slot": "a-0", "incarnation": 7},
        {"slot": "", "observer": True},
    ]
    for fields in joins:
        one.join(**{"instance": "survivor", "run": "another", "tick_seen": 5000, **fields})
    assert [(end.code, end.retry) for end in one.ends()] == [(pb.OTHER_RUN, False)] * 2
    one.wait(20.0)
    assert one.state.clock.tick == before
    assert one.state.history.taken["a-0"].instance == "a-0-process"
    assert len(one.state.sessions.open) == 2
    assert not one.state.history.ended


def test_nothing_of_an_observer_moves_the_clock_rule_3() -> None:
    one, _ = begun("a-0")
    one.join("", instance="eye", observer=True, run=RUN, tick_seen=5000)
    one.wait(1.0)
    assert one.state.clock.tick < 50
    late = version(0, 9)
    one.join("b-0", run=RUN, held=[late])  # a loss is found: the shard looks at all sessions
    assert one.state.recovery is not None
    assert one.state.clock.tick < 50


def test_while_no_run_is_known_only_joins_of_this_job_name_one_rule_2() -> None:
    one = side(fresh=False).start()
    one.join("a-0", run="of another job", run_hash="another", incarnation=9)
    one.join("", observer=True, run="held", incarnation=3)
    assert one.state.run.named == {}  # nor does an observer name one
    one.join("a-0", run="held")
    assert one.state.run.named.keys() == {"held"}


def test_at_join_a_shard_sends_what_the_learner_lacks_rule_24() -> None:
    one, _ = begun("a-0")
    session = one.join("b-0", run=RUN, held=[version(0, 0)])
    assert [(p.session, p.slice) for p in one.take(PublishHead)] == [(session, 1)]


def test_an_observer_gets_publishes_and_counts_for_nothing_rule_24() -> None:
    one, _ = begun("a-0")
    one.effects.clear()
    session = one.join("", instance="eye", observer=True)
    assert len(one.take(PublishHead)) == FRAGMENTS
    assert one.state.standing(one.now).training == {"a-0"}
    one.offer(session, 0, 1)
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]


def test_what_is_unknown_ends_that_session_and_nothing_else_rule_25() -> None:
    one, sessions = begun("a-0", "a-1", "b-0")
    one.effects.clear()
    transfer = pb.Transfer(offer=pb.Offer(slice=9, capture=1), encoding=pb.BF16)
    one.feed(one.shard.transfer_started(sessions[0], transfer, one.now))
    wrong = pb.ToShard(evaluation=pb.Evaluation())
    one.feed(one.shard.message(sessions[1], wrong, one.now))
    ends = one.ends()
    assert [end.code for end in ends] == [pb.BAD_TRANSFER, pb.BAD_MESSAGE]
    assert all(end.reason and end.remedy for end in ends)
    assert list(one.state.sessions.open) == [sessions[2]]


# ------------------------------------------------------------ models that differ


def with_other_model(one: Side, slot: str, *shape: int) -> int:
    """A learner with another model joins, and sends it."""
    tensors = [
        TensorSpec(name=f"other{n}", shape=shape or (4,), dtype="float32", merge="rda")
        for n in range(FRAGMENTS)
    ]
    other = build_layout(tensors, FRAGMENTS, 1)
    session = one.join(slot, layout_digest=other.digest)
    one.feed(one.shard.message(session, pb.ToShard(model=other.to_model()), one.now))
    return session


def test_the_model_of_a_learner_that_left_before_it_seeded_binds_nobody_rule_1() -> None:
    one = side().start()
    wrong = with_other_model(one, "a-0")
    one.send(wrong, pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32))
    right = one.join("a-1")
    one.model(right)
    assert [session for session, _ in one.sent("send_seed")] == [wrong]
    one.leave(wrong)
    assert [session for session, _ in one.sent("send_seed")] == [right]
    one.seed(right)
    assert one.ends() == []
    assert one.state.history.layout_digest == layout_of(1).digest
    assert one.state.serving


def test_once_a_seed_is_durable_sessions_with_another_model_end_rule_1() -> None:
    one = side().start()
    right = one.join("a-0")
    one.model(right)
    wrong = with_other_model(one, "a-1")
    one.sent("welcome")
    one.seed(right)
    assert [(e.session, e.end.code) for e in one.take(EndSession)] == [(wrong, pb.OTHER_LAYOUT)]
    assert {each.session for each in one.take(PublishHead)} == {right}
    with_other_model(one, "a-1")
    assert [end.code for end in one.ends()] == [pb.OTHER_LAYOUT]


def test_a_model_beyond_all_measure_ends_its_session_and_nothing_else_rule_25() -> None:
    one = side().start()
    with_other_model(one, "a-0", 1 << 44)
    assert [end.code for end in one.ends()] == [pb.OTHER_LAYOUT]
    assert one.take(SetModel) == []
    right = one.join("a-1")
    one.model(right)
    one.seed(right)
    assert one.state.serving


def test_a_model_for_which_there_is_no_memory_ends_its_sessions_rule_25() -> None:
    one = side().start()
    wrong = with_other_model(one, "a-0")
    right = one.join("a-1")
    one.model(right)
    assert one.state.layout is not None
    one.feed(one.shard.does_not_fit(one.state.layout.digest, "no memory"))
    assert [(e.session, e.end.code) for e in one.take(EndSession)] == [(wrong, pb.OTHER_LAYOUT)]
    one.seed(right)
    assert one.state.serving


def test_a_learner_sends_the_model_that_its_join_named() -> None:
    one = side().start()
    session = one.join("a-0", layout_digest="another")
    one.model(session)
    assert [end.code for end in one.ends()] == [pb.BAD_MESSAGE]


def test_a_restart_of_the_shard_forgets_no_tokens_rule_35() -> None:
    """A job whose length is in tokens would end late, and its shards at different times."""
    one, (first,) = begun("a-0")
    one.report(first, 5, tokens=500)
    one.leave(first)
    again = one.join("a-0", run=RUN, incarnation=1)
    one.report(again, 6, tokens=600)
    assert one.state.sessions.tokens == 600
    one.leave(again)
    one.report(one.join("a-0", instance="second"), 1, tokens=10)
    assert one.state.sessions.tokens == 610
    next_process = side(entries=tuple(one.entries)).start()
    assert next_process.state.sessions.tokens == 600
    session = next_process.join("a-0", instance="second", run=RUN, incarnation=2)
    next_process.report(session, 2, tokens=20)
    assert next_process.state.sessions.tokens == 620
