"""After the end every learner's model is the exported one, bit for bit, whatever it did since.

No wire rounds it: the default one sends bf16, and a model in f32 has f32 values at the end.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from local.arithmetic.final_values_script import Model
from local.command import manifest, run_atoll


def exported(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(
    ("dtype", "sync"),
    [
        ("float32", {"overlap": 2}),
        ("float32", {"overlap": 0, "wire": {"up": "int2", "down": "int4"}}),
        ("bfloat16", {"overlap": 2, "adopt": {"mode": "Blend", "blendPercent": 50}}),
    ],
    ids=["f32", "f32-int4-lockstep", "bf16-blend"],
)
def test_learners_that_step_on_past_the_end_have_the_exported_values_bit_for_bit(
    dtype: str, sync: dict[str, Any], tmp_path: Path
) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    script = Path(__file__).with_name("final_values_script.py")
    sync = {"fragments": 2, "period": 8, "quorum": 2, **sync}
    job.write_text(manifest(script, dtype, regions=["one", "two"], steps=60, sync=sync))
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
    scales = Model().scales.to(one["scales"].dtype)
    assert torch.equal(one["scales"], scales), "a constant travels too, and no wire rounds it"
