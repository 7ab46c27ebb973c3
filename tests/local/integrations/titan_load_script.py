"""Whether an export is the model that torchtitan itself has saved: EXPORT CHECKPOINT.

Loads the export strictly into torchtitan's model, and compares it with the values of a checkpoint.
"""

import sys
from pathlib import Path

import titan_cpu  # noqa: F401  (before torchtitan)
import torch
from safetensors.torch import load_file
from titan_llama import debugmodel
from torch.distributed.checkpoint.state_dict_loader import load


def main(export: str, saved: str) -> None:
    """Ends with an error where they differ."""
    config = debugmodel()
    shape = config.model_spec.model
    shape.update_from_config(config=config)
    model = shape.build()
    model.load_state_dict(load_file(Path(export) / "model.safetensors"), strict=True)
    values = model.state_dict()  # as torchtitan saves them: wq, wk and wv for wqkv
    found = {name: torch.empty_like(value) for name, value in values.items()}
    load(found, checkpoint_id=saved, no_dist=True)
    assert "layers.0.attention.qkv_linear.wq.weight" in values
    for name, value in values.items():
        assert torch.equal(value, found[name]), name


if __name__ == "__main__":
    main(*sys.argv[1:])
