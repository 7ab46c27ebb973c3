"""The shard with mutual TLS that tests share."""

from collections.abc import Iterator

import pytest

from wire.fixtures import ISSUER, ShardUnderTest, tls_shard


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardUnderTest]:
    """A shard of the job with mutual TLS; tests change nothing there that another one reads."""
    with tls_shard(tmp_path_factory.mktemp("shard"), ISSUER) as process:
        yield process
