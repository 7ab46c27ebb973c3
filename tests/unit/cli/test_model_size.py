"""`atoll plan --model`: a model is counted in a process of its own, without its values."""

import sys
from pathlib import Path

import pytest

from atoll_operator.cli.plan import model_size
from atoll_protos.errors import SpecError

MODELS = """
import torch
from torch import nn

def tied():
    model = nn.ModuleDict({"a": nn.Embedding(1000, 64), "b": nn.Linear(64, 1000, bias=False)})
    model["b"].weight = model["a"].weight
    model["c"], model["d"] = nn.BatchNorm1d(64), nn.Linear(8, 8).requires_grad_(False)
    return model

def huge():
    return nn.Linear(10**6, 10**6, bias=False)

def number():
    return 3

def frozen():
    return nn.Linear(2, 2).requires_grad_(False)

def moved():
    return nn.Linear(2, 2).to("cpu")
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("models")
def test_a_function_that_builds_the_model_is_counted_without_its_values() -> None:
    """Tied weights once, statistics with them, nothing frozen; 4 TB are never there."""
    assert model_size.of_function("models:tied") == 1000 * 64 + 4 * 64
    assert model_size.of_function("models:huge") == 10**12


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("models", "names no function; give MODULE:FUNCTION"),
        ("modules:tied", "there is no module modules; give MODULE:FUNCTION"),
        ("models:other", "models has no function other; give MODULE:FUNCTION"),
        ("models:number", "makes int, not a torch.nn.Module; name a function"),
        ("models:frozen", "no trainable parameter; give the model that is trained"),
        ("models:moved", "NotImplementedError: Cannot copy out of meta tensor.*only builds"),
    ],
)
def test_a_model_that_cannot_be_counted_is_named_with_the_remedy(name: str, problem: str) -> None:
    with pytest.raises(SpecError, match=f"--model: {name}: .*{problem}"):
        model_size.of_function(name)


def test_a_counter_that_hangs_or_has_no_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def counter(code: str) -> None:
        monkeypatch.setattr(model_size, "COUNTER", (sys.executable, "-c", code))

    counter("import time; time.sleep(60)")
    with pytest.raises(SpecError, match=r"m:f takes over 0\.1 s"):
        model_size.of_function("m:f", seconds_max=0.1)
    counter("raise ModuleNotFoundError(\"No module named 'torch'\")")
    with pytest.raises(SpecError, match=r"needs torch; install atoll\[worker\]"):
        model_size.of_function("m:f")
    counter("raise SystemExit(3)")
    with pytest.raises(SpecError, match="m:f: ended with 3"):
        model_size.of_function("m:f")
