"""Mutual TLS between real processes: who is taken, and what everybody else is told."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.certificates import Authorities, make_authority
from atoll_operator.kube.edges.syncers import Syncers
from atoll_protos import channels
from atoll_protos.channels import Folder
from atoll_protos.credentials import ANY, Credentials
from atoll_protos.environment import Env
from atoll_protos.identity import Role
from atoll_protos.names import PROTOCOL
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub, SyncerStub
from atoll_syncer.exporting import ExportError, Reach, take
from atoll_syncer.registrar_client import RegistrarClient, open_channel
from atoll_worker.settings import needed_of
from atoll_worker.transport.client import Dialler, ShardClient
from wire.raw_peer import RUN_FILE, SECONDS_MAX, Peer, ShardUnderTest, peer, shard, until
from wire.test_scrapes import scrape
from wire.tls_side import DAY, OTHER_JOB, Issuer, bad_credentials, put, status, tls_shard

PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
ISSUER = Issuer()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardUnderTest]:
    """A shard of the job with mutual TLS; tests here change nothing that another one reads."""
    with tls_shard(tmp_path_factory.mktemp("shard"), ISSUER) as process:
        yield process


class Heard:
    """What one dial of a learner comes to."""

    def __init__(self) -> None:
        self.ends: list[pb.End] = []
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.client: Any = None

    def connected(self, shard: int) -> None:
        join = pb.Join(protocol=PROTOCOL, run_hash=RUN_FILE.hash, slot="here-2", instance="i")
        self.client.send(pb.ToShard(join=join))

    def message(self, shard: int, message: pb.ToLearner) -> None:
        if message.HasField("end"):
            self.ends.append(message.end)

    def publish_started(self, shard: int, head: pb.Transfer) -> int | None:
        del shard, head
        return None

    async def published(self, shard: int, head: pb.Transfer, payload: bytearray) -> None: ...

    def disconnected(self, shard: int, reason: str) -> None:
        if not self.reason.done():
            self.reason.set_result(reason)


def dialled(
    endpoint: str, folder: Path | None, slot: str | None = "here-2"
) -> tuple[str, list[pb.End]]:
    """One dial with these credentials: why it ended, and the Ends that the learner heard."""

    async def scenario() -> tuple[str, list[pb.End]]:
        heard = Heard()
        needed = needed_of(slot) if slot is not None else ANY
        dialler = Dialler(Folder(path=str(folder or ""), needed=needed))
        heard.client = ShardClient(0, endpoint, heard, dialler.open, dialler.ready)
        heard.client.dial()
        reason = await asyncio.wait_for(heard.reason, SECONDS_MAX)
        return reason, heard.ends

    return asyncio.run(scenario())


def nothing_was_merged(served: ShardUnderTest) -> bool:
    seen = status(served.endpoint, ISSUER.leaf(Role.OPERATOR))
    return seen.bytes_received == 0 and seen.commits == 0


# ------------------------------------------------------------ a learner with bad credentials


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("self-made", "tls.crt: was not issued by an authority of ca.crt, but by "),
        ("other region", "tls.crt: is that of region elsewhere, and region here is needed"),
        ("other role", "tls.crt: is that of role evaluator, and learner is needed"),
        ("other job", "the shard has those of shard of region here of team/wire (UID run-2), and"),
        (
            "other job, one authority",
            "the shard has those of shard of region here of team/wire (UID run-2), and",
        ),
    ],
)
def test_a_learner_ends_for_good_with_credentials_that_stay_wrong(
    wrong: str, words: str, served: ShardUnderTest, tmp_path: Path
) -> None:
    folder = put(tmp_path / "tls", bad_credentials(ISSUER)[wrong])
    reason, (end,) = dialled(served.endpoint, folder)
    assert words in reason
    assert words in end.reason
    assert end.code == pb.NOT_ALLOWED
    assert end.remedy
    assert not end.retry
    assert nothing_was_merged(served)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("former run", "has credentials of another run, shard of region here of team/wire (UID"),
        ("expired", "tls.crt: expired at 20"),
    ],
)
def test_a_learner_waits_where_new_credentials_may_come(
    wrong: str, words: str, served: ShardUnderTest, tmp_path: Path
) -> None:
    folder = put(tmp_path / "tls", bad_credentials(ISSUER)[wrong])
    reason, ends = dialled(served.endpoint, folder)
    assert words in reason
    assert "\n" not in reason
    assert not ends
    assert nothing_was_merged(served)


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ("other region", "other_region", "needs the certificate of the learner of region here"),
        ("other role", "other_role", "needs the certificate of the learner of region here"),
    ],
)
def test_a_shard_refuses_what_a_learner_did_not_look_at_in_words_log_and_metric(
    wrong: str, code: str, words: str, served: ShardUnderTest, tmp_path: Path
) -> None:
    """A learner of another version, or an intruder, may dial without looking at its files."""
    before = scrape(served.metrics_port)
    folder = put(tmp_path / "tls", bad_credentials(ISSUER)[wrong])
    _, (end,) = dialled(served.endpoint, folder, slot=None)
    assert end.code == pb.NOT_ALLOWED
    assert words in end.reason
    assert str(bad_credentials(ISSUER)[wrong].identity) in end.reason
    said = [line for line in served.log.read_text().splitlines() if "peer refused" in line]
    lines = [json.loads(line) for line in said]
    assert lines[-1]["reason"] == end.reason
    name = f"refused_peers_total {code}"
    assert scrape(served.metrics_port)[name] == before[name] + 1
    assert nothing_was_merged(served)


@pytest.mark.parametrize(
    ("wrong", "reason", "words"),
    [
        ("former run", "unknown_authority", "self-made, or of another job, or of a former run"),
        ("expired", "expired", "its certificate has expired"),
        ("none", "no_certificate", "it presented no certificate"),
        ("plain text", "plain_text", "it does not speak TLS"),
    ],
)
def test_a_shard_says_and_counts_handshakes_that_fail(
    wrong: str, reason: str, words: str, served: ShardUnderTest
) -> None:
    """Whatever dials: a learner looks at its own files before it does."""
    name, event = f"refused_peers_total {reason}", "peer refused in the handshake"
    before, port = scrape(served.metrics_port)[name], int(served.endpoint.rpartition(":")[2])
    if wrong == "plain text":
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert connection.recv(1) == b""
    else:
        bad = bad_credentials(ISSUER).get(wrong)
        mine = grpc.ssl_channel_credentials(
            ISSUER.authorities.bundle, *((bad.key, bad.certificate) if bad else ())
        )
        options = [(channels.TARGET_NAME, ISSUER.owner.server_name)]
        with grpc.secure_channel(served.endpoint, mine, options=options) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                SyncerStub(channel).Status(pb.StatusRequest(), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    asyncio.run(until(lambda: scrape(served.metrics_port)[name] > before))
    said = [line for line in served.log.read_text().splitlines() if event in line]
    assert any(words in json.loads(line)["reason"] for line in said)
    assert nothing_was_merged(served)


def test_tls_on_one_side_only_is_said_in_one_line(served: ShardUnderTest, tmp_path: Path) -> None:
    reason, (end,) = dialled(served.endpoint, None)
    assert reason.startswith("ATOLL_TLS_DIR: the shard serves TLS alone, and this process has no")
    assert end.code == pb.NOT_ALLOWED
    folder = put(tmp_path / "tls", ISSUER.leaf())
    (tmp_path / "plain").mkdir()
    with shard(tmp_path / "plain") as plain:
        reason, ends = dialled(plain.endpoint, folder)
        assert "it serves plain text, and this process has credentials" in reason
        assert not ends
        assert plain.status.bytes_received == 0
    assert nothing_was_merged(served)


# ------------------------------------------------------------ each call


def call(endpoint: str, credentials: Credentials, ask: Any) -> grpc.StatusCode:
    """How a unary call ends; OK also where the rules refuse what it asks."""

    async def scenario() -> grpc.StatusCode:
        options = channels.control_options()
        async with channels.open_channel(endpoint, options, credentials) as channel:
            try:
                await ask(channel)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    return asyncio.run(scenario())


CALLS = {
    "Status": lambda channel: SyncerStub(channel).Status(pb.StatusRequest(), timeout=10),
    "Status with an intent": lambda channel: SyncerStub(channel).Status(
        pb.StatusRequest(intent=pb.INTENT_SUSPEND), timeout=10
    ),
    "Hello": lambda channel: RegistrarStub(channel).Hello(pb.HelloRequest(), timeout=10),
    "MarkBegun": lambda channel: RegistrarStub(channel).MarkBegun(
        pb.MarkBegunRequest(shard=9), timeout=10
    ),
    "ReportFinal": lambda channel: RegistrarStub(channel).ReportFinal(
        pb.ReportFinalRequest(shard=9), timeout=10
    ),
    "SetOwner": lambda channel: RegistrarStub(channel).SetOwner(
        pb.SetOwnerRequest(slot="here-1", uid="", word=7), timeout=10
    ),
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
            code = call(served.endpoint, ISSUER.leaf(role, region), CALLS[name])
            assert (code is PERMISSION_DENIED) == ((role, region) not in ALLOWED[name])


@pytest.mark.parametrize("name", ["MarkBegun", "ReportFinal"])
def test_the_calls_of_shards_are_for_nobody_else(name: str, served: ShardUnderTest) -> None:
    for role in {*Role} - {Role.SHARD}:
        assert call(served.endpoint, ISSUER.leaf(role), CALLS[name]) is PERMISSION_DENIED


@pytest.mark.parametrize("wrong", ["other job, one authority", "former run, one authority"])
def test_no_call_is_for_another_job_or_run_that_shares_the_authority(
    wrong: str, served: ShardUnderTest
) -> None:
    """An issuer of the cluster's own signs for all jobs."""
    name = bad_credentials(ISSUER)[wrong].identity
    for role in (Role.SHARD, Role.OPERATOR):
        leaf = ISSUER.leaf(role, owner=name.owner)
        ours = Credentials(leaf.certificate, leaf.key, leaf.authority)
        for ask in CALLS.values():
            assert call_as(served.endpoint, ours, ask) is PERMISSION_DENIED


def call_as(endpoint: str, credentials: Credentials, ask: Any) -> grpc.StatusCode:
    """As `call`, of a client that dials this job's name with another job's certificate."""

    async def scenario() -> grpc.StatusCode:
        secret = grpc.ssl_channel_credentials(
            credentials.authority, credentials.key, credentials.certificate
        )
        name = (channels.TARGET_NAME, ISSUER.owner.server_name)
        options = [*channels.control_options(), name]
        async with grpc.aio.secure_channel(endpoint, secret, options=options) as channel:
            try:
                await ask(channel)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    return asyncio.run(scenario())


def test_observers_are_taken_by_their_role(served: ShardUnderTest) -> None:
    async def answer(role: Role) -> pb.ToLearner:
        async with peer(served.endpoint, "", credentials=ISSUER.leaf(role)) as one:
            return await one.join(observer=True, slot="")

    for role in Role:
        refused = asyncio.run(answer(role)).end.code == pb.NOT_ALLOWED
        assert refused == (role is Role.LEARNER)


def test_a_bulk_stream_comes_from_who_has_opened_the_session(served: ShardUnderTest) -> None:
    """Its number and secret are not enough."""

    async def scenario() -> None:
        learner, other = ISSUER.leaf(), ISSUER.leaf(region="elsewhere")
        async with peer(served.endpoint, "here-0", credentials=learner) as one:
            assert (await one.join()).HasField("welcome")
            stolen = Peer(stub=one.stub, endpoint=one.endpoint, slot=one.slot, credentials=other)
            stolen.welcome = one.welcome
            stolen._open_bulk()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(stolen.bulk.read(), SECONDS_MAX)
            assert refused.value.code() is PERMISSION_DENIED
            await stolen.bulk_channel.close()

    asyncio.run(scenario())


def test_probes_find_health_alone_on_a_port_of_plain_text(served: ShardUnderTest) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.health_port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = health.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        calls: Any = (
            (SyncerStub(channel).Status, pb.StatusRequest()),
            (RegistrarStub(channel).SetOwner, pb.SetOwnerRequest()),
        )
        for ask, request in calls:
            with pytest.raises(grpc.RpcError) as refused:
                ask(request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ------------------------------------------------------------ renewal


def test_credentials_are_renewed_without_dropping_a_stream(tmp_path: Path) -> None:
    """Leaves of a few seconds: both ends' first ones expire while their streams are open."""
    issuer, life = Issuer(), 8.0
    folder = tmp_path / "tls"

    async def scenario(endpoint: str) -> None:
        put(folder, issuer.leaf(Role.SHARD, life=life))
        first = issuer.leaf(life=life)
        async with peer(endpoint, "here-0", credentials=first) as learner:
            await learner.ready_to_seed()
            put(folder, issuer.leaf(Role.SHARD))
            await until(lambda: time.time() > first.not_after + 1)
            for fragment in (0, 1):
                await learner.send(learner.frames(fragment))
            await until(lambda: status(endpoint, issuer.leaf()).state == pb.SHARD_SERVING)
            old = put(tmp_path / "old", first)
            reason, ends = await asyncio.to_thread(dialled, endpoint, old)
            assert "tls.crt: expired at 20" in reason
            assert not ends
            put(old, issuer.leaf())
            await asyncio.to_thread(renewed_learner_joins, endpoint, old)

    with tls_shard(tmp_path, issuer) as served:
        asyncio.run(scenario(served.endpoint))


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


# ------------------------------------------------------------ shards and operators


def test_a_shard_asks_the_registrar_also_after_its_credentials_were_renewed(
    served: ShardUnderTest, tmp_path: Path
) -> None:
    folder = put(tmp_path / "tls", ISSUER.leaf(Role.SHARD, life=4.0))

    async def scenario() -> None:
        client = RegistrarClient(partial(open_channel, served.endpoint), Folder(path=str(folder)))
        hello = pb.HelloRequest(shard=1, run_hash=RUN_FILE.hash, empty=True)
        assert await client.ask(hello) is not None
        first = Credentials.read(folder)
        await until(lambda: time.time() > first.not_after + 1)
        assert await client.ask(hello) is None  # it does not go on with what has expired
        put(folder, ISSUER.leaf(Role.SHARD))
        assert await client.ask(hello) is not None
        put(folder, ISSUER.leaf(Role.LEARNER))
        assert await client.ask(hello) is None

    asyncio.run(scenario())


def test_an_export_is_taken_with_credentials_that_may_see_all_values(tmp_path: Path) -> None:
    issuer = Issuer()

    async def scenario(endpoint: str) -> None:
        async with peer(endpoint, "here-0", credentials=issuer.leaf()) as learner:
            await learner.ready_to_seed()
            for fragment in (0, 1):
                await learner.send(learner.frames(fragment))
            await until(lambda: status(endpoint, issuer.leaf()).state == pb.SHARD_SERVING)
            for role, fails in (
                (Role.LEARNER, "observing needs the certificate of role evaluator or observer"),
                (Role.OBSERVER, ""),
                (Role.SHARD, ""),
            ):
                folder = put(tmp_path / role, issuer.leaf(role))
                reach = Reach((endpoint,), Folder(path=str(folder)))
                with pytest.raises(ExportError, match=fails) if fails else nullcontext():
                    assert await take(RUN_FILE, reach, tmp_path / f"model-{role}") >= 0

    with tls_shard(tmp_path, issuer) as served:
        asyncio.run(scenario(served.endpoint))
    assert (tmp_path / "model-shard" / "model.safetensors").exists()


def test_an_operator_asks_and_names_owners_in_its_own_regions(served: ShardUnderTest) -> None:
    async def scenario() -> None:
        ours, other = ISSUER.leaf(Role.OPERATOR), ISSUER.leaf(Role.OPERATOR, "elsewhere")
        foreign = Issuer().leaf(Role.OPERATOR)
        syncers, address = Syncers(), served.endpoint
        try:
            for credentials in (ours, other, ISSUER.leaf(Role.OPERATOR)):
                (reply,) = await syncers.status([address], credentials=credentials)
                assert reply is not None
            assert await syncers.set_owner(address, "here-1", "", 99, ours) is not None
            assert not syncers.reasons
            assert await syncers.set_owner(address, "here-1", "", 99, other) is None
            assert (
                "needs the certificate of the operator of region here" in (syncers.reasons[address])
            )
            assert await syncers.status([address], credentials=foreign) == [None]
            assert await syncers.status([address]) == [None]
            await until(lambda: address in syncers.reasons)
        finally:
            await syncers.close()

    asyncio.run(scenario())


# ------------------------------------------------------------ a whole learner

SCRIPT = """
import sys, torch
from atoll import Learner
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Learner(model, optimizer) as learner:
    while learner.own_steps < 20:
        loss = model(torch.ones(1, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(loss=loss, tokens=1)
print("trained", learner.own_steps)
"""


def learner(folder: Path, endpoint: str, tls: Path | None) -> subprocess.CompletedProcess[str]:
    """A script of the user's own, as a process of the job."""
    variables = {
        Env.RUN_FILE: str(folder / "run.json"),
        Env.ENDPOINTS: endpoint,
        Env.SLOT: "here-0",
        Env.TLS_DIR: str(tls or ""),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_a_script_trains_over_tls_and_ends_with_64_or_75_where_it_cannot(tmp_path: Path) -> None:
    issuer = Issuer()
    with tls_shard(tmp_path, issuer) as served:
        for credentials, code, words in (
            (issuer.leaf(), 0, ""),
            (issuer.leaf(region="elsewhere"), 64, "tls.crt: is that of region elsewhere, and"),
            (issuer.leaf(begun=31 * DAY), 75, "tls.crt: expired at 20"),
            (None, 64, "the shard serves TLS alone, and this process has no credentials"),
        ):
            tls = put(tmp_path / "learner", credentials) if credentials else None
            done = learner(tmp_path, served.endpoint, tls)
            assert done.returncode == code, done.stderr
            assert words in done.stderr
            assert ("trained 20" in done.stdout) == (code == 0)
        assert status(served.endpoint, issuer.leaf()).slots[0].slot == "here-0"
