"""The shortest way in: a script is trained, looked at and gone on with, as a person does it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll_operator.api.manifest import parse
from atoll_operator.local.summary import read_lines

SCRIPT = Path(__file__).with_name("cli_script.py")
SMI = """#!/bin/sh
echo 'GPU 0: H100 (UUID: GPU-a)'; echo 'GPU 1: H100 (UUID: GPU-b)'; echo 'GPU 2: H100 (UUID: GPU-c)'
"""
SECONDS_MAX = 200.0


@dataclass(slots=True)
class Here:
    """A folder of a person, on a machine with three GPUs, and what they type."""

    folder: Path
    variables: dict[str, str]

    def atoll(self, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Type it; it must end with this exit code."""
        done = subprocess.run(
            [Path(sys.executable).with_name("atoll"), *arguments],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
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
    few = ("--steps", "40", "--gpus-per-learner", "1", "--set", "spec.sync.fragments=2")
    regions = ("--regions", "us,eu")
    done = here.atoll("run", "train.py", *few, *regions, "--output", "lines", "--", "--width", "12")
    (folder,) = (here.folder / "runs").glob("train-*")
    assert str(folder.relative_to(here.folder)) in done.stderr.splitlines()[0]
    return folder


def test_a_script_is_trained_with_its_arguments_and_gpus_of_its_own(out: Path) -> None:
    logs = {path.stem: path.read_text() for path in (out / "logs").glob("*-0.log")}
    assert "width 12 GPUs 0\n" in logs["us-0"]
    assert "width 12 GPUs 1\n" in logs["eu-0"]
    assert (out / "export" / "model.safetensors.index.json").exists()


def test_the_folder_keeps_the_manifest_and_goes_on_by_its_name_from_anywhere(
    here: Here, out: Path
) -> None:
    kept = (out / "manifest.yaml").read_text()
    assert parse(kept).spec.steps == 40
    here.atoll("validate", str(out / "manifest.yaml"))
    elsewhere = Here(here.folder.parent, here.variables)
    more = ("--set", "spec.steps=60", "--output", "lines")
    elsewhere.atoll("run", str(out), "--resume", *more)
    assert parse((out / "manifest.yaml").read_text()).spec.steps == 60
    assert max(line.get("tick", 0) for line in read_lines(out / "learners" / "us-0.jsonl")) >= 60
    refused = here.atoll("run", str(out / "manifest.yaml"), "--out", str(out), code=2)
    assert "--resume" in refused.stderr
