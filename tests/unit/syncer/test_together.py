"""What two inputs do together over time: a leave during a write, a link slower than a limit."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import Ask, Drop, EndSession, Merge
from atoll_syncer.model.history import History
from unit.syncer.recovery_side import asked, empty_shard, held_by
from unit.syncer.shard_side import begun, head_of, run_file, side, step_all, version

# ------------------------------------------------------------ links slower than a limit


def test_a_transfer_of_40_s_answers_for_the_calls_that_wait_behind_it_rule_10() -> None:
    one, (slow, quick) = begun("a-0", "a-1", quorum=2)
    step_all(one, [slow, quick], range(1, 10))
    assert {call.slice for to, call in one.sent("call") if to == slow} == {0, 1}
    for fragment in range(2):
        one.offer(quick, fragment, 9)
    counters, name = pb.Counters(steps=9, tokens=90), one.state.history.heads[1].digest
    offer = pb.Offer(slice=1, counters=counters, base_digest=name, capture=9)
    head = pb.Transfer(offer=offer, encoding=pb.BF16)
    one.feed(one.shard.transfer_started(slow, head, one.now))
    step_all(one, [slow, quick], range(10, 50))
    one.feed(one.shard.transfer_verified(slow, head, one.now))
    one.wait(20.0)
    assert one.take(EndSession) == []
    assert 0 in one.state.sessions.open[slow].credits


def test_a_held_version_may_take_longer_than_its_first_byte_rule_22() -> None:
    one = empty_shard("a-0")
    session = held_by(one, "a-0", 9, 8)
    one.wait(1.0)
    assert asked(one) == [(session, 0, 9)]
    head = pb.Transfer(held=pb.Held(version=version(0, 9)), encoding=pb.BF16)
    one.feed(one.shard.transfer_started(session, head, one.now))
    one.wait(100.0)
    one.feed(one.shard.transfer_verified(session, head, one.now))
    assert one.state.history.heads[0].number == 10


# ------------------------------------------------------------ while an entry is on its way


def test_nobody_is_asked_for_a_seed_that_is_being_written_rule_1() -> None:
    one = side().start()
    first, second = one.join("a-0"), one.join("a-1")
    one.model(first)
    one.durable = False
    one.seed(first)
    one.sent("send_seed")
    one.leave(first)
    one.wait(60.0)
    assert one.sent("send_seed") == []
    one.flush()
    assert [entry for entry in one.entries if isinstance(entry, log.Seeded)] == one.entries[-2:-1]
    assert second in one.state.sessions.open


def test_one_that_joins_and_leaves_while_its_incarnation_is_written_can_come_again_rule_4() -> None:
    one, _ = begun("a-0")
    one.durable = False
    left = one.join("b-0", "first")
    one.leave(left)
    one.join("b-0", "second")
    assert [(end.code, end.retry) for end in one.ends()] == [(pb.SLOT_HELD, True)]
    one.flush()
    again = one.join("b-0", "second")
    one.flush()
    assert {number for number, _ in one.sent("welcome")} == {again}
    taken = [e for e in one.entries if isinstance(e, log.Taken) and e.slot == "b-0"]
    assert [each.incarnation for each in taken] == [1, 2]


def test_a_learner_that_is_lost_during_the_merge_of_its_offer_is_in_it_rule_11() -> None:
    one, sessions = begun("a-0", "a-1", quorum=2)
    step_all(one, sessions, range(1, 6))
    one.durable = False
    for session in sessions:
        one.offer(session, 1, 5)
    one.leave(sessions[0])
    one.join("a-0", "its successor")
    one.flush()
    assert [part.slot for part in head_of(one.entries, 1).participants] == ["a-0", "a-1"]
    assert one.take(Drop) == []  # its round is closed, and the merge needs the values


# ------------------------------------------------------------ a restart between due and commit


def test_a_commit_names_the_tick_of_its_moment_beside_its_due_tick_rules_8_and_9() -> None:
    one, sessions = begun("a-0", quorum=1)
    step_all(one, sessions, range(1, 11))
    one.offer(sessions[0], 0, 10)
    entry = head_of(one.entries, 0)
    assert (entry.tick, entry.due) == (9, 8)
    history = History.of(one.entries)
    assert (history.tick, history.due[0]) == (9, 8)
    restored = side(entries=tuple(one.entries)).start()
    assert restored.state.clock.tick == 9
    assert restored.state.rounds.starts[0] == 8


def test_a_round_that_is_abandoned_forgets_the_values_that_it_had_rule_22() -> None:
    one, sessions = begun("a-0", "a-1", quorum=2)
    step_all(one, sessions, range(1, 6))
    one.offer(sessions[0], 1, 5)
    one.feed(one.shard.lost({1}, one.now))
    assert [(drop.slot, drop.slice, drop.capture) for drop in one.take(Drop)] == [("a-0", 1, 5)]


def test_a_slice_that_is_taken_back_during_the_last_rounds_gets_one_of_its_own_rule_27() -> None:
    one, sessions = begun("a-0", steps=8)
    step_all(one, sessions, range(1, 10))
    one.offer(sessions[0], 0, 9)
    assert one.state.rounds.finished == {0}
    one.feed(one.shard.lost({0}, one.now))
    one.wait(1.0)
    assert asked(one) == [(sessions[0], 0, 0)]
    one.held(sessions[0], version(0, 0))
    assert one.state.history.heads[0].number == 2
    assert not one.state.history.heads[0].last
    assert 0 not in one.state.rounds.finished


# ------------------------------------------------------------ a registrar after a loss


def test_an_incarnation_that_log_and_learner_both_know_is_written_once_rule_2() -> None:
    known = log.Taken(slot="a-0", incarnation=4, uid="a-0-uid", instance="a-0-process")
    one = side(fresh=False, entries=(known,)).start()
    one.join("a-0", run="old", incarnation=4, held=[version(0, 9, run="old")])
    one.wait(31.0)
    assert one.state.history.run == "old"
    assert [entry for entry in one.entries if isinstance(entry, log.Taken)] == [known]


def test_an_empty_shard_passes_on_the_run_that_its_learners_hold_rule_2() -> None:
    one = side(shard=1, job=run_file(shards=2)).start()
    one.join("a-0", run="old", incarnation=4, held=[version(0, 9, run="old")])
    one.wait(3.0)
    hellos = [ask.request for ask in one.take(Ask) if isinstance(ask.request, pb.HelloRequest)]
    assert [(each.run, each.slot) for each in hellos[-1].named] == [("old", "a-0")]
    assert hellos[-1].run == ""


def test_a_run_of_nothing_but_version_0_is_carried_on_and_takes_a_seed_rules_1_and_2() -> None:
    one = side(fresh=False, job=run_file(shards=2)).start()
    hello = pb.HelloRequest(shard=1, run="old", tick=0)
    one.feed(one.shard.registrar_request(1, hello, one.now))
    one.join("a-0", run="old", incarnation=1, held=[version(0, 0, run="old")])
    one.wait(31.0)
    assert one.state.history.run == "old"
    assert 1 not in one.state.history.begun


# ------------------------------------------------------------ lock-step


def test_in_lock_step_the_offer_of_one_that_was_lost_stands_for_nobody_else_rule_15() -> None:
    one, (lost, behind) = begun("a-0", "a-1", lockstep=True, grace=False)
    for t_m in range(1, 8):
        one.report(lost, t_m)
        one.report(behind, t_m, step_seconds=100.0)
    one.report(lost, 8)
    one.offer(lost, 0, 8, t_m=8)
    one.leave(lost)
    one.wait(60.0)
    assert one.take(Merge) == []
    one.report(behind, 8)
    one.offer(behind, 0, 8, t_m=8)
    (merge,) = one.take(Merge)
    assert [part.slot for part in merge.participants] == ["a-0", "a-1"]


def test_in_lock_step_a_round_is_due_at_the_earliest_step_handed_over_rule_15() -> None:
    one, (ahead, behind, between) = begun("a-0", "a-1", "b-0", lockstep=True)
    for session, position in ((ahead, 12), (behind, 4), (between, 6)):
        for t_m in range(1, position + 1):
            one.report(session, t_m)
    one.offer(ahead, 1, 12, t_m=12)
    assert one.take(Merge) == []
    one.offer(behind, 1, 4, t_m=4)
    (merge,) = one.take(Merge)
    assert [part.slot for part in merge.participants] == ["a-0", "a-1"]


def test_in_lock_step_the_hand_overs_of_the_last_step_are_the_end_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", lockstep=True, steps=8)
    step_all(one, sessions, range(1, 9))
    for fragment in range(2):
        for session in sessions:
            one.offer(session, fragment, 8, t_m=8)
    one.wait(0.25)
    assert one.state.history.ended
    assert [head.number for head in one.state.history.heads.values()] == [1, 1]


# ------------------------------------------------------------ a shard behind the others


def test_one_that_is_two_periods_ahead_on_another_shard_is_called_and_five_is_not_rule_10() -> None:
    one, (near, far) = begun("a-0", "a-1", quorum=2)
    for t_m in range(1, 6):
        one.report(near, t_m, tick_seen=4 + 16)
        one.report(far, t_m, tick_seen=4 + 40)
    assert [to for to, _ in one.sent("call")] == [near]
