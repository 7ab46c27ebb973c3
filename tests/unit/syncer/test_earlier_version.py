"""Of a damaged version that no learner holds, the one before it comes from the store (rule 22)."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.duties.background import Background, start_threads
from atoll_syncer.duties.checkpointing import Restoring
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.model.effects import Effect, StorePrevious
from atoll_syncer.numbers.values import TensorValues
from unit.syncer.values_side import Bench, restore


class Rules:
    """What the duty needs of a shard."""

    def __init__(self, bench: Bench) -> None:
        self.state: Any = SimpleNamespace(history=bench.history)
        self.heard: tuple[Any, ...] = ()

    def merged(self, *given: Any) -> list[Effect]:
        self.heard = ("merged", *given)
        return []

    def previous_lost(self, *given: Any) -> list[Effect]:
        self.heard = ("lost", *given)
        return []


async def perform(bench: Bench, values: TensorValues, number: int) -> tuple[Any, ...]:
    metrics, rules = ShardMetrics(CollectorRegistry()), Rules(bench)
    background = Background(start_threads(), metrics, lambda error: None, lambda full: 0)
    machine: Any = SimpleNamespace(shard=0, store=bench.store, metrics=metrics, clock=lambda: 7.0)
    shard: Any = rules
    restoring = Restoring(shard, machine, background, lambda effects: None)
    await restoring.perform(StorePrevious(0, number), values)
    background.stop()
    return rules.heard


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8])
def test_it_comes_back_to_the_bit_with_its_momentum(tmp_path: Path, wire: Wire) -> None:
    sync = Sync(fragments=2, wire_down=wire)
    bench = Bench(tmp_path, sync)
    bench.seed()
    bench.round(0, 1)
    part = bench.values.slices[0]
    wanted = part.master.tobytes(), part.momentum.tobytes()
    bench.round(0, 2)
    bench.store.delete(bench.history.heads[0].object)
    again = TensorValues.allocate(bench.layout, 0, sync)
    assert [*restore(again, bench.history, bench.store)] == [0]
    before = bench.history.previous[0]
    kind, fragment, digest, name, now = asyncio.run(perform(bench, again, 3))
    assert (kind, fragment, digest, now) == ("merged", 0, before.digest, 7.0)
    assert name not in (before.object, bench.history.heads[0].object)
    assert bench.store.read(name)
    again.committed(0)
    restored = again.slices[0]
    assert (restored.master.tobytes(), restored.momentum.tobytes()) == wanted
    assert restored.head is not None
    assert restored.head.number == 3


def test_one_that_is_damaged_as_well_is_lost(tmp_path: Path) -> None:
    sync = Sync(fragments=2)
    bench = Bench(tmp_path, sync)
    bench.seed()
    bench.round(0, 1)
    path = tmp_path / bench.history.previous[0].object
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    values = TensorValues.allocate(bench.layout, 0, sync)
    assert asyncio.run(perform(bench, values, 2)) == ("lost", 0, 7.0)
