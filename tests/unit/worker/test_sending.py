"""What a learner of several hosts sends: all its hosts' parts of one capture, or nothing."""

import asyncio
from typing import Any

import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_worker.hosts.head import Asked
from atoll_worker.hosts.lanes import Shared
from atoll_worker.rules.effects import SendHeld, SendOffer, SendSeed
from atoll_worker.transport.bulk import Outgoing
from atoll_worker.transport.held_values import PreparedParts
from unit.worker.rig import KEY, OFFER, Rig, full


class Told:
    """What lane processes are told whose answer is known before."""

    def __init__(self, rig: Rig, outcome: PreparedParts) -> None:
        self.messages: list[Any] = []
        self.prepared: list[tuple[Any, ...]] = []
        self.outcome = outcome
        carrier: Any = rig.transport.carrier
        carrier.prepare = self.prepare
        rig.transport.end.send = self.messages.append  # type: ignore[method-assign, assignment]

    def prepare(self, *asked: Any) -> Asked:
        self.prepared.append(asked)
        answer: asyncio.Future[PreparedParts] = asyncio.get_running_loop().create_future()
        answer.set_result(self.outcome)
        order = len(self.prepared)
        return Asked(order=order, shard=asked[1], tell=self.tell, missing=set(), outcome=answer)

    def tell(self, **message: Any) -> None:
        self.messages += message.values()


def rig_with(outcome: PreparedParts) -> tuple[Rig, Told]:
    rig = Rig(lanes=2, own_lanes=(0, 2))
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)
    return rig, Told(rig, outcome)


def sent(rig: Rig, effect: Any) -> list[Outgoing | None]:
    """What leaves when its turn comes."""

    async def scenario() -> list[Outgoing | None]:
        rig.transport.feed([effect])
        await asyncio.gather(*rig.transport.carrier.works)
        return [await payload() for payload in rig.client.payloads]

    return asyncio.run(scenario())


def test_an_offer_of_which_another_host_has_lost_its_capture_is_not_sent_rule_33() -> None:
    rig, told = rig_with(PreparedParts(lost=True, not_finite=()))
    assert sent(rig, SendOffer(0, OFFER)) == [None]
    assert rig.lost == [OFFER]
    assert [type(message).__name__ for message in told.messages] == ["Drop"]


def test_an_offer_whose_capture_is_lost_here_is_dropped_by_the_others() -> None:
    rig, told = rig_with(PreparedParts(lost=False, not_finite=()))
    rig.capture(7.0)
    assert sent(rig, SendOffer(0, OFFER)) == [None]
    assert [type(message).__name__ for message in told.messages] == ["Drop"]


def test_the_others_get_number_and_head_of_what_is_sent_and_the_capture_that_it_is_of() -> None:
    rig, told = rig_with(PreparedParts(lost=False, not_finite=()))
    (outgoing,) = sent(rig, SendOffer(0, OFFER))
    assert isinstance(outgoing, Shared)
    assert told.prepared == [(pb.PREPARES_OFFER, 0, (0,), rig.transport.values.captures[KEY])]
    outgoing.numbered(8, outgoing.head)
    (named,) = told.messages
    assert (named.number, named.fragment) == (8, 0)
    assert named.head == outgoing.head


@pytest.mark.parametrize("effect", [SendSeed(0), SendHeld(0, pb.Held())])
def test_seeds_and_held_versions_are_sent_when_all_have_them(effect: Any) -> None:
    rig, told = rig_with(PreparedParts(lost=False, not_finite=()))
    (outgoing,) = sent(rig, effect)
    assert outgoing is not None
    assert outgoing.head.byte_count == len(np.asarray(outgoing.data))
    assert len(told.prepared) == 1


def test_a_seed_that_is_not_finite_on_another_host_is_not_sent() -> None:
    rig, told = rig_with(PreparedParts(lost=False, not_finite=("t",)))
    assert sent(rig, SendSeed(0)) == [None]
    (fail,) = told.messages
    assert fail.exit_code == ExitCode.BAD_INPUT
    assert fail.reason.startswith("model.t: has values that are not finite")


def test_tensors_that_are_not_finite_on_another_host_are_named() -> None:
    rig, _ = rig_with(PreparedParts(lost=False, not_finite=("t",)))
    assert sent(rig, SendOffer(0, OFFER)) != [None]
    assert rig.transport.carrier.named == {KEY: ("t",)}
