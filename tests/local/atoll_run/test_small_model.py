"""A model of a few tensors trains with the defaults of `spec.sync`, whatever its number of tensors.

[24 fragments need 24 tensors: a small network was refused with the defaults.]
"""

import json
from pathlib import Path

import yaml
from safetensors.torch import load_file

from local.command import commits, run_atoll

STEPS = 60
SCRIPT = """
import time
import torch
from torch import nn
from atoll import Learner

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with Learner(model, optimizer) as learner:
    while not learner.finished:
        generator = torch.Generator().manual_seed(learner.cursor)
        x = torch.randn(16, 8, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        learner.step(tokens=16, loss=loss)
        time.sleep(0.01)
"""


def test_a_network_of_four_tensors_trains_with_an_empty_sync(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    container = {"name": "l", "command": ["python", "train.py"], "workingDir": str(tmp_path)}
    spec = {
        "steps": STEPS,
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": "a"}, {"name": "b"}],
        "sync": {},
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(yaml.safe_dump({**kind, "metadata": {"name": "small"}, "spec": spec}))
    run_atoll(job, out)

    assert json.loads((out / "run.json").read_text())["sync"]["fragments"] == "auto"
    slices = {line["slice"] for line in commits(out)}
    assert slices == {0, 1, 2, 3}, "a fragment for each tensor"
    exported = load_file(out / "export" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in exported.items()} == {
        "0.weight": (32, 8), "0.bias": (32,), "2.weight": (1, 32), "2.bias": (1,)
    }  # fmt: skip
