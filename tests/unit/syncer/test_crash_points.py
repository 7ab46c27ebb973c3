"""A process that dies before or after any request to its store loses and repeats no commit."""

import random

import pytest

from sim.memory_store import MemoryStore
from unit.syncer.dying_store import DyingStore, Killed, found, life


@pytest.mark.parametrize("keeps_entries", [False, True], ids=["files", "bucket"])
def test_whichever_request_is_the_last_the_next_process_ends_with_the_same_bits_rule_19(
    keeps_entries: bool,
) -> None:
    def fresh() -> MemoryStore:
        return MemoryStore(random.Random(1), keeps_entries=keeps_entries)

    quiet = DyingStore(fresh())
    wanted = found(life(quiet))
    assert {"create", "put", "read", "names"} <= {*quiet.requests}
    for number in range(1, len(quiet.requests) + 1):
        for after in (number % 2 == 0,) if keeps_entries else (False, True):
            store = fresh()
            with pytest.raises(Killed):
                life(DyingStore(store, dies_at=number, after=after))
            assert found(life(store)) == wanted, (number, quiet.requests[number - 1], after)
