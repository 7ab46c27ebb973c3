"""Data states on their way between the rules and the store."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.duties.storing import Keeping
from atoll_syncer.model.roster import MergeFindings
from atoll_syncer.storage.files import FileStore


class Background:
    """Does everything at once."""

    async def until_stored(self, thread: Any, do: Callable[[], Any]) -> Any:
        """What it comes to."""
        return do()


def test_data_states_of_merged_offers_are_kept_and_a_damaged_object_costs_its_slots_alone(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path)
    store.open()
    machine: Any = SimpleNamespace(store=store, metrics=ShardMetrics(CollectorRegistry()))
    background: Any = Background()
    keeping = Keeping(machine, background)
    state: Any = SimpleNamespace(history=SimpleNamespace(run="r", epoch=1), number=0)

    def written(number: int, left_out: set[str], **states: bytes) -> str:
        outcome: Any = SimpleNamespace(
            slice=0, number=number, found=MergeFindings(left_out=dict.fromkeys(left_out, "why"))
        )
        return asyncio.run(keeping.write_data_states(state, outcome, states))

    assert written(1, {"a"}, a=b"1") == ""
    one, two = written(2, {"a"}, a=b"1", b=b"2"), written(3, set(), c=b"3")
    named = {"a": one, "b": one, "c": two}
    assert asyncio.run(keeping.read_data_states(named)) == {"b": b"2", "c": b"3"}
    (store.root / one).chmod(0o600)
    (store.root / one).write_bytes(b"?")
    assert asyncio.run(keeping.read_data_states(named)) == {"c": b"3"}
