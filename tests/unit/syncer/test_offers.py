"""Offers at a shard: which may come, which count, and what they teach (rules 10 to 15)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.layout import TensorSpec, build_layout
from atoll_protos.means import NO_SAMPLES, MovingMean
from atoll_syncer.model.effects import Accept, Drop, EndSession, Merge, Stage, Tape
from atoll_syncer.model.grace import Timings
from atoll_syncer.model.roster import Coming
from atoll_syncer.rules import transfers
from atoll_syncer.rules.status import status
from unit.syncer.shard_side import FRAGMENTS, RUN, Side, begun, digest, step_all


def open_round(*slots: str, **sync: Any) -> tuple[Side, list[int]]:
    """Slice 1 (offset 4) is due and called, at one tick a second."""
    one, sessions = begun(*slots, **sync)
    step_all(one, sessions, range(1, 6))
    return one, sessions


def transfer(steps: int, fragment: int = 1, **fields: Any) -> pb.Transfer:
    """An offer on version 0."""
    counters = pb.Counters(steps=steps, tokens=10 * steps)
    known = {"base_digest": digest(fragment, 0), "capture": steps, "counters": counters}
    offer = pb.Offer(slice=fragment, **{**known, **fields})
    return pb.Transfer(offer=offer, encoding=pb.BF16)


def began(one: Side, session: int, steps: int, **fields: Any) -> pb.Transfer:
    """The head of an offer has come."""
    head = transfer(steps, **fields)
    one.feed(one.shard.transfer_started(session, head, one.now))
    return head


def refuse(one: Side, session: int, steps: int, **fields: Any) -> None:
    """An offer that is not finite."""
    head = began(one, session, steps, **fields)
    reason = "slice 1: values are not finite"
    one.feed(one.shard.transfer_rejected(session, reason, one.now, head, final=True))


def seconds(mean: MovingMean) -> float:
    return mean.or_else(-1.0)


# ------------------------------------------------------------ one offer of a slot


@pytest.mark.parametrize(("first", "second"), [(4, 5), (5, 4), (5, 5)])
def test_of_two_offers_of_a_slot_the_newest_capture_counts_in_whatever_order_rule_13(
    first: int, second: int
) -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, first)
    each = one.state.rounds.open[1]
    head = transfer(second)
    one.feed(one.shard.transfer_verified(sessions[0], head, one.now))
    staged = [effect.capture for effect in one.take(Stage)]
    for effect in one.take(Drop):
        staged.remove(effect.capture)
    assert staged == [5]
    assert each.complete["a-0"].capture == 5


@pytest.mark.parametrize("encoding", [pb.F32, pb.INT8, pb.INT4, pb.ENCODING_UNSPECIFIED])
def test_an_offer_in_another_encoding_than_the_run_files_ends_its_session(
    encoding: pb.Encoding,
) -> None:
    one, sessions = open_round("a-0")
    head = transfer(5)
    head.encoding = encoding
    one.feed(one.shard.transfer_started(sessions[0], head, one.now))
    (end,) = one.ends()
    assert end.code == pb.BAD_TRANSFER
    assert "encoding" in end.reason


def test_the_bytes_of_an_offer_count_averaged_buffers_in_f32_rule_25() -> None:
    one, sessions = open_round("a-0")
    specs = [
        TensorSpec(name=f"t{n}", shape=(8,), dtype="float32", merge="average" if n == 1 else "rda")
        for n in range(FRAGMENTS)
    ]
    one.state.seed.layout = build_layout(specs, FRAGMENTS, 1)
    (fragment,) = (each.fragment for each in one.state.seed.layout.slices if each.form.exact)
    assert fragment == 1
    began(one, sessions[0], 5)
    assert [accept.byte_count for accept in one.take(Accept)] == [4 * 8]


def test_nothing_counts_of_a_session_that_is_not_its_slots_newest_rule_5() -> None:
    """Should a rule ever leave the older one open: neither a new offer nor one that is here."""
    one, sessions = open_round("a-0", "a-1", quorum=2)
    head = began(one, sessions[0], 5)
    assert len(one.take(Accept)) == 1
    one.state.sessions.slots["a-0"].open(99, one.now, incarnation=1)
    one.feed(one.shard.transfer_verified(sessions[0], head, one.now))
    assert one.take(Stage) == []
    assert "a-0" not in one.state.rounds.open[1].complete
    one.state.sessions.slots["a-1"].open(98, one.now, incarnation=1)
    began(one, sessions[1], 5)
    assert one.take(Accept) == []
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]


# ------------------------------------------------------------ what offers teach


def test_the_transfer_time_counts_from_the_call_rule_11() -> None:
    one, sessions = open_round("a-0", quorum=1)
    one.now = one.state.rounds.open[1].called["a-0"] + 3.0
    head = began(one, sessions[0], 5)
    one.now += 3.0
    one.feed(one.shard.transfer_verified(sessions[0], head, one.now))
    assert seconds(one.state.rounds.timings.transfer) == pytest.approx(6.0)


@pytest.mark.parametrize("when", ["while it commits", "after the commit"])
def test_an_offer_that_is_late_teaches_its_transfer_time_too_rule_11(when: str) -> None:
    one, sessions = open_round("a-0", "a-1", grace=False)
    head = began(one, sessions[1], 5)
    one.skip_merges = when == "while it commits"
    one.offer(sessions[0], 1, 5)
    first = seconds(one.state.rounds.timings.transfer)
    assert (1 in one.state.rounds.open) is (when == "while it commits")
    one.now += 20.0
    one.feed(one.shard.transfer_verified(sessions[1], head, one.now))
    assert one.state.rounds.late == 1
    assert seconds(one.state.rounds.timings.transfer) == pytest.approx(first + 0.2 * 20.0)


def test_the_transfer_time_is_at_most_half_a_period_rule_11() -> None:
    one, _ = open_round("a-0")  # H = 8 at one tick a second
    assert one.state.clock.ticks_per_second == pytest.approx(1.0)
    for mean, bound in ((3.0, 3.0), (21.0, 4.0)):
        one.state.rounds.timings = Timings(transfer=MovingMean(mean))
        assert one.state.transfer_seconds == pytest.approx(bound)


def test_a_last_round_waits_as_long_as_the_transfers_of_all_slices_take_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", steps=5)
    step_all(one, sessions, range(1, 5))
    one.state.rounds.timings = Timings(transfer=MovingMean(2.0))
    step_all(one, sessions, range(5, 7))
    deadlines = [each.deadline for each in one.state.rounds.open.values()]
    assert deadlines == [pytest.approx(one.now + 10.0 + 2 * 2.0)] * 2


def test_a_round_teaches_the_time_to_its_quorum_and_the_time_to_its_version() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    opened_at = one.state.rounds.open[1].opened_at
    one.now += 1.5
    one.offer(sessions[0], 1, 5)
    one.now += 1.0
    one.durable = False
    quorum_at = one.now
    one.offer(sessions[1], 1, 5)
    timings = one.state.rounds.timings
    assert seconds(timings.quorum) == pytest.approx(quorum_at - opened_at)
    assert timings.sync.value is None
    one.now += 0.75
    one.flush()
    assert seconds(one.state.rounds.timings.sync) == pytest.approx(0.75)


# ------------------------------------------------------------ a slice never stands still


def test_a_round_does_without_a_learner_whose_offer_is_not_finite_also_with_k_of_k() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5)
    assert one.take(Merge) == []
    refuse(one, sessions[1], 5)
    (merge,) = one.take(Merge)
    assert [part.slot for part in merge.participants] == ["a-0"]
    assert one.state.history.heads[1].number == 1


def test_an_offer_that_is_not_finite_is_late_and_its_session_goes_on() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    refuse(one, sessions[1], 5)
    assert one.ends() == []
    assert one.state.rounds.late == 1
    (late,) = (e.record for e in one.take(Tape) if e.record["event"] == "late")
    assert (late["slot"], late["tokens"]) == ("a-1", 50)
    assert late["reason"] == "slice 1: values are not finite"
    one.offer(sessions[0], 1, 5)  # a version without it, which it adopts
    for t_m in range(6, 18):
        one.now += 1.0
        for session in sessions:
            one.report(session, t_m, steps=t_m - 5)
    assert (sessions[1], 1) in {(session, call.slice) for session, call in one.sent("call")}
    one.offer(sessions[1], 1, 12)
    assert "a-1" in one.state.rounds.open[1].complete


def test_a_learner_that_was_refused_is_called_for_the_next_round_again() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    refuse(one, sessions[1], 5)
    one.sent("call")
    again = one.join("a-1", incarnation=1)
    one.report(again, 6, steps=6)
    assert one.sent("call") == []  # not for this round
    one.offer(sessions[0], 1, 5)
    assert one.state.history.heads[1].number == 1
    for t_m in range(7, 18):
        one.now += 1.0
        one.report(sessions[0], t_m, steps=t_m - 5)
        one.report(again, t_m, steps=t_m - 5)
    assert again in {session for session, call in one.sent("call") if call.slice == 1}


def test_with_enough_others_the_quorum_does_not_fall() -> None:
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=2)
    refuse(one, sessions[1], 5)
    one.offer(sessions[0], 1, 5)
    one.wait(3.0)
    assert one.take(Merge) == []
    one.offer(sessions[2], 1, 5)
    assert len(one.take(Merge)) == 1


def test_status_says_why_nothing_of_a_slot_is_merged_until_it_is_again() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)

    def reasons() -> dict[str, str]:
        return {slot.slot: slot.reason for slot in status(one.state, one.now).slots}

    assert set(reasons().values()) == {""}
    refuse(one, sessions[1], 5)
    assert "not finite" in reasons()["a-1"]
    assert reasons()["a-0"] == ""
    one.offer(sessions[0], 1, 5)
    again = one.join("a-1", incarnation=1)
    for t_m in range(6, 18):
        one.now += 1.0
        one.report(sessions[0], t_m, steps=t_m - 5)
        one.report(again, t_m, steps=t_m - 5)
    one.offer(again, 1, 12)
    assert reasons()["a-1"] == ""


def test_what_was_damaged_on_its_way_is_asked_for_again_but_not_for_ever() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5)
    session, refusals = sessions[1], 0
    while not one.take(Merge):
        assert refusals < 5
        head = began(one, session, 5)
        one.feed(one.shard.transfer_rejected(session, "the checksum is wrong", one.now, head))
        refusals += 1
        if 1 in one.state.rounds.open:
            session = one.join("a-1", incarnation=1)
            one.report(session, 5)
    assert refusals == 3


def test_a_call_that_is_never_answered_ends_the_session_and_the_wait_for_it() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    called_at = one.state.rounds.open[1].called["a-1"]
    one.offer(sessions[0], 1, 5)
    for t_m in range(6, 50):
        one.report(sessions[0], t_m)
        one.report(sessions[1], min(t_m, 7))
        one.wait(1.0)
        if one.take(Merge):
            break
        one.state.sessions.open[sessions[0]].credits.clear()  # that of the other slice
    assert 30.0 <= one.now - called_at <= 31.0
    assert [(e.session, e.end.code) for e in one.take(EndSession)] == [
        (sessions[1], pb.BAD_TRANSFER)
    ]


def test_a_call_whose_round_closed_without_the_learner_need_not_be_answered() -> None:
    """It adopts the new version, and is called for that one when it is due again."""
    one, sessions = begun("a-0", "a-1", steps=1000, period=200, grace=False)
    step_all(one, sessions, range(1, 102))  # slice 1 is due at 100
    one.offer(sessions[0], 1, 101)
    assert one.state.history.heads[1].number == 1
    assert 1 in one.state.sessions.open[sessions[1]].credits
    for t_m in range(102, 190):
        for session in sessions:
            one.report(session, t_m, steps=t_m - 101)
        one.wait(1.0)
    assert one.ends() == []


@pytest.mark.parametrize("reason", ["no step since", "another transfer"])
def test_who_could_not_answer_yet_keeps_its_call(reason: str) -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5)
    for second in range(60):
        one.now += 1.0
        one.state.sessions.open[sessions[0]].credits.clear()  # that of the other slice
        one.report(sessions[0], 6 + second)
        if reason == "no step since":
            one.report(sessions[1], 5, step_seconds=60.0)
        else:
            one.report(sessions[1], 6 + second, slices=[])
            coming = Coming(head=transfer(5, fragment=0), asked_at=one.now)
            one.state.sessions.open[sessions[1]].receiving[0] = coming
        one.wait(0.25)
    assert one.ends() == []


@pytest.mark.parametrize("usual", [0.0, 60.0])
def test_a_transfer_that_drips_ends_and_its_call_is_made_again_rule_10(usual: float) -> None:
    """A frame now and then would make it go on for ever; a slow link has ten times the usual."""
    one, sessions = open_round("a-0", "a-1", quorum=2)
    if usual:
        one.state.rounds.timings = Timings(transfer=NO_SAMPLES.add(usual))
    began(one, sessions[0], 4)
    one.wait(max(300.0, 10.0 * usual))
    assert one.ends() == []
    one.lingering = True
    one.wait(0.5)
    assert [(end.code, end.retry) for end in one.ends()] == [(pb.BAD_TRANSFER, True)]
    again = one.join("a-0", run=RUN, incarnation=1)
    one.report(again, 6, steps=6)
    assert (again, 1) in [(session, call.slice) for session, call in one.sent("call")]


def test_a_transfer_of_many_bytes_has_the_time_that_a_slow_link_takes() -> None:
    one, _ = open_round("a-0", "a-1", quorum=2)
    assert transfers.seconds_max(one.state, 1_000_000_000) == 4000.0


# ------------------------------------------------------------ lock-step


def lockstep(*slots: str, position: int = 4) -> tuple[Side, list[int]]:
    one, sessions = begun(*slots, overlap=0, lockstep=True, quorum=2)
    for session in sessions:
        one.report(session, position, waiting=True)
    return one, sessions


@pytest.mark.parametrize("t_m", [5, 8, 90, 92, 100])
def test_a_hand_over_is_at_a_due_tick_that_the_learner_can_have_reached_rule_15(t_m: int) -> None:
    """Slice 1 is due at 4 (mod 8), and all are at 100. Else one offer moves everybody's clock."""
    one, sessions = lockstep("a-0", "a-1")
    one.offer(sessions[0], 1, 4, t_m=t_m)
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]
    assert one.state.clock.tick <= 4


def test_an_offer_may_come_before_the_report_of_its_step_rule_15() -> None:
    one, sessions = lockstep("a-0", "a-1", position=3)
    one.offer(sessions[0], 1, 4, t_m=4)
    assert one.ends() == []
    assert "a-0" in one.state.rounds.open[1].complete


def test_one_that_was_away_hands_over_by_what_its_join_says_rule_15() -> None:
    one, sessions = lockstep("a-0", "a-1")
    one.leave(sessions[0])
    again = one.join("a-0", incarnation=1, t_m=12)
    one.offer(again, 1, 12, t_m=12)
    assert one.ends() == []


def test_in_lock_step_nobody_waits_for_a_learner_whose_offer_is_not_finite() -> None:
    one, sessions = lockstep("a-0", "a-1", "b-0")
    one.offer(sessions[0], 1, 4, t_m=4)
    refuse(one, sessions[1], 4, t_m=4)
    again = one.join("a-1", incarnation=1, t_m=4)
    one.report(again, 4, waiting=True)
    assert one.take(Merge) == []
    one.offer(sessions[2], 1, 4, t_m=4)
    (merge,) = one.take(Merge)
    assert [part.slot for part in merge.participants] == ["a-0", "b-0"]
    assert one.state.clock.tick == 4


def test_in_lock_step_nobody_waits_for_one_that_was_the_first_and_is_not_finite() -> None:
    """It waits in step() for the version that the others make, and hands over no second time."""
    one, sessions = lockstep("a-0", "a-1", "b-0")
    refuse(one, sessions[1], 4, t_m=4)
    one.offer(sessions[0], 1, 4, t_m=4)
    assert one.take(Merge) == []
    one.offer(sessions[2], 1, 4, t_m=4)
    (merge,) = one.take(Merge)
    assert [part.slot for part in merge.participants] == ["a-0", "b-0"]


def test_in_lock_step_an_offer_that_is_not_finite_begins_no_round_on_another_base() -> None:
    one, sessions = lockstep("a-0", "a-1")
    refuse(one, sessions[1], 4, t_m=4, base_digest="of another value")
    assert one.state.rounds.open == {}
