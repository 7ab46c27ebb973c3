"""Certificates and authorities change while their processes talk, and no stream is dropped."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authorities, make_authority
from atoll_protos.network.channels import Folder
from atoll_protos.network.credentials import Credentials, Role
from atoll_syncer.edges.registrar_client import RegistrarClient, open_channel
from wire.fixtures import (
    ISSUER,
    OTHER_JOB,
    RUN_FILE,
    Issuer,
    ShardUnderTest,
    dialled,
    peer,
    put,
    status,
    tls_shard,
    until,
)

LIFE_SECONDS_MIN = 15.0
CALLS = 50  # of a machine that is busy now and then


def test_credentials_are_renewed_without_dropping_a_stream(tmp_path: Path) -> None:
    """With leaves of a few seconds.

    The shard's first one expires while a stream is open, and then that of another stream, which
    ends with it (rule 41).
    """
    issuer = Issuer()
    folder = tmp_path / "tls"

    async def scenario(endpoint: str) -> None:
        life = lifetime(endpoint, issuer)
        put(folder, issuer.leaf(Role.SHARD, life=life))
        first = issuer.leaf(life=life)
        async with peer(endpoint, "here-0", credentials=issuer.leaf()) as learner:
            await learner.ready_to_seed()
            put(folder, issuer.leaf(Role.SHARD))
            async with peer(endpoint, "here-2", credentials=first) as brief:
                assert (await brief.join()).HasField("welcome")
                end = await brief.until("end")
            assert (end.code, end.retry) == (pb.NOT_ALLOWED, True)
            assert "has expired" in end.reason
            assert time.time() > first.not_after - 1
            await until(lambda: time.time() > first.not_after + 1)
            await learner.seed()
            await until(lambda: status(endpoint, issuer.leaf()).state == pb.SHARD_SERVING)
            old = put(tmp_path / "old", first)
            reason, ends = await asyncio.to_thread(dialled, endpoint, old)
            assert "tls.crt: expired at 20" in reason
            assert not ends
            put(old, issuer.leaf())
            await asyncio.to_thread(renewed_learner_joins, endpoint, old)

    with tls_shard(tmp_path, issuer) as served:
        asyncio.run(scenario(served.endpoint))


def lifetime(endpoint: str, issuer: Issuer) -> float:
    """Seconds in which a certificate is surely used once: by how long a call takes here."""
    began = time.monotonic()
    status(endpoint, issuer.leaf())
    return max(LIFE_SECONDS_MIN, CALLS * (time.monotonic() - began))


def renewed_learner_joins(endpoint: str, folder: Path) -> None:
    async def scenario() -> None:
        async with peer(endpoint, "here-1", credentials=Credentials.read(folder)) as one:
            assert (await one.join()).HasField("welcome")

    asyncio.run(scenario())


def test_a_shard_keeps_its_last_good_credentials_and_says_why(tmp_path: Path) -> None:
    issuer = Issuer()
    with tls_shard(tmp_path, issuer) as served:
        for wrong in (issuer.leaf(Role.SHARD, owner=OTHER_JOB), issuer.leaf()):
            put(tmp_path / "tls", wrong)
            assert status(served.endpoint, issuer.leaf()).shard == 0
        lines = served.log.read_text().splitlines()
        said = [line for line in lines if "credentials cannot be used" in line]
        assert len(said) == 2
        assert "is that of job other, and job wire is needed" in said[0]
        assert "is that of role learner, and shard is needed" in said[1]


def test_two_authorities_are_believed_while_one_replaces_the_other(tmp_path: Path) -> None:
    """Before, during and after the change, whatever the two ends have got of it."""
    issuer = Issuer()
    now = time.time()
    first = issuer.authorities
    both = replace(first, successor=make_authority(issuer.owner, now))
    assert both.successor is not None
    switched = Authorities(signer=both.successor, former=first.signer.certificate)
    states = [first, both, switched]

    def joins(endpoint: str, state: Authorities) -> None:
        issuer.authorities = state
        assert status(endpoint, issuer.leaf()).shard == 0

    with tls_shard(tmp_path, issuer) as served:
        for before, after in pairwise(states):
            for shards, learners in ((before, after), (after, before), (after, after)):
                issuer.authorities = shards
                put(tmp_path / "tls", issuer.leaf(Role.SHARD))
                joins(served.endpoint, learners)


async def test_a_shard_asks_the_registrar_also_after_its_credentials_were_renewed(
    served: ShardUnderTest, tmp_path: Path
) -> None:
    life = lifetime(served.endpoint, ISSUER)
    folder = put(tmp_path / "tls", ISSUER.leaf(Role.SHARD, life=life))

    client = RegistrarClient(partial(open_channel, served.endpoint), Folder(path=str(folder)))
    hello = pb.HelloRequest(run_hash=RUN_FILE.hash, empty=True)
    assert await client.ask(hello) is not None
    first = Credentials.read(folder)
    await until(lambda: time.time() > first.not_after + 1)
    assert await client.ask(hello) is None  # it does not go on with what has expired
    put(folder, ISSUER.leaf(Role.SHARD))
    assert await client.ask(hello) is not None
    put(folder, ISSUER.leaf(Role.LEARNER))
    assert await client.ask(hello) is None
