"""Certificates and authorities change while their processes talk, and no stream is dropped."""

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authorities, make_authority
from atoll_protos.environment import Env
from atoll_protos.job.expected import Expected, Limit
from atoll_protos.network.channels import Folder
from atoll_protos.network.credentials import Credentials
from atoll_protos.network.identity import Role
from atoll_syncer.edges.registrar_client import RegistrarClient, open_channel
from wire.raw_peer import RUN_FILE, ShardUnderTest, peer, until
from wire.tls_side import (
    DAY,
    ISSUER,
    OTHER_JOB,
    Issuer,
    dialled,
    put,
    put_file,
    status,
    tls_shard,
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


def test_what_is_revoked_is_refused_until_others_are_brought(tmp_path: Path) -> None:
    """A region stays in the job, and its former certificates, learner's and operator's, do not."""
    issuer, list_of_slots = Issuer(), tmp_path / "slots.json"
    regions = RUN_FILE.regions
    list_of_slots.write_text(Expected(regions=regions).to_json())

    async def scenario(endpoint: str) -> None:
        async with peer(endpoint, "here-0", credentials=issuer.leaf()) as learner:
            await learner.ready_to_seed()
            limits = (Limit(region="here", generation=1),)
            put_file(list_of_slots, Expected(regions=regions, limits=limits).to_json())
            end = await learner.until("end")
        assert (end.code, end.retry) == (pb.NOT_ALLOWED, True)
        assert "the certificates of region here have been revoked" in end.reason
        former = put(tmp_path / "former", issuer.leaf())
        _, ends = await asyncio.to_thread(dialled, endpoint, former)
        (end,) = ends
        assert (end.code, end.retry) == (pb.NOT_ALLOWED, True)
        assert "generation 1 or later of region here" in end.reason
        with pytest.raises(grpc.RpcError) as refused:
            await asyncio.to_thread(status, endpoint, issuer.leaf(Role.OPERATOR))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        brought = issuer.leaf(generation=1)
        async with peer(endpoint, "here-1", credentials=brought) as learner:
            assert (await learner.join()).HasField("welcome")
        assert (await asyncio.to_thread(status, endpoint, issuer.leaf(Role.SHARD))).shard == 0

    with tls_shard(tmp_path, issuer, "--slots-file", str(list_of_slots)) as served:
        asyncio.run(scenario(served.endpoint))


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


# ------------------------------------------------------------ a learner that trains

SCRIPT = """
import time, torch
from atoll import Learner
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Learner(model, optimizer) as learner:
    while True:
        time.sleep(0.05)
        loss = model(torch.ones(1, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(loss=loss, tokens=1)
"""


def test_a_learner_whose_certificate_expires_while_it_trains_says_so_and_trains_on(
    tmp_path: Path,
) -> None:
    """Nobody renews it: its operator, or the kubelet of its node, is away."""
    issuer, folder = Issuer(), tmp_path / "learner"
    put(folder, issuer.leaf())

    def slot(endpoint: str) -> pb.SlotStatus:
        slots = status(endpoint, issuer.leaf(Role.OPERATOR)).slots
        return slots[0] if slots else pb.SlotStatus()

    endless = replace(RUN_FILE, steps=1_000_000)  # it trains for as long as the test takes
    with tls_shard(tmp_path, issuer, run_file=endless) as served:
        variables = {
            Env.RUN_FILE: str(tmp_path / "run.json"),
            Env.ENDPOINTS: served.endpoint,
            Env.SLOT: "here-0",
            Env.TLS_DIR: str(folder),
            "OMP_NUM_THREADS": "1",
        }
        command, environment = [sys.executable, "-c", SCRIPT], {**os.environ, **variables}
        with subprocess.Popen(command, env=environment) as process:
            try:
                asyncio.run(until(lambda: slot(served.endpoint).state == pb.SLOT_TRAINING))
                assert slot(served.endpoint).trouble == ""
                put(folder, issuer.leaf())  # on time: it dials again as the same instance
                lines = served.log.read_text
                asyncio.run(until(lambda: lines().count('"event": "session ended"') == 1))
                asyncio.run(until(lambda: slot(served.endpoint).state == pb.SLOT_TRAINING))
                put(folder, issuer.leaf(begun=31 * DAY))
                asyncio.run(until(lambda: slot(served.endpoint).trouble != ""))
                seen = slot(served.endpoint)
                assert "tls.crt: expired at 20" in seen.trouble
                asyncio.run(until(lambda: slot(served.endpoint).t_m > seen.t_m))
                assert slot(served.endpoint).incarnation == seen.incarnation
                put(folder, issuer.leaf())
                asyncio.run(until(lambda: slot(served.endpoint).trouble == ""))
                assert slot(served.endpoint).incarnation == seen.incarnation
            finally:
                process.kill()
