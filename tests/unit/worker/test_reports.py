"""What a learner reports, the clock it follows, its end (docs/protocol.md, rules 6-8, 27)."""

import math

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Finished, Tick
from atoll_worker.rules.effects import Dial, HangUp, Place, Record
from unit.worker.learner_side import learner_side


def test_every_boundary_is_reported_to_every_shard_with_its_own_slices_rule_7() -> None:
    side = learner_side().begin(number=2)
    side.step(tokens=10, loss=2.5, blocked_seconds=0.0)
    side.step(tokens=5, loss=2.0, blocked_seconds=1.0)
    shards = side.messages("report")
    assert [shard for shard, _ in shards] == [0, 1, 0, 1]
    report = shards[-1][1]
    assert (report.t_m, report.tokens, report.cursor, report.loss) == (2, 15, 2, 2.0)
    assert [(s.slice, s.held, s.since.steps, s.since.tokens) for s in report.slices] == [
        (0, 2, 2, 15),
        (1, 2, 2, 15),
    ]
    assert (report.training, report.waiting, report.finished) == (True, False, False)
    assert (report.step_seconds, report.blocked_seconds) == (1.0, 1.0)
    assert math.isclose(report.busy_share, 2 / 3)


def test_a_learner_without_boundaries_reports_every_two_seconds_rule_6() -> None:
    side = learner_side().begin()
    side.step()
    side.seen.clear()
    assert side.exchange.deadline() == side.now + 2.0
    side.feed(side.exchange.tick_time(side.now + 1.9))
    assert side.messages("report") == []
    side.feed(side.exchange.tick_time(side.exchange.deadline()))
    assert [report.t_m for _, report in side.messages("report")] == [1, 1]
    assert side.exchange.deadline() == side.now + 4.0


def test_a_report_says_the_highest_tick_and_epochs_seen_rules_14_and_23() -> None:
    side = learner_side().begin()
    side.receive(1, tick=pb.Tick(tick=9))
    side.lose(1)
    side.welcome(1, epoch=4)
    side.seen.clear()
    side.step()
    report = dict(side.messages("report"))[0]
    assert (report.tick_seen, list(report.epochs_seen)) == (9, [1, 4])


def test_the_jobs_step_is_the_lowest_tick_over_the_shards_and_never_goes_back_rule_8() -> None:
    side = learner_side().begin()
    side.receive(0, tick=pb.Tick(tick=7))
    assert side.take(Tick) == []
    side.receive(1, tick=pb.Tick(tick=5))
    assert side.take(Tick) == [Tick(tick=5)]
    side.receive(1, tick=pb.Tick(tick=3))
    side.lose(1)
    side.welcome(1, tick=0, epoch=2)
    side.receive(0, tick=pb.Tick(tick=8))
    assert side.take(Tick) == []
    side.receive(1, tick=pb.Tick(tick=9))
    assert side.take(Tick) == [Tick(tick=8)]


def test_a_learner_finishes_when_every_shard_is_final_and_the_finals_are_adopted_rule_27() -> None:
    side = learner_side().begin()
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    side.receive(1, final=pb.Final(versions=side.heads(1, 1)))
    side.step()  # it goes on training until then
    assert side.take(Finished) == []
    side.value(1, 0, 1)
    side.step()
    assert side.take(Finished) == []
    side.value(1, 1, 1)
    side.seen.clear()
    side.step()
    everything = tuple(side.exchange.slices)
    assert [(each.shard, each.fragment) for each in side.take(Place)] == [*everything]
    assert side.take(Finished) == [Finished(again=everything)]
    assert {report.finished for _, report in side.messages("report")} == {True}
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    assert side.take(Finished) == []  # said once


def test_a_final_counts_until_its_shard_begins_a_new_session_without_one_rule_27() -> None:
    """A shard that has lost its store ends again, maybe with a newer version."""
    side = learner_side().begin()
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    side.lose(0)
    side.welcome(0, epoch=2)
    side.receive(1, final=pb.Final(versions=side.heads(1, 0)))
    assert side.take(Finished) == []
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    assert len(side.take(Finished)) == 1


def test_in_lock_step_final_values_are_put_in_place_too_since_blend_took_a_share() -> None:
    side = learner_side(shards=1, lockstep=True, overlap=0, blend=0.5).begin()
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    assert side.take(Finished) == [Finished(again=tuple(side.exchange.slices))]
    assert len(side.take(Place)) == len(side.exchange.slices)


def test_finishing_at_a_final_is_reported_at_once_rule_27() -> None:
    side = learner_side(shards=1).begin()
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    assert [report.finished for _, report in side.messages("report")] == [True]


def test_a_leave_goes_to_every_shard_and_nothing_is_dialled_after_it_rule_6() -> None:
    side = learner_side().begin()
    side.step(tokens=10)
    side.welcome(0)
    side.welcome(1)
    side.seen.clear()
    side.feed(side.exchange.leave("terminated", side.now))
    assert [(shard, leave.reason) for shard, leave in side.messages("leave")] == [
        (0, "terminated"),
        (1, "terminated"),
    ]
    (record,) = side.take(Record)
    assert record.fields["event"] == "end"
    assert record.fields["pending"] == dict.fromkeys(("0/0", "0/1", "1/0", "1/1"), 10)
    side.lose(0)
    side.feed(side.exchange.tick_time(side.now + 60.0))
    assert side.seen == []


def test_a_dial_that_was_due_is_given_up_by_one_that_leaves() -> None:
    side = learner_side().begin()
    side.lose(1)
    side.feed(side.exchange.leave("terminated", side.now))
    side.feed(side.exchange.tick_time(side.now + 60.0))
    assert side.take(Dial) == []


def test_a_step_leaves_one_line_of_telemetry() -> None:
    side = learner_side().begin()
    side.step(tokens=10, loss=math.nan)
    (record,) = side.take(Record)
    assert record.fields == {
        "t_m": 1,
        "tick": 0,
        "tokens": 10,
        "loss": None,
        "step_seconds": 1.0,
        "blocked_seconds": 0.0,
        "adopted": [],
    }


def test_what_is_wrong_with_the_credentials_is_reported_at_once_and_until_it_is_healed() -> None:
    side = learner_side().begin()
    side.step()
    side.seen.clear()
    side.feed(side.exchange.troubled("tls.crt: expired", side.now))
    assert [report.trouble for _, report in side.messages("report")] == ["tls.crt: expired"] * 2
    assert Record({"event": "warning", "reason": "tls.crt: expired"}) in side.seen
    assert side.exchange.troubled("tls.crt: expired", side.now) == []
    side.step()
    assert side.messages("report")[-1][1].trouble == "tls.crt: expired"
    side.feed(side.exchange.troubled("", side.now))
    assert side.messages("report")[-1][1].trouble == ""


def test_a_session_is_dialled_again_with_renewed_credentials_when_nothing_is_under_way() -> None:
    side = learner_side().begin()
    side.step()
    shards = sorted({shard for shard, _ in side.exchange.slices})
    assert side.exchange.renewed(shards) == [HangUp(each) for each in shards]
    side.exchange.slices[0, 0].call = 0
    assert HangUp(0) not in side.exchange.renewed(shards)
