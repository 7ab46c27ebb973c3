"""`atoll store check`: what it says of a store that fits, and of those that do not."""

import re
from collections.abc import Callable
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import MemoryStore

from atoll_protos.exits import ExitCode
from atoll_syncer.storage import object_store, store_check
from atoll_syncer.storage.store_check import CHECKS, check

URL = "s3://bucket/atoll-store-check-1"
Put = Callable[..., Any]


@pytest.fixture(autouse=True)
def small_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "OBJECT_BYTES", 1 << 20)


class Other:
    """obstore, of which some functions are others."""

    def __init__(self, **others: Callable[..., Any]) -> None:
        self.others = others

    def __getattr__(self, name: str) -> Any:
        return self.others.get(name, getattr(obstore, name))


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    said = capsys.readouterr()
    return said.out.splitlines(), said.err


def test_a_store_that_fits_gets_a_yes_for_each_need_and_is_empty_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = MemoryStore()
    assert check(bucket, URL) == ExitCode.FINAL
    found, trouble = lines(capsys)
    assert [line.partition(":")[0] for line in found] == [f"yes  {words}" for words, _ in CHECKS]
    assert re.search(r": \d+ ms, the median of 10$", found[-2])
    assert re.search(r": \d+ MB/s up, \d+ MB/s down$", found[-1])
    assert trouble == ""
    assert obstore.list(bucket).collect() == []


def overwriting(*arguments: Any, mode: str = "", **options: Any) -> Any:
    return obstore.put(*arguments, **options)


def late(*arguments: Any, **options: Any) -> Any:
    """What is listed a name late."""
    pages = [obstore.list(*arguments, **options).collect()]
    return [pages[0][:-1]]


def changed(*arguments: Any, **options: Any) -> Any:
    found = obstore.get(*arguments, **options)
    data = bytes(found.bytes())
    other = data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 1000 else data

    class Changed:
        meta = found.meta

        def bytes(self) -> bytes:
            return other

    return Changed()


@pytest.mark.parametrize(
    ("others", "unfit"),
    [
        (
            {"put": overwriting},
            [
                r"exactly one succeeds: 8 of 8 succeeded; use a server that honours If-None-Match",
                r"may ask again: creates of three succeeded as \[True, True, True\]",
            ],
        ),
        ({"list": late}, [r"as soon as it is created: of 1 names 0 are listed"]),
        ({"delete": lambda *_: None}, [r"can be deleted: it still holds b'third'"]),
        ({"get": changed}, [r"as they were sent: other bytes came back"]),
    ],
    ids=["ignores the condition", "lists late", "deletes nothing", "changes bytes"],
)
def test_what_a_store_does_not_do_is_named(
    others: dict[str, Any],
    unfit: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = MemoryStore()
    monkeypatch.setattr(object_store, "obstore", Other(**others))
    assert check(bucket, URL) == ExitCode.BAD_INPUT
    said = [line for line in lines(capsys)[0] if not line.startswith("yes  ")]
    assert len(said) == len(unfit)
    for line, words in zip(said, unfit, strict=True):
        assert re.search(f"^NO   .*{words}", line)
    assert obstore.list(bucket).collect() == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.PermissionDeniedError("403 Forbidden"), "403 Forbidden; give the shards' pods"),
        (exceptions.GenericError("no route"), "no route; check the bucket"),
    ],
    ids=["refused", "away"],
)
def test_a_store_that_refuses_or_does_not_answer_may_do_so_later(
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def put(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(object_store, "obstore", Other(put=put))
    assert check(MemoryStore(), URL) == ExitCode.TRY_AGAIN
    found, trouble = lines(capsys)
    assert found == []
    assert trouble.startswith(f"{URL}/atoll.json: {words}")
