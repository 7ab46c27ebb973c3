"""A bucket in trouble: lost answers, refusals, and servers that are no store (rules 19, 22, 23)."""

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from atoll_syncer.model.log import Taken, TermBegun
from atoll_syncer.storage.files import MARK, StoreError, StoreUnavailable
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.object_store import ObjectStore
from local.stores.fault_proxy import FaultProxy
from local.stores.opened import object_store
from local.stores.servers import NO_BUCKET, Place, Server

TRIES = 3  # of a request: obstore repeats it twice
TERM = TermBegun(epoch=1, pod="a", instance="a-1")
RECORD = Taken(slot="s-0", incarnation=1, uid="u", instance="i")
LOG = r"^PUT .*log(/|%2F)"  # of the path, as each provider has it

REFUSAL = b"<?xml?>\n<Error>\n<Code>AccessDenied</Code><Message>?</Message></Error>"

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "create": lambda store: store.create("log/2.json", b"x"),
    "replace": lambda store: store.replace("heartbeat.json", b"x"),
    "put": lambda store: store.put([b"x"], 1),
    "read": lambda store: store.read("log/1.json"),
    "names": lambda store: store.names("log/"),
    "names of nothing": lambda store: store.names("snapshots/"),
    "delete": lambda store: store.delete("log/1.json"),
}


@pytest.fixture
def store(behind: Place) -> ObjectStore:
    """It is open, has an entry, and is reached through the proxy."""
    found = object_store(behind)
    found.open()
    assert found.create("log/1.json", b"entry")
    return found


def troubles(store: ObjectStore) -> Iterator[tuple[str, StoreError]]:
    """What each method raises; each must raise."""
    for name, call in CALLS.items():
        with pytest.raises(StoreError) as raised:
            call(store)
        yield name, raised.value


def test_a_bucket_that_is_not_there_is_away_and_never_a_missing_name(server: Server) -> None:
    store = object_store(server.place(NO_BUCKET))
    with pytest.raises(StoreUnavailable):
        store.open()
    for name, trouble in troubles(store):
        assert type(trouble) is StoreUnavailable, name
        assert not trouble.is_permanent, name
        assert trouble.reason.endswith((" NoSuchBucket", " ContainerNotFound")), trouble


def test_a_folder_that_was_emptied_is_away_and_never_a_missing_name(store: ObjectStore) -> None:
    for name in ("log/1.json", MARK):
        store.delete(name)
    for name in ("read", "names", "names of nothing"):
        with pytest.raises(StoreUnavailable, match=MARK):
            CALLS[name](store)


def test_who_is_refused_is_told_what_to_give_until_it_may_again(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    proxy.answer(403, "", count=1000, body=REFUSAL)
    for name, trouble in troubles(store):
        assert type(trouble) is StoreUnavailable, name
        assert not trouble.is_permanent, name
        assert trouble.reason.endswith("403 Forbidden: AccessDenied"), trouble
        assert "credentials" in trouble.remedy, trouble
    again = [str(trouble) for _, trouble in troubles(store)]
    assert again == [str(trouble) for _, trouble in troubles(store)], "each is said once"
    proxy.heal()
    assert store.read("log/1.json") == b"entry"


def test_a_wrong_key_is_refused(azurite: Server) -> None:
    key = base64.b64encode(b"wrong" * 13).decode()
    store = object_store(azurite.place(), environment={"AZURE_STORAGE_ACCOUNT_KEY": key})
    with pytest.raises(StoreUnavailable, match="credentials"):
        store.open()
    for name, trouble in troubles(store):
        assert type(trouble) is StoreUnavailable, name
        assert "credentials" in trouble.remedy, trouble


@pytest.mark.parametrize("lost", [1, TRIES])
def test_a_log_believes_its_own_entry_whose_answer_was_lost(
    behind: Place, proxy: FaultProxy, lost: int
) -> None:
    store = object_store(behind)
    store.open()
    journal = Journal(store, lambda: 1.0)
    journal.append(TERM)
    proxy.lose_answers(LOG, count=lost)
    if lost == TRIES:
        with pytest.raises(StoreUnavailable):
            journal.append(RECORD)
    journal.append(RECORD)
    assert not journal.is_deposed()
    assert entries(store) == [["TermBegun"], ["Taken"]]


def test_a_conflict_after_which_nothing_is_stored_deposes_nobody(
    behind: Place, proxy: FaultProxy
) -> None:
    """S3 answers so when a conditional PUT meets another request."""
    store = object_store(behind)
    store.open()
    journal = Journal(store, lambda: 1.0)
    journal.append(TERM)
    fault = proxy.answer(409, LOG, body=b"<Error><Code>ConditionalRequestConflict</Code></Error>")
    with pytest.raises(StoreUnavailable):
        journal.append(RECORD)
    assert fault.met == 1
    assert not journal.is_deposed()
    journal.append(RECORD)
    assert entries(store) == [["TermBegun"], ["Taken"]]


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_has_too_much_to_do_is_asked_again(
    store: ObjectStore, proxy: FaultProxy, status: int
) -> None:
    fault = proxy.answer(status, LOG, count=TRIES - 1)
    assert store.create("log/2.json", b"x")
    assert fault.met == TRIES - 1
    fault = proxy.answer(status, "", count=TRIES * len(CALLS))
    for name, trouble in troubles(store):
        assert type(trouble) is StoreUnavailable, name
        assert str(status) in trouble.reason, trouble
    proxy.heal()
    assert store.create("log/3.json", b"x")
    assert store.names("log/") == [f"log/{number}.json" for number in (1, 2, 3)]


def test_a_store_that_is_cut_off_is_away_until_it_is_back(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    proxy.cut()
    for name, trouble in troubles(store):
        assert type(trouble) is StoreUnavailable, name
    proxy.heal()
    assert store.read("log/1.json") == b"entry"
    assert store.create("log/2.json", b"x")


def test_a_way_on_which_the_condition_is_lost_is_refused(moto: Server) -> None:
    with FaultProxy(moto.port).running() as proxy:
        proxy.strip("If-None-Match", "^PUT ")
        store = object_store(moto.place().at(proxy.port))
        with pytest.raises(StoreUnavailable, match="creators of one name succeeded") as raised:
            store.open()
    assert raised.value.is_permanent
    assert "If-None-Match" in raised.value.remedy


def entries(store: ObjectStore) -> list[list[str]]:
    """The kinds of the records of each entry, which another process takes for one log."""
    names = store.names("log/")
    reader = Journal(store, lambda: 2.0)
    reader.read()
    assert (reader.position, reader.lost_entries) == (len(names), 0)
    documents = [json.loads(store.read(name)) for name in names]
    return [[record["kind"] for record in document["records"]] for document in documents]
