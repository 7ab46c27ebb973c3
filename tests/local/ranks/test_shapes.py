"""Learners of every shape train together, and equal single processes bit for bit.

All are on two hosts, of which the first one carries everything.
"""

from pathlib import Path

import pytest
import torch

from local.ranks.jobs import LOCK_STEP, check_equals_single, manifest
from local.ranks.shapes import RANKS, Model

PERIOD, ROUNDS = 20, 4
LOCK_STEP_SHORT = {**LOCK_STEP, "period": PERIOD}
SCRIPT = "shapes_script.py"


def check_shapes(folder: Path, shapes: dict[str, str]) -> None:
    """The job with ranks ends with the values of the same job with single processes."""
    steps, first = PERIOD * ROUNDS, dict(Model().state_dict())
    travelling = {name for name, each in Model().named_parameters() if each.requires_grad}
    jobs = [
        manifest(shapes, LOCK_STEP_SHORT, steps, script=SCRIPT, **more)
        for more in ({"HOSTS": "2"}, {"SINGLE": "1"})
    ]
    mixed = check_equals_single(
        folder, jobs, shapes, PERIOD, {name: first[name] for name in travelling}
    )
    for slot, shape in shapes.items():
        held = set[str]()
        for rank in range(RANKS[shape]):
            end = torch.load(folder / "0" / f"{slot}.{rank}.pt", weights_only=True)
            held |= end.keys()
            for name, tensor in end.items():
                assert torch.equal({**first, **mixed}[name], tensor), (slot, rank, name)
        assert held == first.keys()


def test_tensor_parallelism_and_a_pipeline_of_model_parts_equal_single_processes(
    tmp_path: Path,
) -> None:
    check_shapes(tmp_path, {"tp-0": "tp", "stages-0": "pipeline"})


@pytest.mark.long  # twelve processes on two cores
def test_hybrid_and_two_dimensional_sharding_and_experts_equal_single_processes(
    tmp_path: Path,
) -> None:
    check_shapes(tmp_path, {"hsdp-0": "hsdp", "grid-0": "fsdp2_tp", "experts-0": "experts"})
