"""The shortest way in: a script is trained and looked at, as a person does it."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoll_operator.api.job.parsing import parse
from atoll_operator.local.run_files import read_lines
from local.command import ATOLL, commits, ended

SCRIPT = Path(__file__).with_name("cli_script.py")
SMI = """#!/bin/sh
echo 'GPU 0: H100 (UUID: GPU-a)'; echo 'GPU 1: H100 (UUID: GPU-b)'; echo 'GPU 2: H100 (UUID: GPU-c)'
"""
SECONDS_MAX = 900.0


def ticks(out: Path, slot: str) -> list[int]:
    """The ticks of a learner's steps so far, in the order in which it made them."""
    lines = read_lines(out / "learners" / f"{slot}.jsonl")
    return [line["tick"] for line in lines if line.get("loss") is not None]


def drawn(out: Path, series: str) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a series: points by tag."""
    found = EventAccumulator(str(out / "tensorboard" / series)).Reload()
    tags: list[str] = found.Tags()["scalars"]
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in tags}


@dataclass(slots=True)
class Here:
    """A folder of a person, on a machine with three GPUs, and what they type."""

    folder: Path
    variables: dict[str, str]

    def atoll(self, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Type it; it must end with this exit code."""
        done = ended(ATOLL, *arguments, env=self.variables, cwd=self.folder)
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    folder = tmp_path_factory.mktemp("person")
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "train.py").write_text(SCRIPT.read_text())
    variables = {key: os.environ[key] for key in os.environ if not key.startswith("CUDA")}
    return Here(folder, {**variables, "PATH": f"{folder}:{os.environ['PATH']}"})


@pytest.fixture(scope="module")
def out(here: Here) -> Path:
    """The folder of the run of a script."""
    few = ("--steps", "40", "--gpus-per-learner", "1")
    regions = ("--regions", "us,eu", "--set", "spec.sync.quorum=2")  # both have their part
    done = here.atoll("run", "train.py", *few, *regions, "--output", "lines", "--", "--width", "12")
    (folder,) = (here.folder / "runs").glob("train-*")
    assert str(folder.relative_to(here.folder)) in done.stderr.splitlines()[0]
    return folder


def test_a_script_is_trained_with_its_arguments_and_gpus_of_its_own(out: Path) -> None:
    logs = {path.stem: path.read_text() for path in (out / "logs").glob("*-0.log")}
    assert "width 12 GPUs 0\n" in logs["us-0"]
    assert "width 12 GPUs 1\n" in logs["eu-0"]


def test_a_network_of_four_tensors_has_a_fragment_for_each_with_the_defaults(out: Path) -> None:
    """24 fragments need 24 tensors: a small network was refused with the defaults."""
    assert json.loads((out / "run.json").read_text())["sync"]["fragments"] == "auto"
    assert {line["slice"] for line in commits(out)} == {0, 1, 2, 3}
    exported = load_file(out / "export" / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in exported.items()}
    assert shapes == {"0.weight": (12, 4), "0.bias": (12,), "2.weight": (1, 12), "2.bias": (1,)}


def test_the_curves_of_the_run_are_what_its_summary_says(out: Path) -> None:
    assert {path.name for path in (out / "tensorboard").iterdir()} == {"us-0", "eu-0", "job"}
    summary = json.loads((out / "summary.json").read_text())
    job = drawn(out, "job")
    last = [*{line["shard"]: line["counts"] for line in commits(out)}.values()]
    trained, merged, slices = (
        sum(x[name] for x in last) for name in ("trained", "merged", "slices")
    )
    assert job["goodput"][-1][1] == pytest.approx(merged / trained)
    assert job["tokens"][-1][1] == pytest.approx(trained / slices)
    assert trained / slices <= summary["tokens"]["trained"] + 1  # with what was told after it
    assert job["commits"][-1][1] == summary["commits"]
    for slot in ("us-0", "eu-0"):
        assert [tick for tick, _ in drawn(out, slot)["loss"]] == sorted(set(ticks(out, slot)))


def test_a_run_that_is_over_can_be_looked_at(here: Here, out: Path) -> None:
    assert here.atoll("status", str(out)).stdout.startswith("train: Complete, step 40 of 40 (100%)")
    shown = here.atoll("logs", str(out), "-f").stdout.splitlines()  # ends, as the run is over
    assert "[us-0] width 12 GPUs 0" in shown
    assert any(line.startswith("[shard-0] ") for line in shown)


def test_the_folder_keeps_the_manifest_and_goes_on_by_its_name_from_anywhere(
    here: Here, out: Path
) -> None:
    kept = (out / "manifest.yaml").read_text()
    assert parse(kept).spec.steps == 40
    here.atoll("validate", str(out / "manifest.yaml"))
    elsewhere = Here(here.folder.parent, here.variables)
    again = elsewhere.atoll("run", str(out), "--resume", "--output", "lines")
    assert "is complete since step" in again.stdout
    assert (out / "manifest.yaml").read_text() == kept
    longer = elsewhere.atoll("run", str(out), "--resume", "--set", "spec.steps=90", code=2)
    assert "is complete since step" in longer.stderr
    refused = here.atoll("run", str(out / "manifest.yaml"), "--out", str(out), code=2)
    assert "--resume" in refused.stderr
