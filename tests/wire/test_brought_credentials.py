"""The Secret of `atoll credentials`, as the operator of another cluster uses it against a shard."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.plan import brought
from atoll_protos.credentials import Credentials
from atoll_protos.run import Region
from wire.raw_peer import RUN_FILE, ShardUnderTest, until
from wire.tls_side import DAY, FORMER_RUN, OWNER, Issuer, tls_shard

ISSUER = Issuer()
REGION = "elsewhere"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardUnderTest]:
    folder: Path = tmp_path_factory.mktemp("shard")
    regions = (*RUN_FILE.regions, Region(name=REGION, learners=1))
    with tls_shard(folder, ISSUER, run_file=replace(RUN_FILE, regions=regions)) as process:
        yield process


def operator_of(issuer: Issuer) -> Credentials:
    """What the operator of the region's cluster reads from the Secret that was applied there."""
    now = time.time()
    raw = brought.secret(issuer.authorities, issuer.owner, REGION, "s", now, 30 * DAY)
    found = brought.judged(raw, "s", OWNER.job, REGION, now)
    assert found.fault == ""
    assert found.operator is not None
    return found.operator


def test_it_asks_and_names_owners_of_its_region_and_says_nothing_of_the_whole_job(
    served: ShardUnderTest,
) -> None:
    own, address = operator_of(ISSUER), served.endpoint

    async def scenario() -> None:
        syncers = Syncers()
        try:
            (reply,) = await syncers.status([address], credentials=own)
            assert reply is not None
            assert reply.must_equal
            assert await syncers.set_owner(address, f"{REGION}-0", "", 99, own) is not None
            assert await syncers.set_owner(address, "here-0", "", 99, own) is None
            suspends = pb.StatusRequest(intent=pb.INTENT_SUSPEND)
            assert await syncers.status([address], suspends, own) == [None]
            (reply,) = await syncers.status([address], credentials=own)
            assert reply is not None
            assert reply.intent == pb.INTENT_UNSPECIFIED
        finally:
            await syncers.close()

    asyncio.run(scenario())


def test_a_shard_does_not_take_those_of_a_former_run_and_the_operator_can_say_why(
    served: ShardUnderTest,
) -> None:
    former, address = operator_of(Issuer(FORMER_RUN)), served.endpoint
    mixed = replace(former, authority=ISSUER.authorities.bundle)  # it believes the shard

    async def scenario() -> None:
        syncers = Syncers()
        try:
            for credentials in (former, mixed):
                assert await syncers.status([address], credentials=credentials) == [None]
                key = address, credentials
                await until(lambda key=key: key in syncers.reasons)  # type: ignore[misc]
                assert syncers.reasons[key].other_run
                assert "another run" in syncers.reasons[key].text
        finally:
            await syncers.close()

    asyncio.run(scenario())
