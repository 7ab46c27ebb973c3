"""An object store as a shard's store: S3, Google Cloud Storage and Azure, by obstore (rule 19).

`create` is a PUT on the condition that the name is free (If-None-Match, or generation 0 at Google).
Four things are not as on a file system:

- An answer can be lost, and obstore asks again by itself: the second try finds the name taken by
  our own bytes. Each entry of the log names its process, so two never write equal ones.
- S3 answers "taken" (409) when a conditional PUT meets another request, though nothing may be
  stored. What is taken and not there is trouble: the caller tries again.
- A bucket that is gone, and credentials that see nothing, can answer as if a name were missing. So
  of a store that `open` was called for a name is missing only while MARK is there; else the store
  is away, which is never a loss (rules 22, 23).
- A server that ignores the condition would give one shard to two processes. `open` lets several
  creators race for a name and refuses a server on which not exactly one of them wins.

Entries of the log are never deleted here: the name of an entry is taken for ever, no look follows a
create (storage/journal), and several entries are read at once, since a list of them never changes.

Credentials are the process's: its environment, or what the cloud gives a pod (workload identity).
A refusal of them is trouble like any other, never a loss: a role may reach its pod minutes late.
The bucket's own rule removes unfinished uploads of killed processes (docs/object-stores.md).
"""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from atoll_protos.errors import SpecError
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.files import (
    FILE,
    LOG,
    MARK,
    TEMPORARY,
    FileStore,
    Store,
    StoreError,
    StoreMissing,
    StoreUnavailable,
    compare_marks,
    emptied,
    new_mark,
    object_name,
)

ENDPOINT: Final = {"s3": "endpoint", "az": "endpoint", "gs": "base_url"}  # by scheme, for obstore
ALLOW_HTTP: Final = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP"}
RETRIES: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
TIMES: Final = {"connect_timeout": timedelta(seconds=3), "timeout": timedelta(seconds=60)}
PART_BYTES: Final = 64 << 20  # of an object that is sent or read in parts
PARTS_AT_ONCE: Final = 4
PIECE_BYTES: Final = 16 << 20  # of a file that is sent, PARTS_AT_ONCE of them, or read
COPY_BYTES_MAX: Final = 4 << 30  # S3 copies at most 5 GB with one request
REFUSALS: Final = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
REFUSED_LIST: Final = re.compile("status code: 40[13] ")  # obstore has no class of its own for it
CODE: Final = re.compile(r": <.*?<Code>(\w+)</Code>.*", re.DOTALL)  # in an answer's XML
DURATION: Final = re.compile(r" in [\d.]+(ns|µs|ms|s)\b")
AWAY: Final = "check the bucket, the address and the network"
REFUSED: Final = (
    "give the shards' pods credentials that may read, write, list and delete there, and check the"
    " clock, which may be wrong by 15 minutes at most"
)

Bucket = Any  # obstore has one class for each provider, without a common public type


def open_bucket(url: str, endpoint: str = "") -> Bucket:
    """Open the bucket of `url` (s3://, gs://, az://ACCOUNT/); its path precedes every name.

    `endpoint` is where the provider answers; empty: at its usual address. Nothing is asked yet.
    Raises SpecError.
    """
    scheme, host, path, *_ = urlsplit(url)
    if scheme not in ENDPOINT or not host:
        raise SpecError(
            url, "is no bucket", "give s3://BUCKET, gs://BUCKET, az://ACCOUNT/CONTAINER"
        )
    config = {ENDPOINT[scheme]: endpoint} if endpoint else {}
    address = url
    if scheme == "az":
        config["account_name"], address = host, f"az:/{path}"
    # obstore does not read this variable where it is given options of its own
    plain = os.environ.get(ALLOW_HTTP[scheme], "").lower() == "true"
    options: dict[str, Any] = {
        "config": config,
        "client_options": {**TIMES, "allow_http": plain or endpoint.startswith("http://")},
        "retry_config": RETRIES,
    }
    try:
        return from_url(address, **options)
    except (exceptions.BaseError, ValueError) as error:
        raise SpecError(url, _reason(error), "correct the URL, or its credentials") from error


@contextmanager
def bucket_errors(where: str) -> Iterator[None]:
    """Turn what obstore raises into a StoreError. A name that is missing: StoreMissing."""
    try:
        yield
    except FileNotFoundError as error:
        remedy = "nothing to do if it was collected; else restore the bucket"
        raise StoreMissing(where, "there is no such name", remedy) from error
    except (exceptions.BaseError, OSError) as error:
        reason = _reason(error)
        refused = isinstance(error, REFUSALS) or REFUSED_LIST.search(reason)
        raise StoreUnavailable(where, reason, REFUSED if refused else AWAY) from error


def _reason(error: BaseException) -> str:
    """Its first line, with the code that the server gave: the same trouble is the same text."""
    lines = DURATION.sub("", CODE.sub(r": \1", str(error).strip())).splitlines()
    return lines[0] if lines else type(error).__name__


CREATORS: Final = 8
LISTED_AT_ONCE: Final = 1000  # names, in one answer of a server
READ_AT_ONCE: Final = 16  # entries of the log


class ObjectStore:
    """A folder of a bucket as a store; see the module. `url` is for people.

    `count` is told of each request and its kind, of which a provider sends a bill.
    """

    keeps_entries: Final = True
    heartbeat_seconds: Final = 2.0  # each is paid for, and only a second process looks

    def __init__(
        self,
        bucket: Bucket,
        url: str,
        count: Callable[[str, int], None] = lambda kind, n: None,
        endpoint: str = "",
    ) -> None:
        self._bucket, self.url, self.count = bucket, url.rstrip("/"), count
        self._endpoint = endpoint
        self._listed: list[str] = []  # entries that are there, and not read yet, in order
        self._ahead: dict[str, bytearray] = {}  # those that were read with one before them
        self._mark = b""  # as this process has opened it

    def below(self, name: str) -> "ObjectStore":
        """Return a folder in it as a store, which need not be there."""
        url = f"{self.url}/{name}"
        return ObjectStore(open_bucket(url, self._endpoint), url, self.count, self._endpoint)

    def open(self) -> None:
        """Raise StoreUnavailable, for good where the server ignores the condition of a PUT."""
        with self._errors(MARK):
            self._create(MARK, new_mark())
            self._mark = bytes(obstore.get(self._bucket, MARK).bytes())
        winners = self.race()
        if not winners:
            reason = f"none of {CREATORS} creators of one name succeeded"
            raise StoreUnavailable(self.url, reason, "try again")
        if winners > 1:
            reason = f"{winners} of {CREATORS} creators of one name succeeded"
            remedy = "use a server that honours If-None-Match: * (of Google: gs://, not s3://)"
            trouble = StoreUnavailable(self.url, reason, remedy)
            trouble.is_permanent = True
            raise trouble

    def race(self) -> int:
        """Let CREATORS threads create one name; returns how many were told that they did."""

        def creates(data: bytes) -> bool:
            try:
                return self._create(name, data)
            except StoreUnavailable:  # a conflict, which may be all that others' requests leave
                return False

        name = f"{TEMPORARY}{secrets.token_hex(8)}"
        contents = [f"{name} {number}".encode() for number in range(CREATORS)]
        with self._errors(name), ThreadPoolExecutor(CREATORS) as threads:
            winners = sum(threads.map(creates, contents))
            with suppress(FileNotFoundError):
                obstore.delete(self._bucket, name)
        return winners

    def create(self, name: str, data: bytes) -> bool:
        """See Store. False may also mean that an earlier try of the same caller got through."""
        with self._errors(name):
            return self._create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        with self._errors(name):
            self.count("put", 1)
            obstore.put(self._bucket, name, data, use_multipart=False)

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        """See Store. The name is the content's, so no condition is needed."""
        digest, byte_count = hashlib.sha256(), 0
        for part in parts:
            digest.update(part)
            byte_count += memoryview(part).nbytes
        name = object_name(epoch, digest.hexdigest())
        in_parts = byte_count > PART_BYTES
        with self._errors(name):
            self.count("put", 2 + -(-byte_count // PART_BYTES) if in_parts else 1)
            obstore.put(
                self._bucket,
                name,
                pieces(parts, PART_BYTES),
                use_multipart=in_parts,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        return name

    def read(self, name: str) -> bytearray:
        listed = self._listed  # never changed in place: several threads read
        if name in listed:
            self._read_ahead(listed, listed.index(name))
        if (ahead := self._ahead.pop(name, None)) is not None:
            return ahead
        return self._read(name)

    def _read_ahead(self, listed: list[str], first: int) -> None:
        """Read an entry and those behind it; one with which there is trouble is asked for again."""

        def entry(name: str) -> bytearray | None:
            with suppress(StoreError):
                return self._read(name)
            return None

        names = listed[first : first + READ_AT_ONCE]
        self._listed = listed[first + READ_AT_ONCE :]
        with ThreadPoolExecutor(READ_AT_ONCE) as threads:
            read = zip(names, threads.map(entry, names), strict=True)
            self._ahead = {name: data for name, data in read if data is not None}

    def _read(self, name: str) -> bytearray:
        with self._errors(name):
            self.count("get", 1)
            found = obstore.get(self._bucket, name)
            byte_count = found.meta["size"]
            if byte_count <= PART_BYTES:
                return bytearray(found.bytes())
            data = bytearray(byte_count)
            self.count("get", -(-byte_count // PART_BYTES))

            def fill(start: int) -> None:
                end = min(start + PART_BYTES, byte_count)
                data[start:end] = bytes(obstore.get_range(self._bucket, name, start=start, end=end))

            with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
                list(threads.map(fill, range(0, byte_count, PART_BYTES)))
            return data

    def names(self, prefix: str, after: str = "") -> list[str]:
        with self._errors(MARK):
            pages = obstore.list(self._bucket, prefix, offset=after or None)
            found = sorted(each["path"] for page in pages for each in page)
            self.count("list", 1 + len(found) // LISTED_AT_ONCE)
            if not found and self._mark:
                self._look_for_mark()
            if prefix == LOG:
                self._listed, self._ahead = [*found], {}
            return found

    def delete(self, name: str) -> None:
        with suppress(StoreMissing), self._errors(name):
            self.count("delete", 1)
            obstore.delete(self._bucket, name)

    write = replace  # durable, too

    def adopt(self, source: Store, name: str) -> bool:
        """See Store: in one bucket, where the server copies it."""
        root, folder = _root_and_path(self.url)
        if not isinstance(source, ObjectStore) or _root_and_path(source.url)[0] != root:
            return False
        bucket = open_bucket(root, self._endpoint)
        old = f"{_root_and_path(source.url)[1]}/{name}".lstrip("/")
        with bucket_errors(f"{root}/{old}"):
            if obstore.head(bucket, old)["size"] > COPY_BYTES_MAX:
                return False
            obstore.copy(bucket, old, f"{folder}/{name}".lstrip("/"))
        return True

    def send(self, source: Path | Iterator[memoryview], name: str) -> None:
        """Write a file, or pieces of one, in parts; memory has few of them at once."""
        with self._errors(name), ExitStack() as stack:
            data = stack.enter_context(source.open("rb")) if isinstance(source, Path) else source
            obstore.put(
                self._bucket, name, data, chunk_size=PIECE_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of a name, PIECE_BYTES at once."""
        with self._errors(name):
            byte_count = obstore.head(self._bucket, name)["size"]
        for start in range(0, byte_count, PIECE_BYTES):
            with self._errors(name):
                end = min(start + PIECE_BYTES, byte_count)
                data = obstore.get_range(self._bucket, name, start=start, end=end)
            yield memoryview(data)

    def folders(self) -> list[str]:
        """Return the names of what is directly in it, as far as it has names in it."""
        with bucket_errors(self.url):
            return list(obstore.list_with_delimiter(self._bucket)["common_prefixes"])

    def remove(self, name: str) -> None:
        """Remove a name, and all that have it before a slash."""
        with bucket_errors(f"{self.url}/{name}"):
            below = [each["path"] for page in obstore.list(self._bucket, name) for each in page]
        for each in (*below, name):
            self.delete(each)

    def tidy(self) -> None:
        """See Store: what was half sent has no name."""

    def _create(self, name: str, data: bytes) -> bool:
        self.count("put", 1)
        try:
            obstore.put(self._bucket, name, data, mode="create", use_multipart=False)
        except exceptions.AlreadyExistsError:
            self.count("get", 1)
            try:
                return bytes(obstore.get(self._bucket, name).bytes()) == data
            except FileNotFoundError:
                reason, remedy = "a conflict, after which nothing is there", "try again"
                raise StoreUnavailable(f"{self.url}/{name}", reason, remedy) from None
        return True

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """See `bucket_errors`. Of one that is open we do not know without MARK what is missing."""
        where = f"{self.url}/{name}"
        try:
            with bucket_errors(where):
                yield
        except StoreMissing as missing:
            with bucket_errors(where):
                try:
                    self._look_for_mark()
                except FileNotFoundError:
                    if self._mark:
                        raise emptied(self.url) from missing
            raise

    def _look_for_mark(self) -> None:
        """Raise FileNotFoundError without MARK, but another error without the bucket itself."""
        self.count("get", 1)
        try:
            found = bytes(obstore.get(self._bucket, MARK).bytes())
        except FileNotFoundError:
            self.count("list", 1)
            next(obstore.list(self._bucket, TEMPORARY), None)  # of no bucket there is no list
            raise
        compare_marks(self.url, self._mark, found)


def open_store(
    place: str, endpoint: str = "", count: Callable[[str, int], None] = lambda kind, n: None
) -> FileStore | ObjectStore:
    """Return a folder, as a path or file:///FOLDER, or one of a bucket. Raises SpecError."""
    if "://" not in place or place.startswith(f"{FILE}/"):
        return FileStore(Path(place.removeprefix(FILE)))
    return ObjectStore(open_bucket(place.rstrip("/"), endpoint), place, count, endpoint)


def _root_and_path(url: str) -> tuple[str, str]:
    """Return the bucket alone, which of Azure is a container, and the path in it."""
    scheme, host, path, *_ = urlsplit(url)
    parts = path.strip("/").split("/")
    container = [parts.pop(0)] if scheme == "az" else []
    return "/".join([f"{scheme}://{host}", *container]), "/".join(parts)


def pieces(parts: Sequence[Buffer], byte_count: int) -> Iterator[memoryview]:
    """Yield the bytes of parts, so many at once at most."""
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), byte_count):
            yield view[start : start + byte_count]
