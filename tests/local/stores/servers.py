"""Real servers of object stores on this machine: each gives folders of a bucket, with credentials.

moto speaks S3 and Azurite Azure. No emulator of Google Cloud Storage that a registry has honours
the condition of a PUT as obstore sends it, so `gcs_stub.py` stands for that. None of them knows a
user from another: what a server refuses comes from `fault_proxy.py`.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from local import installed
from local.stores.gcs_stub import GcsStub

SECONDS_MAX = 300.0
BUCKET = "atoll"
NO_BUCKET = "no-such-bucket"
AZURE_ACCOUNT = "devstoreaccount1"  # Azurite's own, with its key
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
AZURE_VERSION = "2023-11-03"
AZURE_PORT = re.compile(r"listens on http://127\.0\.0\.1:(\d+)")
MOTO = Path(__file__).with_name("moto_script.py")
MOTO_PORT = re.compile(r"Running on http://[0-9.]+:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder of a bucket, and what a process needs to reach it."""

    url: str
    endpoint: str
    environment: Mapping[str, str]

    def at(self, port: int) -> "Place":
        """The same folder, reached through a proxy."""
        return replace(self, endpoint=re.sub(r":\d+", f":{port}", self.endpoint, count=1))

    def used(self, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
        """The flags of an `atoll run` whose state is there; its environment is set."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        storage = f"{{type: ObjectStore, url: '{self.url}', endpoint: '{self.endpoint}'}}"
        return "--set", f"spec.syncer.storage={storage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that runs: how a URL begins, and the rest of a Place."""

    kind: str
    scheme: str  # with what stands before the bucket
    endpoint: str
    environment: Mapping[str, str]

    @property
    def port(self) -> int:
        """Where it listens."""
        return urlsplit(self.endpoint).port or 0

    def place(self, bucket: str = BUCKET) -> Place:
        """A fresh folder."""
        url = f"{self.scheme}{bucket}/tests/{secrets.token_hex(6)}"
        return Place(url=url, endpoint=self.endpoint, environment=self.environment)


@contextmanager
def moto(folder: Path, address: str = "127.0.0.1") -> Iterator[Server]:
    """S3, in memory."""
    with _started([installed.moto(), MOTO, address], MOTO_PORT, folder) as port:
        endpoint = f"http://{address}:{port}"
        _ask("PUT", f"{endpoint}/{BUCKET}", {})
        environment = {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests-tests",
            "AWS_REGION": "us-east-1",
        }
        yield Server(kind="moto", scheme="s3://", endpoint=endpoint, environment=environment)


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Azure, in memory."""
    address = ("--blobHost", "127.0.0.1", "--blobPort", "0")
    quiet = ("--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry")
    with _started([installed.azurite(), *address, *quiet], AZURE_PORT, folder) as port:
        endpoint = f"http://127.0.0.1:{port}"
        _make_container(endpoint)
        yield Server(
            kind="azurite",
            scheme=f"az://{AZURE_ACCOUNT}/",
            endpoint=f"{endpoint}/{AZURE_ACCOUNT}",
            environment={"AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY},
        )


@contextmanager
def gcs(stub: GcsStub) -> Iterator[Server]:
    """Google Cloud Storage as `gcs_stub.py` gives it, in threads of this process."""
    with stub.serving(BUCKET) as port:
        endpoint = f"http://127.0.0.1:{port}"
        account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": ""}
        account |= {"private_key": "", "private_key_id": ""}
        environment = {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}
        yield Server(kind="gcs", scheme="gs://", endpoint=endpoint, environment=environment)


@contextmanager
def _started(words: Sequence[str | Path], said: re.Pattern[str], folder: Path) -> Iterator[int]:
    """A server until the end of the block, and the port that it says it has."""
    output = folder / "output.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, words)], cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := said.search(output.read_text())):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, f"it does not listen: {output.read_text()}"
            time.sleep(0.05)
        yield int(found[1])
        assert process.poll() is None, output.read_text()
    finally:
        process.kill()
        process.wait()


def _make_container(endpoint: str) -> None:
    """A bucket of Azurite, which takes signed requests alone (Shared Key)."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": AZURE_VERSION}
    named = [f"{name}:{value}" for name, value in headers.items()]
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *named, resource])
    digest = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    _ask("PUT", f"{endpoint}/{AZURE_ACCOUNT}/{BUCKET}?restype=container", headers)


def _ask(method: str, url: str, headers: Mapping[str, str]) -> None:
    """One request that must succeed."""
    request = urllib.request.Request(url, method=method, headers={**headers, "Content-Length": "0"})
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        answer.read()
