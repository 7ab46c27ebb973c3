"""An observer receives Publishes and counts for nothing (docs/protocol.md, rule 24)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt, Finished
from unit.worker.fake_driver import learner_side


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
