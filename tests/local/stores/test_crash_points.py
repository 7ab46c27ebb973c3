"""As unit/syncer/test_crash_points.py, on a folder and on a real server of a bucket."""

from pathlib import Path
from typing import Any

import pytest

from atoll_syncer.storage.store import FileStore
from local.stores.opened import object_store
from unit.syncer.dying_store import DyingStore, Killed, found, life

EVERY = 7  # requests: there are many, and each life takes as many again


@pytest.mark.parametrize("kind", ["files", "moto"])
def test_a_process_that_dies_at_a_request_loses_and_repeats_no_commit_rule_19(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = 0

    def fresh() -> Any:
        nonlocal count
        count += 1
        if kind == "files":
            store: Any = FileStore(tmp_path / str(count))
        else:
            store = object_store(request.getfixturevalue("moto").place())
        store.open()
        return store

    quiet = DyingStore(fresh())
    wanted = found(life(quiet))
    for number in range(1, len(quiet.requests) + 1, EVERY):
        store = fresh()
        with pytest.raises(Killed):
            life(DyingStore(store, dies_at=number, after=number // EVERY % 2 == 0))
        assert found(life(store)) == wanted, (number, quiet.requests[number - 1])
