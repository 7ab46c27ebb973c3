"""Checkpoints that are taken while processes are killed: each whole one is right, in any cut."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from atoll_operator.local.run_files import CHAOS_FILE, read_lines
from atoll_protos.job.layout import build_layout
from atoll_protos.transfer.arrays import Array
from atoll_syncer.checkpoints import copies, restoring
from atoll_syncer.checkpoints.restoring import Checkpoint
from atoll_syncer.storage.object_store import open_store
from bytegpt import data
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT
from bytegpt.train import TrainOptions
from local.background import running
from local.command import LIGHT, TINY, commits
from local.failures.test_conservation import kills
from local.law import check_law

KILLS, SECONDS = 20, 6.0
KEPT = 3
PERIOD = 16  # H, of the example
EVERY = 20
CHECKPOINT = f"spec.checkpoint={{everySteps: {EVERY}, keep: {KEPT}, model: false}}"
# Of both runs, which are stopped before: rate and momentum follow from the length.
STEPS = 3000
# Merges of steady steps of all learners, so that a run and the one that goes on from it are alike.
SETTINGS = (
    *("--set", f"spec.steps={STEPS}", "--set", "spec.sync.quorum=3"),
    *("--set", "spec.sync.overlap=4"),
    *("--set", LIGHT[1].replace("batch=2", "batch=4").replace("min=30", "min=100")),
    *("--set", "spec.evaluator=", "--set", "spec.sync.fragments=4"),
)
CONTEXT, HELDOUT_BYTES = 32, 1 << 16
# Steps after the common checkpoint, from 4H on: the loss of one step moves by 0.01 nats and more.
MEASURED = (4 * PERIOD, 200)
COMPARED_MIN = 4
LOSS_APART_MAX = 0.02  # nats


def found(place: Path, step: int) -> Checkpoint:
    return restoring.find(f"file://{place}/step-{step}", open_store)


def whole(place: Path) -> list[int]:
    """The steps of the whole ones."""
    folder = open_store(str(place))
    return [step for step in copies.steps_of(folder) if copies.read_whole(folder, step) is not None]


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


def losses(place: Path, steps: Sequence[int]) -> dict[int, float]:
    """By step, the held-out loss of the values that a checkpoint has."""
    model, found = ByteGPT(TrainOptions(context=CONTEXT), seed=0), {}
    heldout = data.read().heldout()
    shown = data.windows(heldout, context=CONTEXT, byte_count_max=HELDOUT_BYTES)
    shapes = {name: each.shape for name, each in model.state_dict().items()}
    for step in steps:
        values = as_documented(place / f"step-{step}", "master")
        tensors = {name: torch.from_numpy(each).view(shapes[name]) for name, each in values.items()}
        model.load_state_dict(tensors)
        found[step] = heldout_loss(model, shown)
    return found


def trained_on(checkpoint: Path, out: Path, until: int) -> None:
    """A run of the same length that begins with a checkpoint, and goes as far."""
    more = f"spec.checkpoint={{everySteps: {EVERY}, keep: 100, model: false}}"
    resumed = ("--set", more, "--resume-from", str(checkpoint))
    with running(TINY, out, *SETTINGS, *resumed) as run:
        place = out / "checkpoints"
        run.until(lambda: place.exists() and max(whole(place), default=0) >= until, "its end")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_checkpoint_that_is_whole_among_twenty_kills_restores_and_trains_on_as_its_parent(
    tmp_path: Path,
) -> None:
    out, again, copied = (tmp_path / name for name in ("out", "again", "copied"))
    plan, place = tmp_path / "plan.yaml", out / "checkpoints"
    plan.write_text(kills(KILLS, SECONDS))
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
        # Work that was under way at the kills is merged later, and a run that begins lacks it.
        calm = max(seen) + 4 * PERIOD
        run.until(lambda: look() and max(seen) >= calm, "a checkpoint in peace")
        last = max(seen)
        run.until(lambda: look() and max(seen) >= last + MEASURED[1], "what is compared")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    check_law(out)
    assert len(seen) >= 10
    assert 1 <= len(whole(place)) <= KEPT + 1  # what became whole as it ended
    for step in seen:
        checkpoint = found(copied, step)
        check_values(copied / f"step-{step}", checkpoint)
        check_cursors(out, checkpoint)
    trained_on(copied / f"step-{last}", again, last + MEASURED[1])
    compared = range(last + MEASURED[0], last + MEASURED[1] + 1)
    common = sorted(seen.keys() & {*whole(again / "checkpoints")} & {*compared})
    assert len(common) >= COMPARED_MIN, common
    parent, child = losses(copied, common), losses(again / "checkpoints", common)
    apart = {step: child[step] - parent[step] for step in common}
    sys.stderr.write(f"{len(seen)} checkpoints; from {last} on, nats above the parent: {apart}\n")
    assert abs(mean(apart.values())) <= LOSS_APART_MAX, apart
