"""A real shard process, and a peer that speaks the protocol by hand, also wrongly.

A shard may serve mutual TLS; then its peers hold good credentials, or bad ones.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authorities, issue, make_authorities
from atoll_operator.local.startable import free_ports
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import Layout, TensorSpec
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.names import PROTOCOL
from atoll_protos.network import channels
from atoll_protos.network.channels import TARGET_NAME, Folder, control_options
from atoll_protos.network.credentials import ANY, Credentials, Identity, JobIdentity, Role
from atoll_protos.transfer import codecs
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import Wire
from atoll_protos.transfer.frames import transfer_frames
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from atoll_worker.job import needed_of
from atoll_worker.transport.control_stream import Bulk, Dialler, ShardClient

SECONDS_MAX = 600.0
SEED = 0.5  # every parameter of version 0, unless a test wants another
RUN_FILE = RunFile(
    job="wire",
    regions=(Region(name="here", learners=3),),
    shards=1,
    seed=1,
    steps=1000,
    sync=Sync(fragments=2, period=4, wire_up=Wire.F32, wire_down=Wire.F32),
)
ENDS = (None, -signal.SIGKILL, ExitCode.SUPERSEDED)  # of a shard's process, in a test
STEPS_UNTIL_DUE = 6  # until both slices have been due
SPECS = (
    TensorSpec(name="a", shape=(64, 32), dtype="float32", merge="rda"),
    TensorSpec(name="b", shape=(64, 16), dtype="float32", merge="rda"),
)


@dataclass(slots=True, kw_only=True)
class ShardUnderTest:
    """A shard's process."""

    endpoint: str
    process: subprocess.Popen[bytes]
    log: Path
    health_port: int = 0
    metrics_port: int = 0

    @property
    def status(self) -> pb.StatusReply:
        """What it says of itself."""
        with grpc.insecure_channel(self.endpoint, options=channels.control_options()) as channel:
            reply: pb.StatusReply = SyncerStub(channel).Status(
                pb.StatusRequest(), timeout=SECONDS_MAX
            )
            return reply


def shard_command(
    folder: Path, endpoint: str, *more: str, run_file: RunFile = RUN_FILE
) -> list[str]:
    """The command of a shard whose files lie in `folder`, with `more` flags."""
    (folder / "run.json").write_text(run_file.to_json())
    places = {name: str(folder / name) for name in ("store", "export")}
    flags = {"run-file": str(folder / "run.json"), "tape": str(folder / "tape.jsonl"), **places}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    program = [sys.executable, "-P", "-m", "atoll_syncer", "--new"]
    return [*program, "--listen", endpoint, *words, *more]


@contextmanager
def shard(
    folder: Path,
    *more: str,
    run_file: RunFile = RUN_FILE,
    under: tuple[str, ...] = (),
    host: str = "127.0.0.1",
) -> Iterator[ShardUnderTest]:
    """Starts one by the command `under`, with `more` flags, and waits until it serves at `host`."""
    port, health, metrics = free_ports(3)
    endpoint, log = f"127.0.0.1:{port}", folder / "shard.log"
    more = ("--health-port", str(health), "--metrics-port", str(metrics), *more)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*under, *shard_command(folder, f"{host}:{port}", *more, run_file=run_file)],
            stdout=output,
            stderr=output,
            env=environment,
        )
    try:
        until_serving(health)
        yield ShardUnderTest(
            endpoint=endpoint, process=process, log=log, health_port=health, metrics_port=metrics
        )
        assert process.poll() in ENDS, log.read_text()
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


def until_serving(health_port: int) -> None:
    """Wait until the term of the shard behind these probes has begun."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_serving(health_port):
        assert time.monotonic() < deadline, "it does not serve"
        time.sleep(0.02)


def is_serving(health_port: int, service: str = "") -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        reply = stub.Check(request, timeout=SECONDS_MAX, wait_for_ready=True)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


@dataclass(slots=True, kw_only=True)
class Peer:
    """One session by hand."""

    stub: Any
    endpoint: str
    slot: str
    specs: tuple[TensorSpec, ...] = SPECS
    credentials: Credentials | None = None
    call: Any = None
    bulk_channel: Any = None
    bulk: Any = None
    welcome: pb.Welcome = field(default_factory=pb.Welcome)

    @property
    def layout(self) -> Layout:
        """Of this peer's model."""
        return RUN_FILE.layout(self.specs)

    async def join(self, **changes: Any) -> pb.ToLearner:
        """Send a Join until it is not answered by `try again`; returns the answer."""
        fields = {
            "protocol": PROTOCOL,
            "run_hash": RUN_FILE.hash,
            "layout_digest": self.layout.digest,
            "slot": self.slot,
            "uid": self.slot,
            "instance": self.slot,
            **changes,
        }
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            self.call = self.stub.Session()
            await self.call.write(pb.ToShard(join=pb.Join(**fields)))
            answer = await self.next()
            if not answer.end.retry or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        if answer.HasField("welcome"):
            self.welcome = answer.welcome
            self._open_channel()
            if "lanes" not in changes:
                self.bulk = self.open_bulk(self.welcome.secret)
        return answer

    async def next(self) -> pb.ToLearner:
        """The next control message; fails when none comes."""
        message = await asyncio.wait_for(self.call.read(), SECONDS_MAX)
        assert message is not grpc.aio.EOF, "the shard closed the stream without a word"
        return message  # type: ignore[no-any-return]

    async def until(self, kind: str) -> Any:
        """The next message of a kind; others are passed over."""
        while (message := await self.next()).WhichOneof("kind") != kind:
            pass
        return getattr(message, kind)

    async def ready_to_seed(self) -> None:
        """Join, give the model, and be asked for a seed."""
        answer = await self.join()
        assert answer.HasField("welcome"), answer
        if answer.welcome.needs_model:
            await self.call.write(pb.ToShard(model=self.layout.to_model()))
        await self.until("send_seed")

    def values(self, fragment: int, value: float = SEED) -> Array:
        """Of one slice, all elements the same."""
        return np.full(self.layout.slice(0, fragment).element_count, value, F32)

    def digest(self, fragment: int) -> str:
        """Of version 0."""
        return codecs.digest(self.values(fragment).tobytes())

    def frames(self, fragment: int, value: float = SEED) -> list[bytes]:
        """A seed of one slice."""
        data = self.values(fragment, value).tobytes()
        seed = pb.Seed(slice=fragment)
        head = pb.Transfer(seed=seed, byte_count=len(data), encoding=pb.F32)
        return list(transfer_frames(fragment + 1, head, data))

    async def seed(self) -> None:
        """Send the seed that was asked for, all slices."""
        for fragment in range(RUN_FILE.sync.fragment_count):
            await self.send(self.frames(fragment))

    async def report(self, t_m: int, *, waiting: bool = False) -> None:
        """So many steps have been done, all on version 0 with its usual values.

        A shard that hears no further step says after 3 s that it has stalled, unless it waits.
        """
        since = pb.Counters(steps=t_m, tokens=t_m)
        slices = [
            pb.SliceProgress(slice=n, since=since, digest=self.digest(n)[:16])
            for n in range(RUN_FILE.sync.fragment_count)
        ]
        report = pb.Report(t_m=t_m, step_seconds=1.0, slices=slices, training=True, waiting=waiting)
        await self.call.write(pb.ToShard(report=report))

    async def offer(self, call: pb.Call, steps: int, value: float) -> None:
        """The answer to a Call on version 0: the same difference for every element."""
        data = self.values(call.slice, value).tobytes()
        offer = pb.Offer(
            slice=call.slice,
            capture=steps,
            counters=pb.Counters(steps=steps, tokens=steps),
            base_digest=self.digest(call.slice),
        )
        head = pb.Transfer(offer=offer, byte_count=len(data), encoding=pb.F32)
        await self.send(list(transfer_frames(RUN_FILE.sync.fragment_count + 1, head, data)))

    async def send(self, frames: list[bytes]) -> None:
        """Write frames to the bulk stream; the shard may end it before the last."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for frame in frames:
                await self.bulk.write(frame)

    def open_bulk(self, secret: str, lane: str = "") -> Any:
        """One more Bulk stream for this peer's session; `lane` where it has several."""
        method = self.bulk_channel.stream_stream(channels.BULK_METHOD)
        session = str(self.welcome.session)
        pairs = [(channels.SESSION_METADATA, session), (channels.SECRET_METADATA, secret)]
        if lane:
            pairs.append((channels.LANE_METADATA, lane))
        return method(metadata=tuple(pairs))

    def _open_channel(self) -> None:
        options = [("grpc.max_send_message_length", -1)]
        self.bulk_channel = channels.open_channel(self.endpoint, options, self.credentials)


@asynccontextmanager
async def peer(
    endpoint: str,
    slot: str,
    specs: tuple[TensorSpec, ...] = SPECS,
    credentials: Credentials | None = None,
) -> AsyncIterator[Peer]:
    """A peer whose channels are closed at the end."""
    options = channels.control_options()
    async with channels.open_channel(endpoint, options, credentials) as channel:
        one = Peer(
            stub=SyncerStub(channel),
            endpoint=endpoint,
            slot=slot,
            specs=specs,
            credentials=credentials,
        )
        yield one
        if one.bulk_channel is not None:
            await one.bulk_channel.close()


async def first_commit(served: ShardUnderTest, learner: Peer) -> None:
    """From the learner's Join to a commit of its offer alone; then it stays Training."""
    await learner.ready_to_seed()
    await learner.seed()
    await until(lambda: served.status.state == pb.SHARD_SERVING)
    for t_m in range(STEPS_UNTIL_DUE):
        await learner.report(t_m)
    await learner.offer(await learner.until("call"), STEPS_UNTIL_DUE - 1, 0.01)
    await until(lambda: served.status.commits == 1)
    await learner.report(STEPS_UNTIL_DUE - 1, waiting=True)


async def until(look: Callable[[], bool]) -> None:
    """Wait for it, in a thread."""
    deadline = time.monotonic() + SECONDS_MAX

    def wait() -> None:
        while not look():
            assert time.monotonic() < deadline, "it does not come"
            time.sleep(0.05)

    await asyncio.to_thread(wait)


# ------------------------------------------------------------ mutual TLS
DAY = 86_400.0
OWNER = JobIdentity(namespace="team", job="wire", uid="run-2")
OTHER_JOB = JobIdentity(namespace="team", job="other", uid="run-2")
FORMER_RUN = JobIdentity(namespace="team", job="wire", uid="run-1")


def who(role: Role = Role.LEARNER, region: str = "here", owner: JobIdentity = OWNER) -> Identity:
    """Somebody of the job."""
    return Identity(
        namespace=owner.namespace, job=owner.job, uid=owner.uid, region=region, role=role
    )


class Issuer:
    """The job's authority, and leaves of it."""

    def __init__(self, owner: JobIdentity = OWNER) -> None:
        self.owner = owner
        self.authorities: Authorities = make_authorities(owner, time.time())

    def leaf(
        self,
        role: Role = Role.LEARNER,
        region: str = "here",
        *,
        owner: JobIdentity | None = None,
        begun: float = 0.0,
        life: float = 30 * DAY,
        generation: int = 0,
        machine: str = "",
    ) -> Credentials:
        """Of a job that shares this authority with `owner`'s; issued `begun` seconds ago."""
        somebody = who(role, region, owner or self.owner)
        identity = replace(somebody, generation=generation, machine=machine)
        return issue(self.authorities, identity, time.time() - begun, life)


ISSUER = Issuer()  # of the shard that tests share: `served` in conftest.py


def put_file(path: Path, text: str) -> None:
    """Whole at once, as the kubelet does it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def put(folder: Path, credentials: Credentials) -> Path:
    """Replace the credentials in a folder, as Kubernetes does with a mounted Secret."""
    folder.mkdir(exist_ok=True)
    kept = folder / f"..{time.monotonic_ns()}"
    kept.mkdir()
    (kept / "tls.crt").write_bytes(credentials.certificate)
    (kept / "tls.key").write_bytes(credentials.key)
    (kept / "ca.crt").write_bytes(credentials.authority)
    (folder / "..new").symlink_to(kept.name)
    os.replace(folder / "..new", folder / "..data")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return folder


def bad_credentials(issuer: Issuer) -> dict[str, Credentials]:
    """By what is wrong with them; all others than the first have the shard's own authority."""
    foreign = Issuer(FORMER_RUN).leaf()
    return {
        "former run": foreign,
        "self-made": replace(Issuer().leaf(), authority=issuer.authorities.bundle),
        "expired": issuer.leaf(begun=31 * DAY),
        "other region": issuer.leaf(region="elsewhere"),
        "other job": Issuer(OTHER_JOB).leaf(),
        "other job, one authority": issuer.leaf(owner=OTHER_JOB),
        "former run, one authority": issuer.leaf(owner=FORMER_RUN),
        "other role": issuer.leaf(Role.EVALUATOR),
    }


@contextmanager
def tls_shard(
    folder: Path, issuer: Issuer, *more: str, run_file: RunFile = RUN_FILE
) -> Iterator[ShardUnderTest]:
    """A shard of the job, with credentials in FOLDER/tls."""
    tls = put(folder / "tls", issuer.leaf(Role.SHARD))
    with shard(folder, "--tls-dir", str(tls), *more, run_file=run_file) as process:
        yield process


def status(endpoint: str, credentials: Credentials) -> pb.StatusReply:
    """What the shard says of itself to somebody of the job."""
    with grpc.secure_channel(
        endpoint,
        grpc.ssl_channel_credentials(
            credentials.authority, credentials.key, credentials.certificate
        ),
        options=[*control_options(), (TARGET_NAME, credentials.identity.server_name)],
    ) as channel:
        reply: pb.StatusReply = SyncerStub(channel).Status(pb.StatusRequest(), timeout=SECONDS_MAX)
        return reply


def nothing_was_merged(served: ShardUnderTest) -> bool:
    """Nor has a byte arrived; asked of a shard whose authority is ISSUER."""
    seen = status(served.endpoint, ISSUER.leaf(Role.OPERATOR))
    return seen.bytes_received == 0 and seen.commits == 0


def measured(began: float, line: str) -> None:
    """Print the seconds from a dial (monotonic) to the line that refuses it."""
    sys.stderr.write(f"\n{time.monotonic() - began:.2f} s from the dial to: {line}\n")


class Heard:
    """What one dial of a learner comes to."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.ends: list[pb.End] = []
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.client: Any = None

    def connected(self, shard: int) -> None:
        join = pb.Join(protocol=PROTOCOL, run_hash=RUN_FILE.hash, slot=self.slot, instance="i")
        self.client.send(pb.ToShard(join=join))

    def message(self, shard: int, message: pb.ToLearner) -> None:
        if message.HasField("end"):
            self.ends.append(message.end)

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Any) -> Bulk:
        return Bulk(
            endpoint=self.client.endpoint,
            open_channel=self.client._open_channel,
            session=welcome.session,
            secret=welcome.secret,
            payloads=payloads,
            admit=lambda head: None,
            whole=lambda whole: asyncio.sleep(0),
        )

    def disconnected(self, shard: int, reason: str) -> None:
        if not self.reason.done():
            self.reason.set_result(reason)


def dialled(
    endpoint: str, folder: Path | None, slot: str | None = "here-2"
) -> tuple[str, list[pb.End]]:
    """One dial with these credentials: why it ended, and the Ends that the learner heard."""

    async def scenario() -> tuple[str, list[pb.End]]:
        heard = Heard(slot or "here-2")
        needed = needed_of(slot) if slot is not None else ANY
        dialler = Dialler(Folder(path=str(folder or ""), needed=needed))
        heard.client = ShardClient(0, endpoint, heard, dialler.open, dialler.ready)
        began = time.monotonic()
        heard.client.dial()
        reason = await asyncio.wait_for(heard.reason, SECONDS_MAX)
        measured(began, reason)
        return reason, heard.ends

    return asyncio.run(scenario())
