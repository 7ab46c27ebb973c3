"""Checkpoints that are taken while processes are killed: each whole one is right, in any cut."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from atoll_operator.local.folder.run_files import CHAOS_FILE, read_lines, write_whole
from atoll_protos.environment import Env
from atoll_protos.job.layout import build_layout
from atoll_protos.job.length import LengthFile
from atoll_protos.transfer.arrays import Array
from atoll_syncer.checkpoints import copies, restoring
from atoll_syncer.checkpoints.places import FolderPlace
from atoll_syncer.checkpoints.restoring import Checkpoint
from local.background import running
from local.command import LIGHT, TINY, commits, run_atoll
from local.failures.test_conservation import kills
from local.law import check_law, learners_lines

KILLS, SECONDS = 20, 6.0
KEPT = 3
PERIOD = 16  # H, of the example
CHECKPOINT = f"spec.checkpoint={{everySteps: 20, keep: {KEPT}, model: false}}"
STEPS = 3000  # of the schedule of the learning rate, in both runs; the length file ends them
# Merges of steady steps of all learners, so that a run and the one that goes on from it are alike.
SETTINGS = (
    *("--set", f"spec.steps={STEPS}", "--set", "spec.sync.quorum=3"),
    *("--set", "spec.sync.overlap=4"),
    *("--set", LIGHT[1].replace("batch=2", "batch=4").replace("min=30", "min=100")),
    *("--set", "spec.evaluator=", "--set", "spec.sync.fragments=4"),
)
SIZE = ("--context", "32")
LOSS_APART_MAX = 0.03  # nats; five runs had 0.009 to 0.025


def found(place: Path, step: int) -> Checkpoint:
    return restoring.find(f"file://{place}/step-{step}", lambda url: FolderPlace(Path(url[7:])))


def whole(place: Path) -> list[int]:
    """The steps of the whole ones."""
    folder = FolderPlace(place)
    return [step for step in folder.steps() if copies.read_whole(folder, step) is not None]


def as_documented(folder: Path, name: str) -> dict[str, Array]:
    """Values by tensor, read as docs/checkpoints.md shows."""
    about = json.loads((folder / "checkpoint.json").read_text())
    tensors = {x["name"]: np.empty(int(np.prod(x["shape"])), np.float32) for x in about["tensors"]}
    for part in about["parts"]:
        for each in part["slices"]:
            values = load_file(folder / str(part["shard"]) / each["object"])[name]
            for p in each["pieces"]:
                count = p["stop"] - p["start"]
                place = slice(p["offset"], p["offset"] + count)
                tensors[p["tensor"]][p["start"] : p["stop"]] = values[place]
    return tensors


def cut_again(checkpoint: Checkpoint, shards: int) -> Iterator[tuple[str, str, int, Array]]:
    """Which values, of which tensor, from which element on: what so many shards begin with."""
    layout = build_layout(checkpoint.layout.tensors, 4, shards)
    for shard in range(shards):
        slices = {
            each.fragment: {
                name: np.full(each.element_count, np.nan, np.float32)
                for name in ("master", "momentum")
            }
            for each in layout.shard_slices(shard)
        }
        restoring.fill(checkpoint, layout, shard, slices)
        for each in layout.shard_slices(shard):
            for name, values in slices[each.fragment].items():
                for p in each.pieces:
                    part = values[p.offset : p.offset + p.stop - p.start]
                    yield name, layout.tensors[p.tensor].name, p.start, part


def check_values(folder: Path, checkpoint: Checkpoint) -> None:
    """Master and momentum have the same bits in every cut, and all elements are there."""
    wanted = {name: as_documented(folder, name) for name in ("master", "momentum")}
    for shards in (1, 3, 5):
        count = 0
        for name, tensor, start, values in cut_again(checkpoint, shards):
            same = wanted[name][tensor][start : start + len(values)]
            assert values.tobytes() == same.tobytes(), (folder, shards, name, tensor)
            count += len(values)
        assert count == sum(len(x) for tensors in wanted.values() for x in tensors.values())


def check_cursors(out: Path, checkpoint: Checkpoint) -> None:
    """No slot's place in its data is below that of an offer that the checkpoint has merged."""
    for shard, history in enumerate(checkpoint.histories):
        for line in commits(out):
            head = history.heads[line["slice"]].number
            if line["shard"] == shard and line["version"] <= head:
                for part in line["participants"]:
                    assert checkpoint.cursors[part["slot"]] >= part["cursor"], (
                        checkpoint.url,
                        part,
                    )


def heldout_loss(out: Path) -> float:
    words = ("-m", "bytegpt.evaluate", "--export", str(out / "export"), *SIZE)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["loss"])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_checkpoint_that_is_whole_among_twenty_kills_restores_and_trains_on_as_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, again, copied = (tmp_path / name for name in ("out", "again", "copied"))
    plan, length = tmp_path / "plan.yaml", tmp_path / "length.json"
    plan.write_text(kills(KILLS, SECONDS))
    place = out / "checkpoints"
    monkeypatch.setenv(Env.LENGTH_FILE, str(length))
    write_whole(length, LengthFile(revision=1, steps=1_000_000).to_json())
    seen: dict[int, list[int]] = {}

    def look() -> bool:
        """Keep what is whole, before it is removed."""
        steps = whole(place) if place.exists() else []
        assert steps or not seen, "the only one is gone"
        for step in set(steps) - seen.keys():
            shutil.copytree(place / f"step-{step}", copied / f"step-{step}", copy_function=os.link)
            seen[step] = steps
        return len(read_lines(out / CHAOS_FILE)) == KILLS

    with running(TINY, out, "--chaos-plan", str(plan), *SETTINGS, "--set", CHECKPOINT) as run:
        run.until(look, "the last kill")
        after = max(seen)
        run.until(lambda: look() and max(seen) > after, "a checkpoint after it")
        last = max(seen)
        begins = found(copied, last).tick
        ticks = [line["tick"] for line in learners_lines(out) if "tick" in line]
        end = max(begins + 4 * PERIOD, max(ticks) + 2 * PERIOD)
        write_whole(length, LengthFile(revision=2, steps=end).to_json())
        code, stderr = run.finish()
    assert code == 0, stderr
    assert "Traceback" not in stderr
    check_law(out)
    assert len(seen) >= 10
    assert 1 <= len(whole(place)) <= KEPT
    for step in seen:
        checkpoint = found(copied, step)
        check_values(copied / f"step-{step}", checkpoint)
        check_cursors(out, checkpoint)
    resumed = ("--resume-from", str(copied / f"step-{last}"))
    run_atoll(TINY, again, *SETTINGS, *resumed)
    parent, child = heldout_loss(out), heldout_loss(again)
    sys.stderr.write(f"{len(seen)} checkpoints; {end - begins} ticks on: {parent}, {child} nats\n")
    assert abs(parent - child) <= LOSS_APART_MAX
