"""Values are read back beside the work of a term (rule 45)."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from atoll_protos.job.run_file import Sync
from atoll_syncer.duties.background import Background, start_threads
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.duties.storing import ReadingBack
from atoll_syncer.model.effects import Effect
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.rules import publishing
from atoll_syncer.storage.files import StoreUnavailable
from unit.syncer.shard_side import begun, side, step_all
from unit.syncer.values_side import Bench, bits


class Rules:
    """What the duty needs of a shard."""

    def __init__(self, bench: Bench) -> None:
        unread = set(bench.history.heads)
        self.state: Any = SimpleNamespace(
            history=bench.history, reading=SimpleNamespace(unread=unread)
        )
        self.heard: list[tuple[str, int]] = []

    def next_unread(self) -> int | None:
        return max(self.state.reading.unread, default=None)

    def read_back(self, fragment: int, now: float) -> list[Effect]:
        self.state.reading.unread.discard(fragment)
        self.heard.append(("back", fragment))
        return []

    def lost(self, fragments: set[int], now: float) -> list[Effect]:
        self.state.reading.unread -= fragments
        self.heard += [("lost", each) for each in fragments]
        return []


async def read(bench: Bench, values: TensorValues, *, deposed: bool = False) -> Rules:
    metrics, rules = ShardMetrics(CollectorRegistry()), Rules(bench)
    background = Background(start_threads(), metrics, lambda error: None, lambda full: 0)
    journal = SimpleNamespace(is_deposed=lambda: deposed)
    machine: Any = SimpleNamespace(
        store=bench.store, journal=journal, metrics=metrics, clock=lambda: 7.0
    )
    shard: Any = rules
    await ReadingBack(shard, machine, background, lambda effects: None).work(values)
    background.stop()
    return rules


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, Sync(fragments=2))
    made.seed()
    return made


def empty(bench: Bench) -> TensorValues:
    return TensorValues.allocate(bench.layout, 0, bench.sync)


def test_slices_are_read_in_the_order_of_the_rules_and_what_is_gone_is_lost(bench: Bench) -> None:
    values = empty(bench)
    assert asyncio.run(read(bench, values)).heard == [("back", 1), ("back", 0)]
    assert [bits(values, each) for each in (0, 1)] == [bits(bench.values, n) for n in (0, 1)]
    bench.store.delete(bench.history.heads[1].object)
    assert asyncio.run(read(bench, empty(bench))).heard == [("lost", 1), ("back", 0)]


def test_a_process_that_was_followed_takes_nothing_for_lost_rule_19(bench: Bench) -> None:
    """The process that owns the shard has removed what it does not need any more."""
    bench.store.delete(bench.history.heads[1].object)
    assert asyncio.run(read(bench, empty(bench), deposed=True)).heard == []


def test_a_store_that_is_away_is_asked_again_rule_23(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_syncer.duties.background.RETRY_SECONDS", 0.0)
    troubles = [StoreUnavailable("objects", "it is away", "try again")] * 3
    found = bench.store.read

    def away(name: str) -> bytearray:
        if troubles:
            raise troubles.pop()
        return found(name)

    monkeypatch.setattr(bench.store, "read", away)
    assert asyncio.run(read(bench, empty(bench))).heard == [("back", 1), ("back", 0)]


def test_few_rounds_of_unread_slices_are_open_since_their_offers_wait_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "OPEN_MAX", 1)
    before, _ = begun("a-0")
    held = [before.state.head(fragment) for fragment in (0, 1)]
    one = side(entries=tuple(before.entries), job=before.job)
    one.reads = False
    one.start()
    session = one.join("a-0", run="run-new", incarnation=1, held=held)
    step_all(one, [session], range(1, 13))
    assert [*one.state.rounds.open] == [1]
    one.offer(session, 1, 12)
    one.read(1)
    one.wait(1.0)
    assert [*one.state.rounds.open] == [0]
