"""Certificates of single machines: what they may join as, and what ends when one is revoked."""

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Expected, ListedMachine
from atoll_protos.network.credentials import Role
from atoll_syncer.edges.job_files import READ_SECONDS
from atoll_syncer.edges.service import CLOSE_SECONDS, SHUT_OUT_SECONDS_MAX
from wire.fixtures import (
    RUN_FILE,
    SECONDS_MAX,
    Issuer,
    Peer,
    dialled,
    peer,
    put,
    put_file,
    status,
    tls_shard,
    until,
)

REVOKED_SECONDS_MAX = 2.0
STEP_SECONDS = 0.3  # more than a quarter of the one that a peer reports


def listed(**slots: str) -> str:
    """A list of the job's learners with these machines, each with one slot."""
    machines = tuple(ListedMachine(name=name, slots=(slot,)) for name, slot in slots.items())
    return Expected(regions=RUN_FILE.regions, machines=machines, start_seconds=0).to_json()


async def over(peer: Peer) -> None:
    """Both streams of a session have ended; values may have come before."""
    async with asyncio.timeout(SECONDS_MAX):
        assert await peer.call.read() is grpc.aio.EOF
        with suppress(grpc.aio.AioRpcError):
            while await peer.bulk.read() is not grpc.aio.EOF:
                pass
        assert await peer.bulk.code() is not None


async def trains_on(peer: Peer) -> None:
    """It steps until it is called, and offers: a step counts only for its time (rule 39)."""
    called, t_m = asyncio.create_task(peer.until("call")), 0
    while not called.done():
        await peer.report(t_m)
        await asyncio.wait([called], timeout=STEP_SECONDS)
        t_m += 1
    await peer.offer(called.result(), t_m - 1, 0.01)


def test_a_revoked_machine_loses_its_streams_and_another_one_of_its_region_goes_on(
    tmp_path: Path,
) -> None:
    issuer, list_of_slots = Issuer(), tmp_path / "slots.json"
    list_of_slots.write_text(listed(one="here-0", two="here-1"))
    one, two = (issuer.leaf(machine=each) for each in ("one", "two"))
    operator = issuer.leaf(Role.OPERATOR)

    async def scenario(endpoint: str) -> None:
        async with (
            peer(endpoint, "here-1", credentials=two) as stays,
            peer(endpoint, "here-0", credentials=one) as goes,
        ):
            await stays.ready_to_seed()
            await stays.seed()
            await until(lambda: status(endpoint, operator).state == pb.SHARD_SERVING)
            assert (await goes.join()).HasField("welcome")
            began = time.monotonic()
            put_file(list_of_slots, listed(two="here-1"))
            end = await goes.until("end")
            await over(goes)
            sys.stderr.write(f"\n{time.monotonic() - began:.2f} s from the list to the end\n")
            assert (end.code, end.retry) == (pb.NOT_ALLOWED, True)
            assert "machine one has no place on the job's list" in end.reason
            await trains_on(stays)
            await until(lambda: status(endpoint, operator).commits > 0)
        with pytest.raises(grpc.RpcError) as refused:
            await asyncio.to_thread(status, endpoint, one)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        folder = put(tmp_path / "one", one)
        _, ends = await asyncio.to_thread(dialled, endpoint, folder, "here-0")
        (end,) = ends
        assert (end.code, end.retry) == (pb.NOT_ALLOWED, True)
        assert "a machine that is on the job's list" in end.reason
        put_file(list_of_slots, listed(two="here-1", one="here-0"))
        async with peer(endpoint, "here-0", credentials=one) as again:
            assert (await again.join(instance="again")).HasField("welcome")

    with tls_shard(tmp_path, issuer, "--slots-file", str(list_of_slots)) as served:
        asyncio.run(scenario(served.endpoint))
        assert "learner on machine one" in served.log.read_text()


def test_the_bounds_of_a_revocation_add_up_to_what_is_promised() -> None:
    """A list is read again, and an End that nobody reads is given up: no timer is beside these."""
    assert READ_SECONDS + SHUT_OUT_SECONDS_MAX + CLOSE_SECONDS < REVOKED_SECONDS_MAX
