"""A bucket as a store: what differs from files, with obstore's own memory in place of a provider.

tests/local/stores has the same against servers, over HTTP and through a proxy that makes faults.
"""

import socket
from collections import Counter
from threading import Barrier
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import MemoryStore

from atoll_protos.errors import SpecError
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.model.log import Begun, RunStarted, TermBegun
from atoll_syncer.storage import object_store
from atoll_syncer.storage.files import (
    LOG,
    MARK,
    StoreEmptied,
    StoreMissing,
    StoreUnavailable,
    epoch_of,
    read_object,
)
from atoll_syncer.storage.journal import DeposedError, Journal, entry_name
from atoll_syncer.storage.object_store import (
    CREATORS,
    READ_AT_ONCE,
    ObjectStore,
    bucket_errors,
    open_bucket,
)

TERM = TermBegun(epoch=1, pod="p", instance="p-1")
Put = Any  # obstore.put
GET = obstore.get


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def requests() -> Counter[str]:
    return Counter()


@pytest.fixture
def store(bucket: MemoryStore, requests: Counter[str]) -> ObjectStore:
    def count(kind: str, more: int) -> None:
        requests[kind] += more

    store = ObjectStore(bucket, "s3://b/job/0/", count)
    store.open()
    requests.clear()
    return store


def test_what_is_written_is_read_back_also_in_parts(
    store: ObjectStore, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 1000)
    parts: list[Buffer] = [b"x" * 2500, bytearray(b"y" * 10), memoryview(b"")]
    name = store.put(parts, 3)
    assert epoch_of(name) == 3
    assert read_object(store, name, "") == b"".join(parts)
    assert requests == {"put": 3 + 2, "get": 1 + 3}
    assert store.put(parts, 3) == name
    small = store.put([b"z"], 4)
    assert store.names("objects/") == [name, small]
    assert store.names("objects/", after=name) == [small]
    for _ in range(2):  # deleting twice is deleting once
        store.delete(name)
    with pytest.raises(StoreMissing, match="there is no such name"):
        store.read(name)
    for content in (b"1", b"2"):
        store.replace("heartbeat.json", content)
        assert bytes(store.read("heartbeat.json")) == content


def test_of_two_creates_the_first_wins_and_its_own_bytes_are_no_other_process(
    store: ObjectStore,
) -> None:
    assert store.create("log/1", b"first")
    assert store.create("log/1", b"first"), "an earlier try whose answer was lost"
    assert not store.create("log/1", b"second")
    assert store.read("log/1") == b"first"


def test_a_server_that_ignores_the_condition_is_refused(
    bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def unconditional(bucket: object, name: str, data: Any, **options: Any) -> object:
        return put(bucket, name, data, **{**options, "mode": "overwrite"})  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "put", unconditional)
    with pytest.raises(StoreUnavailable, match=f"{CREATORS} of {CREATORS} creators") as refused:
        ObjectStore(bucket, "s3://b").open()
    assert refused.value.is_permanent


def test_a_conflict_after_which_nothing_is_there_is_tried_again_and_deposes_nobody(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, conflicts = obstore.put, [exceptions.AlreadyExistsError("409 ConditionalRequestConflict")]

    def conflicting(*words: Any, **options: Any) -> object:
        if conflicts and options.get("mode") == "create":
            raise conflicts.pop()
        return put(*words, **options)

    monkeypatch.setattr(obstore, "put", conflicting)
    journal = Journal(store, lambda: 1.0)
    with pytest.raises(StoreUnavailable, match="a conflict"):
        journal.append(TERM)
    journal.append(TERM)
    assert journal.position == 1
    with pytest.raises(DeposedError):
        Journal(store, lambda: 2.0).append(TERM)


def test_a_lost_answer_is_found_to_be_ones_own_entry(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, lost = obstore.put, [exceptions.GenericError("connection reset")]

    def losing(*words: Any, **options: Any) -> object:
        made = put(*words, **options)
        if lost and options.get("mode") == "create":
            raise lost.pop()
        return made

    monkeypatch.setattr(obstore, "put", losing)
    journal = Journal(store, lambda: 1.0)
    with pytest.raises(StoreUnavailable, match="connection reset"):
        journal.append(TERM)
    assert not journal.is_deposed()
    journal.append(TERM)
    journal.append(RunStarted(run="r"))
    assert len(store.names("log/")) == 2


def test_without_the_mark_the_store_is_away_and_nothing_is_lost(
    bucket: MemoryStore, store: ObjectStore
) -> None:
    """Rules 22, 23: a bucket that is gone answers as if each name were missing."""
    obstore.delete(bucket, MARK)
    with pytest.raises(StoreUnavailable, match=r"atoll\.json is not there"):
        store.read("objects/1-x.safetensors")
    with pytest.raises(StoreUnavailable, match=r"s3://b/job/0"):
        store.names("log/")
    store.open()
    assert store.names("log/") == []


def test_a_store_that_was_emptied_and_opened_anew_is_not_that_of_who_had_it(
    bucket: MemoryStore, store: ObjectStore
) -> None:
    """Rule 23: a process that slept meanwhile would add to a log that no other one reads."""
    obstore.delete(bucket, MARK)
    other = ObjectStore(bucket, store.url)
    other.open()
    assert other.names("log/") == []
    for look in (lambda: store.read("log/1.json"), lambda: store.names("log/")):
        with pytest.raises(StoreEmptied, match="emptied and begun anew"):
            look()


def test_an_append_and_a_heartbeat_cost_few_requests(
    store: ObjectStore, requests: Counter[str]
) -> None:
    journal = Journal(store, lambda: 1.0)
    journal.append(TERM)
    assert requests == {"put": 1}
    requests.clear()
    assert not journal.is_deposed()
    assert requests == {"get": 2}  # the next entry, and the mark, since it is not there


def test_a_log_that_has_grown_is_read_several_entries_at_once(
    store: ObjectStore, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Journal(store, lambda: 7.0)
    owner.append(TERM)
    for number in range(2 * READ_AT_ONCE - 1):
        owner.append(Begun(shard=number))
    newcomer, together = Journal(store, lambda: 8.0), Barrier(READ_AT_ONCE, timeout=20)

    def get_together(bucket: MemoryStore, name: str) -> Any:
        if name.startswith(LOG) and name <= entry_name(2 * READ_AT_ONCE):
            together.wait()
        return GET(bucket, name)

    monkeypatch.setattr(obstore, "get", get_together)
    requests.clear()
    assert newcomer.read().epoch == 1
    assert newcomer.position == owner.position == 2 * READ_AT_ONCE
    assert requests["get"] == 2 * READ_AT_ONCE + 3  # what is not there, and MARK for it
    monkeypatch.undo()
    owner.append(Begun(shard=0))
    assert newcomer.read().epoch == 1
    assert newcomer.position == owner.position


def test_trouble_with_an_entry_that_is_read_ahead_is_told_when_it_is_its_turn(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Journal(store, lambda: 7.0)
    owner.append(TERM)
    for number in range(3):
        owner.append(Begun(shard=number))
    newcomer = Journal(store, lambda: 8.0)

    def get_but_the_third(bucket: MemoryStore, name: str) -> Any:
        if name == entry_name(3):
            raise exceptions.GenericError("away")
        return GET(bucket, name)

    monkeypatch.setattr(obstore, "get", get_but_the_third)
    with pytest.raises(StoreUnavailable, match="away"):
        newcomer.read()
    assert newcomer.position == 2
    monkeypatch.undo()
    newcomer.read()
    assert newcomer.position == 4


def test_trouble_names_the_place_and_the_remedy() -> None:
    for error, words in (
        (exceptions.PermissionDeniedError("403 Forbidden\n  Debug source"), "give the shards'"),
        (exceptions.UnauthenticatedError("401"), "give the shards'"),
        (exceptions.GenericError("503 SlowDown"), "check the bucket"),
        (OSError("timed out"), "check the bucket"),
    ):
        expected = pytest.raises(StoreUnavailable, match=rf"s3://b/x: .*; {words}")
        with expected as raised, bucket_errors("s3://b/x"):
            raise error
        assert "\n" not in str(raised.value)
        assert not raised.value.is_permanent


def test_a_url_that_is_no_buckets_is_named() -> None:
    for url in ("s3://b/x", "gs://b", "az://account/container/x"):
        open_bucket(url, "http://127.0.0.1:9")
    for url in ("ftp://b/x", "file:///x", "s3://"):
        with pytest.raises(SpecError, match=url):
            open_bucket(url)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_server_of_plain_http_may_be_named_by_variables_too(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", str(allowed).lower())
    with pytest.raises(StoreUnavailable) as raised:
        ObjectStore(open_bucket("s3://b"), "s3://b").read("x")
    assert ("builder error" in str(raised.value)) is not allowed, "it was not even asked"
