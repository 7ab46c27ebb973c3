"""Mutual TLS between real processes: which role of which region may make which call."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.polls import Syncers
from atoll_protos.network.channels import TARGET_NAME, Folder, control_options
from atoll_protos.network.credentials import Credentials, Role
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub, SyncerStub
from atoll_syncer.edges.exporting import ExportError, ShardAddresses, take
from wire.fixtures import (
    FORMER_RUN,
    ISSUER,
    OWNER,
    RUN_FILE,
    SECONDS_MAX,
    Issuer,
    Peer,
    ShardUnderTest,
    bad_credentials,
    peer,
    put,
    status,
    tls_shard,
    until,
)

PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED


def call(endpoint: str, credentials: Credentials, name: str) -> grpc.StatusCode:
    """How one of REQUESTS ends, by this job's name; OK also where rules refuse what it asks."""

    async def scenario() -> grpc.StatusCode:
        secret = grpc.ssl_channel_credentials(
            credentials.authority, credentials.key, credentials.certificate
        )
        options = [*control_options(), (TARGET_NAME, ISSUER.owner.server_name)]
        stub, method, request = REQUESTS[name]
        async with grpc.aio.secure_channel(endpoint, secret, options=options) as channel:
            try:
                await getattr(stub(channel), method)(request, timeout=SECONDS_MAX)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    return asyncio.run(scenario())


SUSPEND = pb.StatusRequest(intent=pb.INTENT_SUSPEND)
REQUESTS: dict[str, tuple[Any, str, Any]] = {  # by the name of the call, or of what it says
    "Status": (SyncerStub, "Status", pb.StatusRequest()),
    "Status with an intent": (SyncerStub, "Status", SUSPEND),
    "Hello": (RegistrarStub, "Hello", pb.HelloRequest()),
    "MarkBegun": (RegistrarStub, "MarkBegun", pb.MarkBegunRequest(shard=9)),
    "ReportFinal": (RegistrarStub, "ReportFinal", pb.ReportFinalRequest(shard=9)),
    "SetOwner": (RegistrarStub, "SetOwner", pb.SetOwnerRequest(slot="here-1", generation=7)),
}
ALLOWED = {
    "Status": {(role, region) for role in Role for region in ("here", "elsewhere")},
    "Hello": {(Role.SHARD, "here"), (Role.SHARD, "elsewhere")},
    "MarkBegun": {(Role.SHARD, "here"), (Role.SHARD, "elsewhere")},
    "ReportFinal": {(Role.SHARD, "here"), (Role.SHARD, "elsewhere")},
    "Status with an intent": {(Role.OPERATOR, "here")},
    "SetOwner": {(Role.OPERATOR, "here")},
}


@pytest.mark.parametrize("name", ["Status", "Status with an intent", "SetOwner", "Hello"])
def test_a_call_is_for_the_roles_and_regions_that_may_make_it(
    name: str, served: ShardUnderTest
) -> None:
    for role in Role:
        for region in ("here", "elsewhere"):
            code = call(served.endpoint, ISSUER.leaf(role, region), name)
            assert (code is PERMISSION_DENIED) == ((role, region) not in ALLOWED[name])


@pytest.mark.parametrize("name", ["MarkBegun", "ReportFinal"])
def test_the_calls_of_shards_are_for_nobody_else(name: str, served: ShardUnderTest) -> None:
    for role in {*Role} - {Role.SHARD}:
        assert call(served.endpoint, ISSUER.leaf(role), name) is PERMISSION_DENIED


@pytest.mark.parametrize("wrong", ["other job, one authority", "former run, one authority"])
def test_no_call_is_for_another_job_or_run_that_shares_the_authority(
    wrong: str, served: ShardUnderTest
) -> None:
    """An issuer of the cluster's own signs for all jobs."""
    owner = bad_credentials(ISSUER)[wrong].identity.owner
    for role in (Role.SHARD, Role.OPERATOR):
        leaf = ISSUER.leaf(role, owner=owner)
        for name in REQUESTS:
            assert call(served.endpoint, leaf, name) is PERMISSION_DENIED


def test_observers_are_taken_by_their_role(served: ShardUnderTest) -> None:
    async def answer(role: Role) -> pb.ToLearner:
        async with peer(served.endpoint, "", credentials=ISSUER.leaf(role)) as one:
            return await one.join(observer=True, slot="")

    for role in Role:
        refused = asyncio.run(answer(role)).end.code == pb.NOT_ALLOWED
        assert refused == (role is Role.LEARNER)


async def test_a_bulk_stream_comes_from_who_has_opened_the_session(served: ShardUnderTest) -> None:
    """Its number and secret are not enough."""

    learner, other = ISSUER.leaf(), ISSUER.leaf(region="elsewhere")
    async with peer(served.endpoint, "here-0", credentials=learner) as one:
        assert (await one.join()).HasField("welcome")
        stolen = Peer(stub=one.stub, endpoint=one.endpoint, slot=one.slot, credentials=other)
        stolen.welcome = one.welcome
        stolen._open_channel()
        for lane in ("", "1"):
            bulk = stolen.open_bulk(one.welcome.secret, lane)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(bulk.read(), SECONDS_MAX)
            assert refused.value.code() is PERMISSION_DENIED
        await stolen.bulk_channel.close()


def test_probes_find_health_alone_on_a_port_of_plain_text(served: ShardUnderTest) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.health_port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS_MAX)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        calls: Any = (
            (SyncerStub(channel).Status, pb.StatusRequest()),
            (RegistrarStub(channel).SetOwner, pb.SetOwnerRequest()),
        )
        for ask, request in calls:
            with pytest.raises(grpc.RpcError) as refused:
                ask(request, timeout=SECONDS_MAX)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_export_is_taken_with_credentials_that_may_see_all_values(tmp_path: Path) -> None:
    issuer = Issuer()

    async def scenario(endpoint: str) -> None:
        async with peer(endpoint, "here-0", credentials=issuer.leaf()) as learner:
            await learner.ready_to_seed()
            await learner.seed()
            await until(lambda: status(endpoint, issuer.leaf()).state == pb.SHARD_SERVING)
            for role, fails in (
                (Role.LEARNER, "observing needs the certificate of role evaluator or observer"),
                (Role.OBSERVER, ""),
                (Role.SHARD, ""),
            ):
                folder = put(tmp_path / role, issuer.leaf(role))
                reach = ShardAddresses((endpoint,), Folder(path=str(folder)))
                with pytest.raises(ExportError, match=fails) if fails else nullcontext():
                    assert await take(RUN_FILE, reach, tmp_path / f"model-{role}") >= 0

    with tls_shard(tmp_path, issuer) as served:
        asyncio.run(scenario(served.endpoint))
    assert (tmp_path / "model-shard" / "model.safetensors").exists()


async def test_an_operator_asks_and_names_owners_in_its_own_regions(
    served: ShardUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_operator.kube.edges.polls.CALL_SECONDS_MAX", SECONDS_MAX)
    ours, other = ISSUER.leaf(Role.OPERATOR), ISSUER.leaf(Role.OPERATOR, "elsewhere")
    foreign, former = (Issuer(owner).leaf(Role.OPERATOR) for owner in (OWNER, FORMER_RUN))
    mixed = replace(former, authority=ISSUER.authorities.bundle)  # it believes the shard
    syncers, address = Syncers(), served.endpoint
    try:
        for credentials in (ours, other, ISSUER.leaf(Role.OPERATOR)):
            (reply,) = await syncers.status([address], credentials=credentials)
            assert reply is not None
        assert await syncers.set_owner(address, "here-1", "", 99, ours) is not None
        assert not syncers.reasons
        assert await syncers.set_owner(address, "here-1", "", 99, other) is None
        said = syncers.reasons[address, other].text
        assert "needs the certificate of the operator of region here" in said
        (reply,) = await syncers.status([address], credentials=ours)
        assert reply is not None
        assert (reply.refused_peer, reply.seconds_since_refused_peer >= 0) == (said, True)
        assert await syncers.status([address], credentials=foreign) == [None]
        assert await syncers.status([address]) == [None]
        await until(lambda: {(address, foreign), (address, None)} <= syncers.reasons.keys())
        for credentials in (former, mixed):
            assert await syncers.status([address], credentials=credentials) == [None]
        await until(lambda: {(address, former), (address, mixed)} <= syncers.reasons.keys())
        for credentials in (former, mixed):
            assert syncers.reasons[address, credentials].other_run
            assert "another run" in syncers.reasons[address, credentials].text
    finally:
        await syncers.close()
