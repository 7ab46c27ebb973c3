"""The scripts with other libraries train in three regions, and export what can be loaded.

No verdict here may depend on how fast the machine or one of the learners is. So every round waits
for all three learners (`quorum: 3`), nobody begins before all are there (`startSeconds`), and what
a model has learned is measured after many rounds, where it is far from what it was at the start.
"""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import lora
import nanogpt
import pytest
import torch
import trainer
import vision
from digits import digits
from lightning_autoencoder import LitAutoEncoder
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from local.command import TESTS, commits, json_lines, run_atoll

pytestmark = pytest.mark.filterwarnings("default")  # the libraries warn of their own parts
SCRIPTS = TESTS.parent / "examples" / "libraries"
STEPS = 120
# The whole job takes a few seconds: merge often.
SETTINGS = {
    "spec.sync.quorum": "3",
    "spec.sync.period": "8",
    "spec.syncer.startSeconds": "1800",
}
EVALUATOR = {
    "everySteps": 20,
    "template": {
        "spec": {
            "containers": [
                {"name": "evaluator", "command": ["python", str(SCRIPTS / "evaluate_vision.py")]}
            ]
        }
    },
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library may ask a server, and none may take both cores."""
    for name, value in {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)


def run(script: str, folder: Path, *arguments: str) -> Path:
    """A job of three regions; its folder. Every learner had its part."""
    out = folder / "out"
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    flags = ["--learners", "3", "--regions", "us,eu,ap", "--steps", str(STEPS), *settings]
    run_atoll(SCRIPTS / f"{script}.py", out, *flags, *arguments)
    part = {each["slot"] for line in commits(out) for each in line["participants"]}
    assert part == {"us-0", "eu-0", "ap-0"}
    return out


def last_loss(out: Path) -> float:
    """The mean of the last tenth of the losses of all learners."""
    files = [json_lines(path) for path in sorted((out / "learners").glob("*.jsonl"))]
    losses = [[line["loss"] for line in lines if line.get("loss") is not None] for lines in files]
    assert all(len(each) >= STEPS / 2 for each in losses)  # a round waits for every learner
    last = [each[-STEPS // 10 :] for each in losses]
    return statistics.fmean(map(statistics.fmean, last))


def loaded(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "export" / "model.safetensors")


@pytest.mark.usefixtures("offline")
def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    out = run("trainer", tmp_path, "--", "--output-dir", str(tmp_path / "output"))
    saved = tmp_path / "output"  # by trainer.save_model()
    model = AutoModelForCausalLM.from_pretrained(saved).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved)
    loss = Trainer(
        model=model,
        args=TrainingArguments(str(tmp_path / "eval"), report_to=[], use_cpu=True),
        eval_dataset=trainer.group(trainer.read_files(), tokenizer, 32)[:64],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    ).evaluate()["eval_loss"]
    # After the job each learner has evaluated its model, and the values of all are the same.
    for log in (out / "logs" / f"{slot}.log" for slot in ("us-0", "eu-0", "ap-0")):
        measured = [line for line in log.read_text().splitlines() if line.startswith("{'eval_loss")]
        assert float(measured[-1].split()[1].strip("',")) == pytest.approx(loss, abs=1e-5)
    for name, tensor in loaded(out).items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert not list((tmp_path / "output").glob("*-0/checkpoint-*"))  # of the other slots


@pytest.mark.usefixtures("offline")
def test_an_adapter_of_peft(tmp_path: Path) -> None:
    out = run("lora", tmp_path, "--", "--output-dir", str(tmp_path / "output"))
    model = PeftModel.from_pretrained(lora.base_model(), tmp_path / "output").eval()
    exported, values = loaded(out), model.state_dict()
    assert len(exported) == len(load_file(tmp_path / "output" / "adapter_model.safetensors"))
    assert all(torch.equal(tensor, values[name]) for name, tensor in exported.items())
    rows = torch.tensor([each["input_ids"] for each in lora.pieces()[::20]])
    with torch.no_grad():
        loss = float(model(input_ids=rows, labels=rows).loss)
        with model.disable_adapter():
            untrained = float(model(input_ids=rows, labels=rows).loss)
    assert loss < untrained - 0.05  # an adapter of a random model learns 0.14
    # The Trainer divides by all 32 labels of a row, of which 31 are predicted.
    assert loss * 31 / 32 == pytest.approx(last_loss(out), abs=0.06)


@pytest.mark.usefixtures("offline")
def test_a_module_of_lightning(tmp_path: Path) -> None:
    out = run("lightning_autoencoder", tmp_path)
    images = digits(1000, seed=9)[0].flatten(1)

    def held_out(module: LitAutoEncoder) -> float:
        with torch.no_grad():
            return float(functional.mse_loss(module.decoder(module.encoder(images)), images))

    torch.manual_seed(0)
    module = LitAutoEncoder()
    untrained = held_out(module)
    module.load_state_dict(loaded(out), strict=True)
    loss = held_out(module)
    assert loss < 0.8 * untrained
    assert loss == pytest.approx(last_loss(out), rel=0.1)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("script", ["nanogpt", "muon"])  # with one optimizer, and with two
def test_a_loop_like_that_of_nanogpt(tmp_path: Path, script: str) -> None:
    out = run(script, tmp_path)
    model = nanogpt.GPT()
    model.load_state_dict(loaded(out), strict=False)  # the tied head has one name
    torch.manual_seed(0)
    _, held_out = nanogpt.read_data()
    loss = sum(nanogpt.estimate_loss(model, held_out) for _ in range(10)) / 10
    assert loss < 0.8 * math.log(256)  # a guess has log 256
    assert loss == pytest.approx(last_loss(out), abs=0.4)


@pytest.mark.usefixtures("offline")
def test_a_network_with_batch_normalisation_and_an_evaluator_of_ones_own(tmp_path: Path) -> None:
    out = run("vision", tmp_path, "--set", f"spec.evaluator={json.dumps(EVALUATOR)}")
    model = vision.Net()
    lacks = model.load_state_dict(loaded(out), strict=False)
    assert not lacks.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in lacks.missing_keys)
    variances = [each for name, each in model.named_buffers() if name.endswith("running_var")]
    assert len(variances) == 2
    assert all(bool((each > 0).all()) for each in variances)
    loader: Any = DataLoader(TensorDataset(*digits(1000, seed=1)), batch_size=500)
    loss = vision.test(model, torch.device("cpu"), loader)
    status = json.loads((out / "status.json").read_text())
    shown = {each["name"]: float(each["value"]) for each in status["progress"]["metrics"]}
    assert loss == pytest.approx(shown["outer_loss"], abs=1e-3)
    assert loss < 0.8 * math.log(10)  # a guess has log 10


@pytest.mark.long
@pytest.mark.usefixtures("offline")
def test_a_loop_with_accelerate(tmp_path: Path) -> None:
    out = run("accelerate_loop", tmp_path)
    assert last_loss(out) < 0.8 * math.log(10)  # a guess has log 10
    assert loaded(out).keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    tokens = {
        line["tokens"]
        for path in (out / "learners").glob("*.jsonl")
        for line in json_lines(path)
        if line.get("tokens") and "t_m" in line
    }
    assert tokens == {32}  # of two batches of 16
