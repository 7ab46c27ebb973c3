"""Why a shard does not take a process, or the other way round, in one line each."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from atoll_protos.channels import Folder, ServerFiles
from atoll_protos.credentials import Credentials
from atoll_protos.diagnosis import MismatchError, OtherRunError, RefusedError, Seen, judge, look
from atoll_protos.identity import Owner, Role
from unit.certificate_values import DAY, NOW, OWNER, authorities, identity, leaf

ISSUERS = authorities()
OURS = leaf(ISSUERS)
SHARD = leaf(ISSUERS, identity(Role.SHARD))


def der(credentials: Credentials) -> bytes:
    certificate = x509.load_pem_x509_certificate(credentials.certificate)
    return certificate.public_bytes(serialization.Encoding.DER)


def shard_of(owner: Owner) -> bytes:
    return der(leaf(authorities(owner=owner), identity(Role.SHARD, owner=owner)))


@pytest.mark.parametrize(
    ("seen", "credentials"),
    [
        (None, None),
        (None, OURS),
        (Seen(certificate=None), None),
        (Seen(certificate=der(SHARD), spoke=True), OURS),
    ],
)
def test_nothing_is_said_where_both_would_take_each_other(
    seen: Seen | None, credentials: Credentials | None
) -> None:
    assert judge(seen, credentials, NOW) is None


@pytest.mark.parametrize(
    ("seen", "credentials", "kind", "words"),
    [
        (Seen(certificate=None), OURS, RefusedError, "it serves plain text, and this process has"),
        (
            Seen(certificate=der(SHARD)),
            None,
            MismatchError,
            "ATOLL_TLS_DIR: the shard serves TLS alone, and this process has no credentials; set",
        ),
        (
            Seen(certificate=der(SHARD)),
            OURS,
            RefusedError,
            "it does not take this process's certificate, of learner of region us-east of team/by",
        ),
        (
            Seen(certificate=shard_of(Owner(namespace="team", job="words", uid="1"))),
            OURS,
            MismatchError,
            "credentials: the shard has those of shard of region us-east of team/words (UID 1)",
        ),
        (
            Seen(certificate=shard_of(Owner(namespace="team", job="bytes", uid="former"))),
            OURS,
            OtherRunError,
            "it has credentials of another run, shard of region us-east of team/bytes (UID former)",
        ),
        (
            Seen(certificate=shard_of(OWNER)),
            OURS,
            RefusedError,
            "its certificate, of shard of region us-east of team/bytes (UID 0b-1), was not issued",
        ),
        (
            Seen(certificate=der(leaf(ISSUERS, identity(Role.SHARD), now=NOW - 31 * DAY))),
            OURS,
            RefusedError,
            "its certificate expired at 2026-09-20 14:13:20 UTC",
        ),
    ],
)
def test_each_reason_is_one_line(
    seen: Seen, credentials: Credentials | None, kind: type[Exception], words: str
) -> None:
    error = judge(seen, credentials, NOW)
    assert type(error) is kind
    assert str(error).startswith(words)
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


def seen_by(mine: Credentials | None, its: Credentials | None) -> Seen | None:
    async def scenario() -> Seen | None:
        async with server(its) as endpoint:
            return await look(endpoint, mine)

    return asyncio.run(scenario())


def test_a_server_of_plain_text_is_seen_with_and_without_credentials() -> None:
    assert seen_by(None, None) == seen_by(OURS, None) == Seen(certificate=None)


def test_a_server_with_tls_is_seen_with_its_certificate_and_whether_it_takes_ours() -> None:
    now = time.time()
    issuers = authorities(now)
    its = leaf(issuers, identity(Role.SHARD), now)
    taken = leaf(issuers, now=now)
    assert seen_by(taken, its) == Seen(certificate=der(its), spoke=True)
    for refused in (None, leaf(authorities(now), now=now), leaf(issuers, now=now - 31 * DAY)):
        assert seen_by(refused, its) == Seen(certificate=der(its), spoke=False)


def test_where_nobody_answers_nothing_is_seen() -> None:
    assert asyncio.run(look("127.0.0.1:1", OURS)) is None


def test_a_server_that_is_neither_is_not_taken_for_one() -> None:
    async def scenario() -> Seen | None:
        closes = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = closes.sockets[0].getsockname()[1]
        async with closes:
            return await look(f"127.0.0.1:{port}", OURS)

    assert asyncio.run(scenario()) is None
