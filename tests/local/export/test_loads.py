"""What people get: the export and what the script saves have the same values, in all bits."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from atoll_operator.local.last_status import read_status
from atoll_operator.local.run_files import STATUS_FILE
from atoll_worker.model.parameters import travelling
from local.background import running
from local.command import ATOLL, ended, manifest, run_atoll
from local.export.models import MODELS, VOCABULARY, make

SEED = 3


@dataclass(frozen=True)
class Trained:
    """A job that is over: its export, and what its learners' own models had at the end."""

    kind: str
    folder: Path

    @property
    def export(self) -> Path:
        return self.folder / "out" / "export"

    @property
    def learners(self) -> list[dict[str, Tensor]]:
        return [torch.load(path) for path in sorted(self.folder.glob("*.pt"))]

    def own(self, learner: int = 0) -> Any:
        """A learner's own model."""
        model = make(self.kind, SEED)
        model.load_state_dict(self.learners[learner])
        return model.eval()

    def index(self) -> Any:
        return json.loads((self.export / "model.safetensors.index.json").read_text())


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Runs the job of a kind of model, once."""

    @cache
    def job(kind: str) -> Trained:
        folder = tmp_path_factory.mktemp(kind)
        train(kind, folder)
        return Trained(kind, folder)

    return job


def train(kind: str, folder: Path) -> None:
    """The learners leave their state dicts in the folder."""
    run_atoll(job_of(kind, folder), folder / "out")


def job_of(kind: str, folder: Path, pause_seconds: float = 0.0) -> Path:
    text = manifest(
        Path(__file__).with_name("models.py"),
        *(kind, str(folder)),
        regions=["a", "b"],
        shards=1,
        env={"PAUSE": str(pause_seconds)},
        steps=12,
        seed=SEED,
        sync={"fragments": 2, "period": 4, "overlap": 1},
    )
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def logits(model: Any) -> Tensor:
    tokens = torch.arange(10).reshape(1, 10) % VOCABULARY
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=tokens).logits
    return found


Jobs = Callable[[str], Trained]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's call
@pytest.mark.parametrize("kind", MODELS)
def test_every_learner_ends_with_the_values_of_the_export_in_all_bits(
    jobs: Jobs, kind: str
) -> None:
    job = jobs(kind)
    found = load_file(job.export / "model.safetensors")
    model = make(kind, SEED)
    assert found.keys() == {place.spec.name for place in travelling(model)}
    for state in job.learners:
        saved = {bare(key): value for key, value in state.items()}
        assert all(equal(value, saved[key]) for key, value in found.items())
    assert job.index()["weight_map"].keys() == found.keys()


def bare(key: str) -> str:
    return key.replace("_checkpoint_wrapped_module.", "")


def equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "bf16"])
def test_transformers_loads_what_the_script_saved_and_gives_the_same_logits(
    jobs: Jobs, kind: str
) -> None:
    job = jobs(kind)
    loaded = AutoModelForCausalLM.from_pretrained(job.folder / "saved")
    assert loaded.dtype == job.own().dtype
    assert torch.equal(logits(loaded), logits(job.own()))
    values = load_file(job.export / "model.safetensors")
    assert all(equal(values[key], tensor) for key, tensor in loaded.named_parameters())


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's call
def test_peft_loads_the_adapter_onto_the_base_and_gives_the_same_logits(jobs: Jobs) -> None:
    job = jobs("lora")
    loaded = PeftModel.from_pretrained(make("gpt2", SEED), job.folder / "saved")
    assert torch.equal(logits(loaded), logits(job.own()))
    assert not torch.equal(logits(loaded), logits(make("gpt2", SEED))), "it has learned something"


def test_a_run_is_exported_while_it_trains_and_has_its_model_in_checkpoints(
    tmp_path: Path,
) -> None:
    job, out = job_of("gpt2", tmp_path, pause_seconds=0.1), tmp_path / "out"
    more = ("--set", "spec.steps=100000", "--set", "spec.checkpoint={keep: 1}")
    with running(job, out, *more, "--set", "spec.syncer.shards=2") as run:
        steps = out / "checkpoints"
        run.until(lambda: reached_step(out) >= 10, "ten steps")
        assert not steps.exists()
        first = asked_checkpoint(out)
        assert (steps / f"step-{first}" / "checkpoint.json").exists()
        run.until(lambda: taken(steps) == [first], "the model of the checkpoint")
        said = export(out, tmp_path / "now")
        assert "the model at tick" in said
        again = export(out, tmp_path / "now", code=2)
        assert "is not empty; give a new folder" in again
        second = asked_checkpoint(out)
        run.until(lambda: taken(steps) == [second], "the next model, and the end of the first")
    seen = json.loads((tmp_path / "now" / "model.safetensors.index.json").read_text())
    assert seen["metadata"]["tick"] >= 10
    for folder in (tmp_path / "now", steps / f"step-{second}" / "model"):
        model: Any = make("gpt2", 0)
        model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        assert torch.isfinite(logits(model)).all()
        assert not list(folder.glob("parts"))
    stopped = export(out, tmp_path / "then", code=2)
    assert "is stopped, and has not come to its end; continue with" in stopped


def test_the_export_of_a_run_that_is_over_is_its_final_model(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs("gpt2")
    assert "the final model" in export(job.folder / "out", tmp_path / "copy")
    file = tmp_path / "copy" / "model.safetensors"
    (tmp_path / "usual").touch()
    assert file.stat().st_mode == (tmp_path / "usual").stat().st_mode  # and not the run folder's
    same = load_file(file)
    assert all(equal(v, same[k]) for k, v in load_file(job.export / "model.safetensors").items())


def reached_step(out: Path) -> int:
    """The step that a run has come to."""
    progress = read_status(out).progress if (out / STATUS_FILE).exists() else None
    return progress.step if progress else 0


def asked_checkpoint(out: Path) -> int:
    """The step of a checkpoint that `atoll checkpoint` takes."""
    done = ended(ATOLL, "checkpoint", out)
    assert done.returncode == 0, done.stdout + done.stderr
    url, step = done.stdout.strip().rsplit("/step-", 1)
    assert url == f"file://{out / 'checkpoints'}"
    return int(step)


def taken(place: Path) -> list[int]:
    """The steps of the checkpoints that have their model."""
    found = place.glob("step-*/model/*.index.json")
    return sorted(int(path.parts[-3].removeprefix("step-")) for path in found)


def export(run: Path, out: Path, *, code: int = 0) -> str:
    """As a person types it: both folders are named from where the person is."""
    run = Path(os.path.relpath(run, out.parent))
    done = ended(ATOLL, "export", run, "--out", out.name, cwd=out.parent)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
