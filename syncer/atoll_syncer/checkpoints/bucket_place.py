"""A folder of a bucket as a place of checkpoints (checkpoints/places)."""

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import obstore

from atoll_syncer.checkpoints.places import COPY_BYTES_MAX, copied, numbers_of
from atoll_syncer.storage.buckets import PARTS_AT_ONCE, PIECE_BYTES, bucket_errors, open_bucket
from atoll_syncer.storage.files import files_in_order
from atoll_syncer.storage.object_store import ObjectStore
from atoll_syncer.storage.store import Store, storage_errors


class BucketPlace:
    """See Place. `endpoint` is where the provider answers; empty: at its usual address."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        self.url, self._endpoint = url.rstrip("/"), endpoint
        self._bucket = open_bucket(self.url, endpoint)

    def steps(self) -> list[int]:
        with bucket_errors(self.url):
            return numbers_of(list(obstore.list_with_delimiter(self._bucket)["common_prefixes"]))

    def part(self, name: str) -> ObjectStore:
        url = f"{self.url}/{name}"
        return ObjectStore(open_bucket(url, self._endpoint), url)

    def make_part(self, name: str) -> ObjectStore:
        made = self.part(name)
        made.open()
        return made

    def read(self, name: str) -> bytes:
        with bucket_errors(f"{self.url}/{name}"):
            return bytes(obstore.get(self._bucket, name).bytes())

    def write(self, name: str, data: bytes) -> None:
        with bucket_errors(f"{self.url}/{name}"):
            obstore.put(self._bucket, name, data, use_multipart=False)

    def take(self, store: Store, part: str, name: str) -> int:
        root, folder = _root_and_path(self.url)
        if not isinstance(store, ObjectStore) or _root_and_path(store.url)[0] != root:
            return copied(store, self.part(part), name)
        bucket, old = open_bucket(root, self._endpoint), f"{_root_and_path(store.url)[1]}/{name}"
        new = f"{folder}/{part}/{name}".lstrip("/")
        with bucket_errors(f"{root}/{old}"):
            size = int(obstore.head(bucket, old.lstrip("/"))["size"])
            if size <= COPY_BYTES_MAX:
                obstore.copy(bucket, old.lstrip("/"), new)
                return size
        return copied(store, self.part(part), name)

    def bring(self, made: Path, name: str) -> None:
        for path in files_in_order(made):
            to = f"{name}/{path.relative_to(made).as_posix()}"
            with storage_errors(path), bucket_errors(f"{self.url}/{to}"), path.open("rb") as file:
                obstore.put(
                    self._bucket, to, file, chunk_size=PIECE_BYTES, max_concurrency=PARTS_AT_ONCE
                )

    def remove(self, name: str) -> None:
        with bucket_errors(f"{self.url}/{name}"):
            found = [each["path"] for page in obstore.list(self._bucket, name) for each in page]
            for each in [*found, name]:
                with suppress(FileNotFoundError):
                    obstore.delete(self._bucket, each)


def _root_and_path(url: str) -> tuple[str, str]:
    """The bucket alone, which of Azure is a container, and the path in it."""
    scheme, host, path, *_ = urlsplit(url.rstrip("/"))
    parts = path.strip("/").split("/")
    container = [parts.pop(0)] if scheme == "az" else []
    return "/".join([f"{scheme}://{host}", *container]), "/".join(parts)
