"""Learners whose device is broken end with exit code 74; the device is tried by real processes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll_protos.exits import ExitCode
from atoll_worker.training import device_check
from atoll_worker.training.device_check import devices_of, end_if_broken, fault_of
from unit.worker.fake_transport import job_of

CUDA = RuntimeError("CUDA error: an illegal memory access was encountered")
# A machine without a GPU is as one whose GPU is lost: no process computes on cuda:0.
LEARNER = """
import sys
from dataclasses import replace
import torch
from atoll_protos import logs
from atoll_worker.training import device_check
from unit.worker.fixtures import entered, learner_of, model_and_optimizer
logs.configure()
device_check.devices_of = lambda models: ["cuda:0"]
learner = learner_of(*model_and_optimizer())
learner._job = replace(learner._job, telemetry_folder=sys.argv[1])
with entered(learner):
    learner.step(tokens=1)
    raise RuntimeError(sys.argv[2])
"""


def ends(folder: Path, text: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", LEARNER, str(folder), text],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.returncode, done.stderr


def test_a_learner_whose_device_works_for_no_process_ends_with_74_and_its_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "learners").mkdir()
    code, text = ends(tmp_path, str(CUDA))
    assert code == ExitCode.BAD_DEVICE, text
    (line,) = (tmp_path / "learners/here-1.jsonl").read_text().splitlines()[-1:]
    reason = json.loads(line)["reason"]
    assert reason.startswith("cuda:0 is broken: ")
    assert reason in text


def test_an_error_of_the_script_keeps_its_own_code(tmp_path: Path) -> None:
    code, text = ends(tmp_path, "the data is gone")
    assert code == 1
    assert text.endswith("RuntimeError: the data is gone\n")


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("", ""),
        ("raise RuntimeError('CUDA error: out of memory')", ""),
        ("raise RuntimeError('CUDA error: all devices are busy or unavailable')", ""),
        ("raise RuntimeError('CUDA error: uncorrectable ECC error')", "CUDA error: uncorrectable"),
        ("import os; os._exit(3)", "a new process ended with 3"),
        ("import time; time.sleep(600)", "its driver hangs: a new process had no answer within"),
    ],
)
def test_only_what_fails_in_a_new_process_too_is_a_fault(
    program: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "PROBE", program)
    hangs = fault.startswith("its driver")
    text = fault_of("cuda:0", 0.5 if hangs else device_check.PROBE_SECONDS_MAX)
    assert fault in text
    assert bool(text) == bool(fault)


@pytest.mark.parametrize(
    ("error", "alone"),
    [(ValueError("CUDA error"), False), (RuntimeError("no such file"), False), (CUDA, True)],
)
def test_nothing_is_tried_for_other_errors_and_without_a_job(
    error: Exception, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "devices_of", lambda _models: pytest.fail("was tried"))
    job = job_of()
    end_if_broken(error, (), replace(job, alone=alone))


def test_the_devices_with_parameters_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class Placed(nn.Module):
        def parameters(self, recurse: bool = True) -> object:  # type: ignore[override]
            weight = type("Weight", (), {"device": torch.device("cuda", 3)})
            return iter((weight, weight))

    assert devices_of([Placed()]) == []  # this process has used none: the error is another one's
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert devices_of([Placed()]) == ["cuda:3"]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert devices_of([nn.Linear(2, 2)]) == ["cuda:1"]
