"""Whether a bucket does what a shard needs of its store: `atoll store check URL`.

It acts in a new folder below the URL, with the credentials of this process, through the same
ObjectStore as a shard, and removes what it has written. It says one line for each need and ends
with BAD_INPUT where one is not met, with TRY_AGAIN where the bucket does not answer or refuses.
"""

import argparse
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

import obstore

from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_syncer.storage.files import LOG, MARK, StoreError, StoreMissing
from atoll_syncer.storage.object_store import (
    CREATORS,
    Bucket,
    ObjectStore,
    bucket_errors,
    open_bucket,
)

RACES: Final = 10
CREATES: Final = 10
OBJECT_BYTES = 64 << 20
ONE: Final = "one"


class UnfitError(Exception):
    """The store does not do what a shard needs; says what it does."""


def _writes(store: ObjectStore) -> str:
    store.create(MARK, b"{}")
    return ""


def _races(store: ObjectStore) -> str:
    for _ in range(RACES):
        if (winners := store.race()) != 1:
            remedy = "use a server that honours If-None-Match: * (of Google: gs://, not s3://)"
            raise UnfitError(f"{winners} of {CREATORS} succeeded; {remedy}")
    return f"{RACES} races of {CREATORS}"


def _keeps(store: ObjectStore) -> str:
    created = [store.create(ONE, data) for data in (b"first", b"second", b"first")]
    held = store.read(ONE)
    if created != [True, False, True] or held != b"first":
        raise UnfitError(f"creates of three succeeded as {created}, and it holds {bytes(held)!r}")
    return ""


def _lists(store: ObjectStore) -> str:
    made: list[str] = []
    for number in range(CREATES):
        made.append(f"{LOG}{number:03d}")
        store.create(made[-1], b"an entry")
        if (found := store.names(LOG)) != made:
            raise UnfitError(f"of {len(made)} names {len(found)} are listed")
    if (found := store.names(LOG, after=made[4])) != made[5:]:
        raise UnfitError(f"after the fifth of {CREATES} names {len(found)} are listed")
    return ""


def _replaces(store: ObjectStore) -> str:
    store.replace(ONE, b"third")
    if (held := store.read(ONE)) != b"third":
        raise UnfitError(f"it holds {bytes(held)!r}")
    return ""


def _deletes(store: ObjectStore) -> str:
    store.delete(ONE)
    try:
        held = store.read(ONE)
    except StoreMissing:
        store.delete(ONE)
        return ""
    raise UnfitError(f"it still holds {bytes(held)!r}")


def _answers(store: ObjectStore) -> str:
    seconds = []
    for number in range(CREATES):
        began = time.perf_counter()
        store.create(f"{LOG}timed-{number}", b"an entry")
        seconds.append(time.perf_counter() - began)
    return f"{statistics.median(seconds) * 1000:.0f} ms, the median of {CREATES}"


def _carries(store: ObjectStore) -> str:
    data = os.urandom(OBJECT_BYTES)
    began = time.perf_counter()
    name = store.put([data], 0)
    sent = time.perf_counter()
    if store.read(name) != data:
        raise UnfitError("other bytes came back")
    rates = (OBJECT_BYTES / 1e6 / (sent - began), OBJECT_BYTES / 1e6 / (time.perf_counter() - sent))
    return "{:.0f} MB/s up, {:.0f} MB/s down".format(*rates)


CHECKS: Final[tuple[tuple[str, Callable[[ObjectStore], str]], ...]] = (
    ("a name can be written", _writes),
    ("of several creators of one name exactly one succeeds", _races),
    ("a name that is taken keeps its bytes, and its creator may ask again", _keeps),
    ("a list has a name as soon as it is created", _lists),
    ("a name can be replaced", _replaces),
    ("a name can be deleted", _deletes),
    ("the time of a create", _answers),
    (f"{OBJECT_BYTES >> 20} MiB come back as they were sent", _carries),
)


def check(bucket: Bucket, url: str) -> ExitCode:
    """Say a line for each need, on the standard output; `url` is for people."""
    store, code, found = ObjectStore(bucket, url), ExitCode.FINAL, ""
    try:
        for words, look in CHECKS:
            try:
                found, said = "yes", look(store)
            except (UnfitError, StoreMissing) as unfit:
                found, said, code = "NO ", str(unfit), ExitCode.BAD_INPUT
            sys.stdout.write(f"{found}  {words}" + (f": {said}\n" if said else "\n"))
            sys.stdout.flush()
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        code = code or ExitCode.TRY_AGAIN
    finally:
        if found:
            _remove_all(bucket, url)
    return code


def _remove_all(bucket: Bucket, url: str) -> None:
    try:
        with bucket_errors(url):
            for each in obstore.list(bucket).collect():
                obstore.delete(bucket, each["path"])
    except StoreError as error:
        sys.stderr.write(f"what was written is left there: {error}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="atoll store check", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--endpoint", default="")
    flags = parser.parse_args()
    folder = f"{flags.url.rstrip('/')}/atoll-store-check-{secrets.token_hex(4)}"
    try:
        code = check(open_bucket(folder, flags.endpoint), folder)
    except SpecError as error:
        sys.stderr.write(f"{SpecError(flags.url, error.problem, error.remedy)}\n")
        code = ExitCode.BAD_INPUT
    sys.exit(code)


if __name__ == "__main__":
    main()
