"""What a learner sends over several lanes: every lane its part of every transfer, in one order."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Region, RunFile
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.division import Share
from atoll_protos.transfer.frames import Whole
from atoll_protos.transfer.gathering import Gathering
from atoll_worker.hosts.lanes import Dividing
from atoll_worker.job import read_job
from atoll_worker.transport.bulk import Outgoing, Payload

FORM = Form(10, 1000)
SIZE = FORM.byte_count(pb.INT8)


def offer(number: int, data_state: bytes | None = None) -> Outgoing:
    named = pb.Offer(slice=number, data_state=data_state)
    data = bytes((number + at) % 256 for at in range(SIZE))
    return Outgoing(pb.Transfer(offer=named, encoding=pb.INT8, byte_count=SIZE), data)


def companion() -> Outgoing:
    return Outgoing(pb.Transfer(companion=pb.Companion(), byte_count=5), b"12345")


def form(head: pb.Transfer) -> Form | None:
    return FORM if head.HasField("offer") else None


def sent(lanes: int, *outgoing: Outgoing | None) -> tuple[Dividing, list[Whole]]:
    """What a receiver puts together when the last lane goes first, and each as far as it can."""
    queue: asyncio.Queue[Payload] = asyncio.Queue()
    dividing = Dividing(Share(0, lanes, lanes), queue, form)
    gathering = Gathering(lanes, lambda head: SIZE if form(head) else 5, form)
    wholes: list[Whole] = []

    def payload(each: Outgoing | None) -> Callable[[], Awaitable[Outgoing | None]]:
        async def made() -> Outgoing | None:
            return each

        return made

    async def scenario() -> None:
        for each in outgoing:
            queue.put_nowait(payload(each))
        for lane in reversed(range(lanes)):
            for _ in filter(None, outgoing):
                for frame in (await dividing.next(lane)).frames(lane):
                    if (whole := gathering.feed(lane, frame)) is not None:
                        wholes.append(whole)

    asyncio.run(scenario())
    return dividing, wholes


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_what_the_lanes_send_is_put_together_again(lanes: int) -> None:
    outgoing = (offer(1), None, companion(), offer(2))
    dividing, wholes = sent(lanes, *outgoing)
    assert [bytes(whole.payload) for whole in wholes] == [each.data for each in outgoing if each]
    assert [whole.head for whole in wholes] == [each.head for each in outgoing if each]
    assert not dividing._line  # what all lanes have taken is not kept


def test_all_parts_of_an_offer_say_the_same_of_its_data_state_rule_28() -> None:
    _, wholes = sent(3, offer(1, b"state"), offer(2, b"state"), offer(3, b"other"))
    said = [(w.head.offer.data_state, w.head.offer.same_data_state) for w in wholes]
    assert said == [(b"state", False), (b"", True), (b"other", False)]


def test_lanes_that_wait_for_one_transfer_all_get_it() -> None:
    queue: asyncio.Queue[Payload] = asyncio.Queue()
    dividing = Dividing(Share(0, 3, 3), queue, form)

    async def one() -> Outgoing:
        return offer(1)

    async def scenario() -> list[int]:
        waiting = [asyncio.create_task(dividing.next(lane)) for lane in range(3)]
        await asyncio.sleep(0)
        queue.put_nowait(one)
        return [(await each).number for each in waiting]

    assert asyncio.run(scenario()) == [1, 1, 1]


@pytest.mark.parametrize(("given", "lanes"), [(None, 1), ("", 1), ("1", 1), ("256", 256)])
def test_the_number_of_lanes_is_that_of_the_environment(
    given: str | None, lanes: int, tmp_path: Path
) -> None:
    assert of_environment(given, tmp_path) == lanes


@pytest.mark.parametrize("given", ["0", "257", "-1", "two", "9" * 5000])
def test_another_number_of_lanes_is_refused_by_name(given: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"ATOLL_LANES.*from 1 to 256"):
        of_environment(given, tmp_path)


def of_environment(given: str | None, folder: Path) -> int:
    run_file = RunFile(job="j", regions=(Region(name="a", learners=1),), steps=1, shards=1)
    path = folder / "run.json"
    path.write_text(run_file.to_json())
    environment = {"ATOLL_RUN_FILE": str(path), "ATOLL_ENDPOINTS": "x:1", "ATOLL_SLOT": "a-0"}
    if given is not None:
        environment["ATOLL_LANES"] = given
    return read_job(environment=environment).lanes
