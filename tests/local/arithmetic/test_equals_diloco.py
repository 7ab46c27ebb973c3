"""Plain DiLoCo through the whole program equals DiLoCo by all-reduce over gloo (2311.08105)."""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from local.command import RUN_SECONDS_MAX, TESTS, commits, manifest, run_atoll
from local.lockstep_model import (
    LEARNERS,
    OUTER_LEARNING_RATE,
    OUTER_MOMENTUM,
    PERIOD,
    ROUNDS,
    Model,
)

DIFFERENCE_MAX = 1e-5
MOVED_MIN = 0.1  # else there is nothing to compare
SHARDS = 2
SLOTS = tuple(f"region-{n}-0" for n in range(LEARNERS))


def reference(folder: Path) -> dict[str, torch.Tensor]:
    """The shared parameters that two processes of torch.distributed come to."""
    expected = folder / "expected.safetensors"
    command = (sys.executable, "-m", "local.arithmetic.lockstep_reference")
    ranks = [
        subprocess.Popen([*command, str(rank), folder / "gloo", slot, expected], cwd=TESTS)
        for rank, slot in enumerate(SLOTS)
    ]
    assert [rank.wait(RUN_SECONDS_MAX) for rank in ranks] == [0] * LEARNERS
    return load_file(expected)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of two state dicts with the same names."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_ten_rounds_of_plain_diloco_equal_an_all_reduce_over_gloo(tmp_path: Path) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    outer = {"learningRate": str(OUTER_LEARNING_RATE), "momentum": str(OUTER_MOMENTUM)}
    text = manifest(
        Path(__file__).with_name("lockstep_script.py"),
        regions=[slot.removesuffix("-0") for slot in SLOTS],
        shards=SHARDS,
        env={"MEETING": "$(ATOLL_TELEMETRY_DIR)/meeting"},
        steps=ROUNDS * PERIOD,
        sync={"preset": "DiLoCo", "period": PERIOD, "outer": outer},  # f32 both ways
    )
    job.write_text(text)
    run_atoll(job, out)

    committed = commits(out)
    assert len(committed) == ROUNDS * SHARDS
    for commit in committed:
        parts = [(each["slot"], each["steps"]) for each in commit["participants"]]
        assert parts == [(slot, PERIOD) for slot in SLOTS]

    expected = reference(tmp_path)
    found = load_file(out / "export" / "model.safetensors")
    assert distance(found, expected) <= DIFFERENCE_MAX
    assert distance(found, dict(Model(seed=0).state_dict())) >= MOVED_MIN
