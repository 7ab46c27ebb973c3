"""Stores of every kind: a folder, and folders of buckets on servers that run on this machine."""

from collections.abc import Iterator

import pytest

from local.stores import servers
from local.stores.fault_proxy import FaultProxy
from local.stores.gcs_stub import GcsStub
from local.stores.servers import Place, Server

SERVERS = ("moto", "azurite", "gcs")


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """S3."""
    with servers.moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Azure."""
    with servers.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Server]:
    """Google Cloud Storage."""
    with servers.gcs(GcsStub()) as server:
        yield server


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each server in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A proxy before the server."""
    with FaultProxy(server.port).running() as running:
        yield running


@pytest.fixture
def behind(server: Server, proxy: FaultProxy) -> Place:
    """A fresh folder, reached through the proxy."""
    return server.place().at(proxy.port)
