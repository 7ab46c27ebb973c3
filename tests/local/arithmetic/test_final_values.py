"""After the end every learner's model is the exported one, bit for bit, whatever it did since.

No wire rounds it: the default one sends bf16, and a model in f32 has f32 values at the end.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from local.arithmetic.final_values_script import Model
from local.command import TESTS, python_path, run_atoll


def manifest(dtype: str, sync: dict[str, Any]) -> str:
    container = {
        "name": "learner",
        "command": [sys.executable, "final_values_script.py", dtype],
        "workingDir": str(Path(__file__).parent),
        "env": [{"name": "PYTHONPATH", "value": python_path(TESTS)}],
    }
    spec = {
        "steps": 60,
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": "one"}, {"name": "two"}],
        "syncer": {"shards": 2},
        "sync": {"fragments": 2, "period": 8, "quorum": 2, **sync},
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    return yaml.safe_dump({**kind, "metadata": {"name": "final"}, "spec": spec})


def exported(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(
    ("dtype", "sync"),
    [
        ("float32", {"overlap": 2}),
        ("float32", {"overlap": 0, "wire": {"up": "int8", "down": "int4"}}),
        ("bfloat16", {"overlap": 2, "adopt": {"mode": "Blend", "blendPercent": 50}}),
    ],
    ids=["f32", "f32-int4-lockstep", "bf16-blend"],
)
def test_learners_that_step_on_past_the_end_have_the_exported_values_bit_for_bit(
    dtype: str, sync: dict[str, Any], tmp_path: Path
) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(manifest(dtype, sync))
    run_atoll(job, out)
    one, two = (load_file(out / f"{slot}-0.safetensors") for slot in ("one", "two"))
    final = exported(out / "export")
    travelled = {name for name in Model().state_dict() if name != "norm.num_batches_tracked"}
    assert travelled <= final.keys()
    for name in sorted(travelled):
        assert one[name].dtype == getattr(torch, dtype)
        assert torch.equal(one[name], two[name]), name
        assert torch.equal(one[name], final[name].to(one[name].dtype)), name
        assert bool(torch.isfinite(one[name]).all()), name
        rounded = one[name].bfloat16().to(one[name].dtype)
        assert torch.equal(one[name], rounded) == (dtype == "bfloat16"), f"{name}: f32 has more"
    assert bool((one["norm.running_var"] > 0).all())
