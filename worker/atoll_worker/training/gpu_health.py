"""Ends a learner whose GPU is broken, with exit code 74, so that it moves to another machine.

Training itself may show nothing of it, or not for long: a kernel or a collective hangs. So two
threads of the training process look. One asks NVML for faults (`gpu_faults`). The other ends the
process as soon as there is one, or when no call to NVML has come back for ANSWER_SECONDS_MAX: then
the driver hangs. These are seconds in which this process ran, so one that was stopped for a while,
or that got no time, blames nobody. From a fault to the end it is less than 30 s.

The process ends by `os._exit`: a training thread that waits for the driver does not come back to
Python. torch lets other threads run meanwhile, so the two here do. The transport process beside
this one cannot end it so: the first process of a container takes no signal of another one in it,
and one that was killed has no exit code. Where the kernel itself cannot end a thread (state D),
nobody can end the process before the driver comes back.

A broken GPU may first show as an error of CUDA in the script. Then the learner does not leave
before NVML was asked once more (`explain`), so that the exit code has the reason.

Of several ranks each watches the GPU of its own parameters; the others end as when a rank dies.
"""

import contextlib
import importlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
import torch
from torch import nn

from atoll_protos.exits import ExitCode
from atoll_worker.job import Job
from atoll_worker.training.gpu_faults import Nvml

EVENT_SECONDS: Final = 2.0  # of one wait for an event
LOOK_SECONDS: Final = 5.0
TICK_SECONDS: Final = 1.0
ANSWER_SECONDS_MAX: Final = 20.0
EXPLAIN_SECONDS_MAX: Final = 25.0  # more than a driver that hangs is given
CUDA_ERROR: Final = re.compile("cuda error", re.IGNORECASE)  # NCCL writes it small
REMEDY: Final = "another machine is needed, until this one's GPU is reset or replaced"

log = structlog.get_logger()


def uuids_of(models: Sequence[nn.Module]) -> tuple[str, ...]:
    """Of the GPUs on which these parameters are, else of the current one; none without CUDA."""
    if torch.version.hip is not None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    devices = {each.device for model in models for each in model.parameters()}
    numbers = {each.index for each in devices if each.type == "cuda"}
    used = sorted(numbers or {torch.cuda.current_device()})
    return tuple(str(torch.cuda.get_device_properties(number).uuid) for number in used)


def begin(models: Sequence[nn.Module], job: Job) -> "GpuHealth | None":
    """Watch the GPUs of these models; None without a job or GPU, or if NVML cannot be asked."""
    uuids = () if job.alone else uuids_of(models)
    if not uuids:
        return None
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        log.info("the health of GPUs is not watched: the package nvidia-ml-py is not installed")
        return None
    health = GpuHealth(Nvml(library=library, uuids=uuids), lambda fault: end_process(fault, job))
    health.start()
    return health


def end_process(fault: str, job: Job) -> None:
    reason = f"{fault}; {REMEDY}"
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


class GpuHealth:
    """The two threads of the module; `end` gets the fault, in the second one."""

    def __init__(self, nvml: Nvml, end: Callable[[str], object]) -> None:
        self.nvml, self.end = nvml, end
        self.fault = ""
        self._over = threading.Event()  # nothing more is asked, or nobody wants to know
        self._asked = threading.Event()
        self._looked = threading.Event()
        self._closed = False
        self._ending = threading.Thread(target=self._guard, name="atoll-gpu-end", daemon=True)

    def start(self) -> None:
        threading.Thread(target=self._look, name="atoll-gpu-health", daemon=True).start()
        self._ending.start()

    def close(self) -> None:
        self._closed = True
        self._over.set()

    def explain(self, error: BaseException) -> None:
        """Return at an error of CUDA only if no broken GPU is behind it; at others at once."""
        if isinstance(error, RuntimeError) and CUDA_ERROR.search(str(error)):
            log.info("the GPU is looked at, since CUDA has failed", reason=str(error))
            self._asked.set()
            self._looked.wait(EXPLAIN_SECONDS_MAX)
            if self.fault:
                self._ending.join()

    def _look(self) -> None:
        nvml, looked_at = self.nvml, -LOOK_SECONDS
        try:
            nvml.open()
            while not (self.fault or self._over.is_set()):
                asked = self._asked.is_set()  # then an event has all of this wait to come
                self.fault, now = nvml.wait(EVENT_SECONDS), time.monotonic()
                if not self.fault and (asked or now - looked_at >= LOOK_SECONDS):
                    self.fault, looked_at = nvml.look(), now
                    if asked:
                        self._looked.set()
        except nvml.library.NVMLError as error:
            log.warning("the health of GPUs is not watched: NVML fails", reason=str(error))
        finally:
            self._over.set()
            self._looked.set()

    def _guard(self) -> None:
        silent, answers = 0, -1
        while not self._over.wait(TICK_SECONDS):
            silent, answers = silent + 1 if self.nvml.answers == answers else 0, self.nvml.answers
            if silent * TICK_SECONDS >= ANSWER_SECONDS_MAX:
                limit = f"{ANSWER_SECONDS_MAX:g} s"
                self.fault = f"the driver of {self.nvml.names} hangs: no answer within {limit}"
                break
        self._looked.set()
        if self.fault and not self._closed:
            self.end(self.fault)
