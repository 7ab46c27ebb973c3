"""The store of a shard of a real run is away, damaged or gone, and the run continues (rule 22)."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll_operator.local.run_files import read_lines
from local.background import Running, running
from local.command import LIGHT, TINY, TWO_LEARNERS, commits, tapes
from local.law import balanced, conserve, learners_lines

FRAGMENTS = 4
SLICES = set(range(FRAGMENTS))
# It does not end by itself: there is time to look and to kill, however long that takes.
SETTINGS = (
    *(*TWO_LEARNERS, *LIGHT, "--set", "spec.steps=100000"),
    *("--set", f"spec.sync.fragments={FRAGMENTS}"),
)


@contextmanager
def away(store: Path) -> Iterator[None]:
    moved = store.with_name(f".{store.name}.away")
    store.rename(moved)
    try:
        yield
    finally:
        moved.rename(store)


def newest(store: Path) -> Path:
    """The newest object, or the newest entry of the log."""
    files = [path for folder in ("log", "objects") for path in (store / folder).glob("[!.]*")]
    return max((path for path in files if path.stat().st_size), key=lambda x: x.stat().st_mtime_ns)


def flip_bit(store: Path) -> None:
    path = newest(store)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def truncate(store: Path) -> None:
    path = newest(store)
    os.truncate(path, path.stat().st_size // 2)


def after_recovery(run: Running) -> set[int]:
    """The slices of which shard 1 has made versions since all have come back."""
    lines = run.commits(1)
    back = [number for number, line in enumerate(lines) if line.get("recovered")]
    recovered = {lines[number]["slice"] for number in back}
    return {line["slice"] for line in lines[back[-1] + 1 :]} if recovered == SLICES else set()


@pytest.mark.timeout(1800)
def test_a_shard_whose_store_is_away_damaged_or_gone_commits_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    store, log = out / "commits/1", out / "logs/shard-1.log"
    damages: tuple[Callable[[Path], None], ...] = (flip_bit, truncate, shutil.rmtree)
    with running(TINY, out, *SETTINGS) as run:
        run.until(lambda: {line["slice"] for line in run.commits(1)} == SLICES, "commits of all")
        with away(store):
            run.until(
                lambda: "No such file or directory" in log.read_text(), "a store that is away"
            )
        for damage in damages:
            before = len(run.commits(1))
            run.until(lambda: len(run.commits(1)) > before + 2, "commits")  # noqa: B023
            run.kill(1, then=lambda: damage(store))  # noqa: B023 - it starts again behind that
        run.until(lambda: after_recovery(run) == SLICES, "commits of all after the recovery")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert any(line["event"] == "loss" for line in read_lines(out / "syncer/1.tape.jsonl"))
    recovered = [line for line in commits(out) if line.get("recovered")]
    assert {line["shard"] for line in recovered} == {1}
    assert all(line["reason"].startswith("StoreRecovered: version ") for line in recovered)
    assert all(line["epoch"] > 1 and line["version"] > line["base"] for line in recovered)
    lines = learners_lines(out)
    law = conserve(lines, tapes(out))
    assert all(map(balanced, law.values())), law
    assert not [line for line in lines if line.get("event") == "not held"]
