"""What people get: the export loads into their own model and their library, with every value."""

import json
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

from atoll_operator.local.folder.run_files import STATUS_FILE
from atoll_operator.local.progress.last_status import read_status
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

    def index(self, stem: str = "model") -> Any:
        return json.loads((self.export / f"{stem}.safetensors.index.json").read_text())


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
    (folder / "notes.txt").write_text("of the user's\n")
    text = manifest(
        Path(__file__).with_name("models.py"),
        *(kind, str(folder), str(folder / "notes.txt")),
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


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "lora"])
def test_the_export_has_every_value_of_a_learners_own_model_and_loads_strictly(
    jobs: Jobs, kind: str
) -> None:
    job = jobs(kind)
    found = load_file(job.export / "model.safetensors")
    model = make(kind, SEED + 1)
    model.load_state_dict(found, strict=True)
    assert found.keys() == {bare(key) for key in model.state_dict()}
    differ = [{k for k, v in own.items() if not equal(found[bare(k)], v)} for own in job.learners]
    assert set() in differ, f"neither learner has the export's values: {differ}"
    assert all("num_batches_tracked" in key for keys in differ for key in keys)
    assert job.index()["weight_map"].keys() == found.keys()
    assert job.index()["metadata"]["absent"] == {}
    assert (job.export / "notes.txt").read_text() == "of the user's\n"


def bare(key: str) -> str:
    return key.replace("_checkpoint_wrapped_module.", "")


def equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "bf16"])
def test_transformers_loads_the_export_and_gives_the_same_logits(jobs: Jobs, kind: str) -> None:
    job = jobs(kind)
    loaded = AutoModelForCausalLM.from_pretrained(job.export)
    assert loaded.dtype == job.own().dtype
    assert torch.equal(logits(loaded), logits(job.own()))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's call
def test_peft_loads_the_adapter_onto_the_base_and_gives_the_same_logits(jobs: Jobs) -> None:
    job = jobs("lora")
    found = load_file(job.export / "adapter_model.safetensors")
    assert not any("base_layer" in key for key in found), "the base is not part of the export"
    assert job.index("adapter_model")["weight_map"].keys() == found.keys()
    loaded = PeftModel.from_pretrained(make("gpt2", SEED), job.export)
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
        make("gpt2", 0).load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        assert torch.isfinite(logits(AutoModelForCausalLM.from_pretrained(folder))).all()
        assert (folder / "notes.txt").exists()
        assert not list(folder.glob("parts"))
    stopped = export(out, tmp_path / "then", code=2)
    assert "is stopped, and has not come to its end; continue with" in stopped


def test_the_export_of_a_run_that_is_over_is_its_final_model(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs("gpt2")
    assert "the final model" in export(job.folder / "out", tmp_path / "copy")
    same = load_file(tmp_path / "copy" / "model.safetensors")
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
    done = ended(ATOLL, "export", run, "--out", out)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
