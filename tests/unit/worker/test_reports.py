"""What a learner reports, the clock it follows, its end (docs/protocol.md, rules 6-8, 27)."""

import math
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt, Finished
from atoll_worker.rules.learner_state import HangUp, TelemetryRecord
from unit.worker.fake_driver import learner_side


@pytest.mark.parametrize(
    ("settings", "scene"),
    [
        # rule 6: a learner without boundaries reports every two seconds
        ({}, "begin; step => report 0 1 1 training, report 1 1 1 training; later 1.75 => none;"
             " later 0.25 => report 0 1 1 training, report 1 1 1 training; later 1.75 => none"),
        # rule 8: the job's step is the lowest tick over the shards and never goes back
        ({}, "begin; tick 0 7 => none; tick 1 5 => tick 5; tick 1 3; lose 1;"
             " welcome 1 tick=0 epoch=2; tick 0 8 => none; tick 1 9 => tick 8"),
        # rule 27: who trains finishes when every shard is final and the finals are adopted, says
        # so once, and puts all of them in place again
        ({}, "begin; final 0 0; final 1 1; step => no place, no finished; value 1/0 1; step;"
             " value 1/1 1 => place 1/0, place 1/1;"
             " step => place 0/0, place 0/1, place 1/0, place 1/1, finished; final 0 0 => none"),
        # a Final counts until its shard, which may have lost its store and end again with a newer
        # version, begins a new session without one
        ({}, "begin; final 0 0; lose 0; welcome 0 epoch=2; final 1 0 => none;"
             " final 0 0 => finished"),
        # in lock-step final values are put in place too, since blend took a share
        ({"shards": 1, "lockstep": True, "overlap": 0, "blend": 0.5},
         "begin; final 0 0 => place 0/0, place 0/1, finished"),
        # finishing at a Final is reported at once
        ({"shards": 1}, "begin; final 0 0 => report 0 0 0 training finished"),
        # rule 6: a Leave goes to every shard, and nothing is dialled or said after it
        ({}, "begin; step; leave => leave 0, leave 1, no dial; lose 0; later 60 => none"),
        ({}, "begin; lose 1; leave; later 60 => no dial, no report"),
    ],
)  # fmt: skip
def test_a_learner_reports_follows_the_clock_and_ends(settings: Any, scene: str) -> None:
    learner_side(**settings).play(scene)


def test_every_boundary_is_reported_to_every_shard_with_its_own_slices_rule_7() -> None:
    side = learner_side().begin(number=2)
    side.step(tokens=10, loss=2.5, blocked_seconds=0.0)
    side.step(tokens=5, loss=2.0, blocked_seconds=1.0)
    shards = side.messages("report")
    assert [shard for shard, _ in shards] == [0, 1, 0, 1]
    report = shards[-1][1]
    assert (report.t_m, report.tokens, report.cursor, report.loss) == (2, 15, 2, 2.0)
    slices = [(s.slice, s.held, s.since.steps, s.since.tokens) for s in report.slices]
    assert slices == [(0, 2, 2, 15), (1, 2, 2, 15)]
    assert (report.training, report.waiting, report.finished) == (True, False, False)
    assert (report.step_seconds, report.blocked_seconds) == (1.0, 1.0)
    assert math.isclose(report.busy_share, 2 / 3)


def test_a_report_is_due_two_seconds_after_the_last_and_says_what_was_seen_rules_14_and_23() -> (
    None
):
    side = learner_side().play("begin; tick 1 9; lose 1; welcome 1 epoch=4; step; later 1")
    side.seen.clear()
    assert side.exchange.deadline() == side.now + 1.0
    side.later(1.0)
    report = dict(side.messages("report"))[0]
    assert (report.tick_seen, list(report.epochs_seen)) == (9, [1, 4])


def test_a_learner_counts_its_position_from_the_ticks_of_all_shards_rule_8() -> None:
    side = learner_side().begin()
    side.step()
    assert side.messages("report")[-1][1].reached == 0
    side.play("tick 1 9; step; step")
    assert side.messages("report")[-1][1].reached == 10
    side.play("tick 0 10; step; lose 0; welcome 0 tick=4 epoch=2")
    assert side.messages("report")[-1][1].reached == 11
    side.play("tick 1 40; step")
    assert side.messages("report")[-1][1].reached == 40


def test_steps_and_the_end_leave_lines_of_telemetry() -> None:
    side = learner_side().begin()
    side.step(tokens=10, loss=math.nan)
    counts = {"t_m": 1, "tick": 0, "tokens": 10, "loss": None}
    (record,) = side.take(TelemetryRecord)
    assert record.fields == {**counts, "step_seconds": 1.0, "blocked_seconds": 0.0, "adopted": []}
    (record,) = side.play("leave").take(TelemetryRecord)
    assert record.fields["event"] == "end"
    assert record.fields["pending"] == dict.fromkeys(("0/0", "0/1", "1/0", "1/1"), 10)


def test_what_is_wrong_with_the_credentials_is_reported_at_once_and_until_it_is_healed() -> None:
    side = learner_side().play("begin; step")
    side.seen.clear()
    side.feed(side.exchange.troubled("tls.crt: expired", side.now))
    assert [report.trouble for _, report in side.messages("report")] == ["tls.crt: expired"] * 2
    assert TelemetryRecord({"event": "warning", "reason": "tls.crt: expired"}) in side.seen
    assert side.exchange.troubled("tls.crt: expired", side.now) == []
    side.step()
    assert side.messages("report")[-1][1].trouble == "tls.crt: expired"
    side.feed(side.exchange.troubled("", side.now))
    assert side.messages("report")[-1][1].trouble == ""


def test_a_session_is_dialled_again_with_renewed_credentials_when_nothing_is_under_way() -> None:
    side = learner_side().play("begin; step")
    assert side.exchange.renewed([0, 1]) == [HangUp(0), HangUp(1)]
    side.exchange.state.slices[0, 0].call = 0
    assert side.exchange.renewed([0, 1]) == [HangUp(1)]


def test_an_observer_dials_all_shards_at_once_without_an_incarnation() -> None:
    side = learner_side(observer=True).play("dials => dial 0, dial 1; connect 1")
    ((_, join),) = side.messages("join")
    assert (join.observer, join.slot, join.incarnation) == (True, "", 0)


def test_an_observer_adopts_values_and_sends_nothing() -> None:
    side = learner_side(observer=True, lockstep=True, blend=0.5).play("join; tick 3 => tick 3")
    side.seen.clear()
    for number in (3, 4):
        for shard, fragment in side.exchange.state.slices:
            side.value(shard, fragment, number)
        assert {adopt.blend for adopt in side.take(Adopt)} == {0.0}
        promoted = ", ".join(f"promote {s}/{p} {number}" for s, p in side.exchange.state.slices)
        side.play(f"again => {promoted}, no start, no capture, no proceed, no report")
    side.play("later 2; leave => no report, no leave, no start, no capture, no proceed")


def test_an_observer_sends_no_model_and_receives_the_end() -> None:
    side = learner_side(observer=True, shards=1).play(
        "dials; welcome 0 needs_model=1 incarnation=0 => no model;"
        " value 0/0 1; value 0/1 1; final 0 1 => no finished; again"
    )
    assert side.take(Finished) == [Finished()]


def test_the_registrar_gets_the_newest_evaluation_and_again_when_it_is_back() -> None:
    side = learner_side(observer=True).play("join")
    for tick, scene in ((100, " => evaluation 0 100; lose 0"), (200, "")):
        side.feed(side.exchange.evaluated(pb.Evaluation(tick=tick, loss=1.5, tokens=4096)))
        side.play("again" + scene)
    side.play("again => no evaluation; welcome 1 => none; welcome 0 => evaluation 0 200")
