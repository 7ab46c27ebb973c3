"""A shard that serves mutual TLS, and what its peers hold: good credentials and bad ones."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authorities, issue, make_authorities
from atoll_protos.job.run_file import RunFile
from atoll_protos.names import PROTOCOL
from atoll_protos.network.channels import TARGET_NAME, Folder, control_options
from atoll_protos.network.credentials import ANY, Credentials
from atoll_protos.network.identity import Identity, JobIdentity, Role
from atoll_protos.network.services import Service, client_of
from atoll_worker.job import needed_of
from atoll_worker.transport.bulk import Bulk, Numbered
from atoll_worker.transport.control_stream import Dialler, ShardClient
from wire.raw_peer import RUN_FILE, SECONDS_MAX, ShardUnderTest, shard

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
        reply: pb.StatusReply = client_of(Service.SYNCER, channel).Status(
            pb.StatusRequest(), timeout=SECONDS_MAX
        )
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
            next_frames=Numbered(payloads).next_frames,
            take=lambda frame: None,
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
