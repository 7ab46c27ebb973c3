"""An observer receives Publishes and counts for nothing (docs/protocol.md, rule 24)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt, Capture, Finished, Proceed, Start
from atoll_worker.rules.effects import Dial, Promote, SendMessage
from unit.worker.learner_side import learner_side


def test_an_observer_dials_all_shards_at_once_without_an_incarnation() -> None:
    side = learner_side(observer=True)
    side.feed(side.exchange.start(side.now))
    assert side.take(Dial) == [Dial(0), Dial(1)]
    side.feed(side.exchange.connected(1, side.now))
    ((_, join),) = side.messages("join")
    assert (join.observer, join.slot, join.incarnation) == (True, "", 0)


def test_an_observer_adopts_values_and_sends_nothing() -> None:
    side = learner_side(observer=True, lockstep=True, blend=0.5)
    side.join()
    side.take(SendMessage)
    for number in (3, 4):
        for shard, fragment in side.exchange.slices:
            side.value(shard, fragment, number)
        assert {adopt.blend for adopt in side.take(Adopt)} == {0.0}
        side.again()
    assert len(side.take(Promote)) == 8
    side.feed(side.exchange.tick_time(side.now + 2.0))
    side.feed(side.exchange.leave("done", side.now))
    assert side.take(SendMessage) == []
    assert [*side.take(Start), *side.take(Capture), *side.take(Proceed)] == []


def test_an_observer_sends_no_model_and_receives_the_end() -> None:
    side = learner_side(observer=True, shards=1)
    side.feed(side.exchange.start(side.now))
    side.welcome(0, needs_model=True, incarnation=0)
    assert side.messages("model") == []
    side.value(0, 0, 1)
    side.value(0, 1, 1)
    side.receive(0, final=pb.Final(versions=side.heads(0, 1)))
    assert side.take(Finished) == []
    side.again()
    assert side.take(Finished) == [Finished()]


def test_the_registrar_gets_the_newest_evaluation_and_again_when_it_is_back() -> None:
    side = learner_side(observer=True)
    side.join()
    evaluation = pb.Evaluation(tick=100, loss=1.5, tokens=4096, seconds=2.0)
    side.feed(side.exchange.evaluated(evaluation))
    assert side.messages("evaluation") == [(0, evaluation)]
    side.lose(0)
    newer = pb.Evaluation(tick=200, loss=1.4, tokens=4096, seconds=2.0)
    side.feed(side.exchange.evaluated(newer))
    assert side.messages("evaluation") == []
    side.welcome(1)
    side.welcome(0)
    assert side.messages("evaluation") == [(0, newer)]
