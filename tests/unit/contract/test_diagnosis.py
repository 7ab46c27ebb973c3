"""Why a shard does not take a process, or the other way round, in one line each."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from atoll_protos.network.channels import (
    AnsweringPeer,
    Folder,
    MismatchError,
    OtherRunError,
    RefusedError,
    ServerFiles,
    judge,
    probe,
)
from atoll_protos.network.credentials import Credentials, JobIdentity, Role
from unit.certificate_values import DAY, NOW, OWNER, authorities, identity, leaf

ISSUERS = authorities()
OURS = leaf(ISSUERS)
SHARD = leaf(ISSUERS, identity(Role.SHARD))


def der(credentials: Credentials) -> bytes:
    certificate = x509.load_pem_x509_certificate(credentials.certificate)
    return certificate.public_bytes(serialization.Encoding.DER)


def shard_of(owner: JobIdentity) -> AnsweringPeer:
    return AnsweringPeer(
        certificate=der(leaf(authorities(owner=owner), identity(Role.SHARD, owner=owner)))
    )


def job(name: str, uid: str) -> JobIdentity:
    return JobIdentity(namespace="team", job=name, uid=uid)


PLAIN, TLS = AnsweringPeer(certificate=None), AnsweringPeer(certificate=der(SHARD))
EXPIRED = AnsweringPeer(certificate=der(leaf(ISSUERS, identity(Role.SHARD), now=NOW - 31 * DAY)))
WHOSE = "shard of region us-east of team"


@pytest.mark.parametrize(
    ("seen", "credentials", "kind", "words"),
    [
        (None, None, None, ""),  # where both would take each other nothing is said
        (None, OURS, None, ""),
        (PLAIN, None, None, ""),
        (replace(TLS, spoke=True), OURS, None, ""),
        (PLAIN, OURS, RefusedError, "it serves plain text, and this process has"),
        (TLS, None, MismatchError, "ATOLL_TLS_DIR: the shard serves TLS alone, and this process "),
        (TLS, OURS, RefusedError, "it does not take this process's certificate, of learner of reg"),
        (
            shard_of(job("words", "1")),
            OURS,
            MismatchError,
            f"credentials: the shard has those of {WHOSE}/words (UID 1)",
        ),
        (
            shard_of(job("bytes", "former")),
            OURS,
            OtherRunError,
            f"it has credentials of another run, {WHOSE}/bytes (UID former)",
        ),
        (
            shard_of(OWNER),
            OURS,
            RefusedError,
            f"its certificate, of {WHOSE}/bytes (UID 0b-1), was not issued",
        ),
        (EXPIRED, OURS, RefusedError, "its certificate expired at 2026-09-20 14:13:20 UTC"),
    ],
)
def test_each_reason_is_one_line(
    seen: AnsweringPeer | None,
    credentials: Credentials | None,
    kind: type[Exception] | None,
    words: str,
) -> None:
    error = judge(seen, credentials, NOW)
    assert type(error) is (kind or type(None))
    assert error is None or str(error).startswith(words)
    assert "\n" not in str(error)


# ------------------------------------------------------------ looking


@asynccontextmanager
async def server(credentials: Credentials | None) -> AsyncIterator[str]:
    """A gRPC server without services."""
    one = grpc.aio.server()
    if credentials is None:
        port = one.add_insecure_port("127.0.0.1:0")
    else:
        files = ServerFiles(Folder(path=""), credentials)
        port = one.add_secure_port("127.0.0.1:0", files.credentials())
    await one.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await one.stop(None)


async def seen_by(mine: Credentials | None, its: Credentials | None) -> AnsweringPeer | None:
    async with server(its) as endpoint:
        return await probe(endpoint, mine)


async def test_a_server_is_seen_with_its_certificate_and_whether_it_takes_ours() -> None:
    assert await seen_by(None, None) == await seen_by(OURS, None) == PLAIN
    now = time.time()
    issuers = authorities(now)
    its = leaf(issuers, identity(Role.SHARD), now)
    taken = leaf(issuers, now=now)
    assert await seen_by(taken, its) == AnsweringPeer(certificate=der(its), spoke=True)
    for refused in (None, leaf(authorities(now), now=now), leaf(issuers, now=now - 31 * DAY)):
        assert await seen_by(refused, its) == AnsweringPeer(certificate=der(its), spoke=False)


async def test_a_server_that_is_neither_is_not_taken_for_one() -> None:
    closes = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = closes.sockets[0].getsockname()[1]
    async with closes:
        assert await probe(f"127.0.0.1:{port}", OURS) is None
    assert await probe("127.0.0.1:1", OURS) is None  # nobody answers
