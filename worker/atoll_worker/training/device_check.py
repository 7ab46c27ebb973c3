"""Ends a learner whose device is broken with exit code 74, so that it moves to another machine.

An error of CUDA or HIP in the script may be the script's own: it spoils this process alone, and a
new process computes on the same device as ever. So at such an error a new process adds a few
numbers on each device that the learner has used. Where that fails too, or does not end, the device
is broken or its driver hangs. Full memory, and a device that takes one process at a time, prove
nothing.

The process then ends by `os._exit`: one that waits for a broken driver may never end in order.
Errors that no script notices are work of those that watch machines (DCGM, node-problem-detector).
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import torch
from torch import nn

from atoll_protos.exits import ExitCode
from atoll_worker.job import Job

DEVICE_ERROR: Final = re.compile("(cuda|hip) error", re.IGNORECASE)  # NCCL writes it small
NO_PROOF: Final = re.compile("out of memory|busy or unavailable", re.IGNORECASE)
PROBE: Final = "import sys, torch; torch.ones(9, device=sys.argv[1]).add(1).sum().item()"
PROBE_SECONDS_MAX: Final = 60.0  # importing torch on a cold machine takes a third of that
KILL_SECONDS_MAX: Final = 1.0
REMEDY: Final = "another machine is needed, until this one's device is reset or replaced"

log = structlog.get_logger()


def end_if_broken(error: BaseException, models: Sequence[nn.Module], job: Job) -> None:
    """Return where `error` is none of a device, or the devices work for another process."""
    if job.alone or not isinstance(error, RuntimeError) or not DEVICE_ERROR.search(str(error)):
        return
    log.info("the device is tried by a new process, since this one's has failed", reason=str(error))
    for device in devices_of(models):
        if fault := fault_of(device):
            _end(f"{device} is broken: {fault}; {REMEDY}", job)


def devices_of(models: Sequence[nn.Module]) -> list[str]:
    """Return the accelerators with parameters, else the current one; none where none was used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    devices = {parameter.device for model in models for parameter in model.parameters()}
    numbers = {device.index for device in devices if device.type == "cuda"}
    return [f"cuda:{number}" for number in sorted(numbers or {torch.cuda.current_device()})]


def fault_of(device: str, seconds_max: float = PROBE_SECONDS_MAX) -> str:
    """Return why a new process cannot compute on a device; empty without proof that it cannot."""
    program = [sys.executable, "-c", PROBE, device]
    # Not run(): it waits without end for a child that even SIGKILL does not end (state D).
    probe = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        text = probe.communicate(timeout=seconds_max)[1]
    except subprocess.TimeoutExpired:
        probe.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            probe.communicate(timeout=KILL_SECONDS_MAX)
        return f"its driver hangs: a new process had no answer within {seconds_max:g} s"
    if probe.returncode == 0 or NO_PROOF.search(text):
        return ""
    lines = text.strip().splitlines()
    own = [line for line in lines if DEVICE_ERROR.search(line)] or lines
    return own[0] if own else f"a new process ended with {probe.returncode}"


def _end(reason: str, job: Job) -> None:
    log.error(reason, slot=job.slot, exit_code=int(ExitCode.BAD_DEVICE))
    with contextlib.suppress(OSError):
        if job.telemetry_folder:
            line = {"time": time.time(), "slot": job.slot, "event": "warning", "reason": reason}
            with Path(job.telemetry_folder, f"learners/{job.slot}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(ExitCode.BAD_DEVICE))
