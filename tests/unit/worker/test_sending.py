"""What a learner of several hosts sends: all its hosts' parts of one capture, or nothing."""

import asyncio
from typing import Any

import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_worker.rules.effects import SendHeld, SendOffer, SendSeed
from atoll_worker.transport.coordination import Outcome
from atoll_worker.transport.hands import Ticket
from atoll_worker.transport.lanes import Outgoing
from unit.worker.test_transport import KEY, OFFER, Rig, full


class Hands:
    """Hands whose answer is known before; what they are told."""

    lost = ""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.told: list[Any] = []
        self.prepared: list[tuple[Any, ...]] = []

    def prepare(self, *asked: Any) -> Ticket:
        self.prepared.append(asked)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        answer.set_result(self.outcome)
        return Ticket(len(self.prepared), asked[1], self.told.append, answer)

    def command(self, command: Any) -> None:
        self.told.append(command)


def rig_with(outcome: Outcome) -> tuple[Rig, Hands]:
    rig, hands = Rig(), Hands(outcome)
    rig.transport.hands = rig.transport.sending.hands = hands  # type: ignore[assignment]
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)
    return rig, hands


def sent(rig: Rig, effect: Any) -> list[Outgoing | None]:
    """What leaves when its turn comes."""

    async def scenario() -> list[Outgoing | None]:
        rig.transport.feed([effect])
        await asyncio.gather(*rig.transport.sending.works)
        return [await payload() for payload in rig.client.payloads]

    return asyncio.run(scenario())


def test_an_offer_of_which_another_host_has_lost_its_capture_is_not_sent_rule_33() -> None:
    rig, hands = rig_with(Outcome(lost=True, not_finite=()))
    assert sent(rig, SendOffer(0, OFFER)) == [None]
    assert rig.lost == [OFFER]
    assert [type(message).__name__ for message in hands.told] == ["Drop"]


def test_an_offer_whose_capture_is_lost_here_is_dropped_by_the_others() -> None:
    rig, hands = rig_with(Outcome(lost=False, not_finite=()))
    rig.capture(7.0)
    assert sent(rig, SendOffer(0, OFFER)) == [None]
    assert [type(message).__name__ for message in hands.told] == ["Drop"]


def test_the_others_get_number_and_head_of_what_is_sent_and_the_capture_that_it_is_of() -> None:
    rig, hands = rig_with(Outcome(lost=False, not_finite=()))
    (outgoing,) = sent(rig, SendOffer(0, OFFER))
    assert outgoing is not None
    assert hands.prepared == [("offer", 0, (0,), rig.transport.values.captures[KEY])]
    outgoing.numbered(8, outgoing.head)
    (named,) = hands.told
    assert (named.number, named.fragment) == (8, 0)
    assert pb.Transfer.FromString(named.head) == outgoing.head


@pytest.mark.parametrize("effect", [SendSeed(0), SendHeld(0, pb.Held())])
def test_seeds_and_held_versions_are_sent_when_all_have_them(effect: Any) -> None:
    rig, hands = rig_with(Outcome(lost=False, not_finite=()))
    (outgoing,) = sent(rig, effect)
    assert outgoing is not None
    assert outgoing.head.byte_count == len(np.asarray(outgoing.data))
    assert len(hands.prepared) == 1


def test_a_seed_that_is_not_finite_on_another_host_is_not_sent() -> None:
    rig, hands = rig_with(Outcome(lost=False, not_finite=("t",)))
    assert sent(rig, SendSeed(0)) == [None]
    (fail,) = hands.told
    assert fail.exit_code == ExitCode.BAD_INPUT
    assert fail.reason.startswith("model.t: has values that are not finite")


def test_tensors_that_are_not_finite_on_another_host_are_named() -> None:
    rig, _ = rig_with(Outcome(lost=False, not_finite=("t",)))
    assert sent(rig, SendOffer(0, OFFER)) != [None]
    assert rig.transport.sending.named == {KEY: ("t",)}
