"""A shard that serves mutual TLS, and what its peers hold: good credentials and bad ones."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.certificates import Authorities, issue, make_authorities
from atoll_protos.channels import TARGET_NAME, control_options
from atoll_protos.credentials import Credentials
from atoll_protos.identity import Identity, Owner, Role
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from wire.raw_peer import ShardUnderTest, shard

DAY = 86_400.0
OWNER = Owner(namespace="team", job="wire", uid="run-2")
OTHER_JOB = Owner(namespace="team", job="other", uid="run-2")
FORMER_RUN = Owner(namespace="team", job="wire", uid="run-1")


def who(role: Role = Role.LEARNER, region: str = "here", owner: Owner = OWNER) -> Identity:
    """Somebody of the job."""
    return Identity(
        namespace=owner.namespace, job=owner.job, uid=owner.uid, region=region, role=role
    )


class Issuer:
    """The job's authority, and leaves of it."""

    def __init__(self, owner: Owner = OWNER) -> None:
        self.owner = owner
        self.authorities: Authorities = make_authorities(owner, time.time())

    def leaf(
        self,
        role: Role = Role.LEARNER,
        region: str = "here",
        *,
        owner: Owner | None = None,
        begun: float = 0.0,
        life: float = 30 * DAY,
    ) -> Credentials:
        """Of a job that shares this authority with `owner`'s; issued `begun` seconds ago."""
        identity = who(role, region, owner or self.owner)
        return issue(self.authorities, identity, time.time() - begun, life)


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
def tls_shard(folder: Path, issuer: Issuer, *more: str) -> Iterator[ShardUnderTest]:
    """A shard of the job, with credentials in FOLDER/tls."""
    tls = put(folder / "tls", issuer.leaf(Role.SHARD))
    with shard(folder, "--tls-dir", str(tls), *more) as process:
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
        reply: pb.StatusReply = SyncerStub(channel).Status(pb.StatusRequest(), timeout=10)
        return reply
