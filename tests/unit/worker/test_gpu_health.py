"""The threads that watch the GPUs of a learner, and which GPUs they watch.

NVML's answers are replaced at the border of pynvml, and CUDA by one GPU that torch seems to have.
"""

import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from atoll_worker.training import gpu_health
from atoll_worker.training.gpu_faults import Nvml
from atoll_worker.training.gpu_health import GpuHealth
from unit.worker import fake_pynvml as fake
from unit.worker.fake_transport import SECONDS_MAX, job_of

JOB = job_of()
BROKEN = "GPU 0 (GPU-aaaa) is broken: "
CUDA = RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "answers", {})
    monkeypatch.setattr(fake, "events", queue.Queue())
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(gpu_health, "EVENT_SECONDS", 0.02)


class Ended:
    """Takes the place of the end of the process."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.event = threading.Event()

    def __call__(self, fault: str) -> None:
        self.faults.append(fault)
        self.event.set()

    def fault(self) -> str:
        assert self.event.wait(SECONDS_MAX)
        return self.faults[0]


def watching(end: Callable[[str], object]) -> GpuHealth:
    health = GpuHealth(Nvml(library=fake, uuids=("aaaa",)), end)
    health.start()
    return health


def over(health: GpuHealth) -> None:
    health._ending.join(SECONDS_MAX)
    assert not health._ending.is_alive()


@pytest.mark.parametrize(
    ("call", "answer", "fault"),
    [
        ("nvmlEventSetWait_v2", fake.xid(79), "the driver reports XID 79"),
        ("nvmlDeviceGetTotalEccErrors", fake.NVMLError(15), "NVML says GPU is lost"),
    ],
)
def test_a_fault_that_an_event_or_a_look_shows_ends_the_process(
    call: str, answer: Any, fault: str
) -> None:
    ended = Ended()
    fake.answers[call] = answer
    health = watching(ended)
    assert ended.fault() == BROKEN + fault
    over(health)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetTotalEccErrors"])
def test_a_driver_that_does_not_answer_ends_the_process(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_health, "TICK_SECONDS", 0.01)
    ended, hang = Ended(), fake.Hang()
    fake.answers[call] = hang
    watching(ended)
    assert hang.begun.wait(SECONDS_MAX)
    monkeypatch.setattr(gpu_health, "ANSWER_SECONDS_MAX", 0.5)
    name = "GPU aaaa" if call == "nvmlInit" else "GPU 0 (GPU-aaaa)"
    assert ended.fault() == f"the driver of {name} hangs: no answer within 0.5 s"
    hang.over.set()


def test_from_a_fault_to_the_end_it_is_less_than_half_a_minute() -> None:
    looked = gpu_health.LOOK_SECONDS + 2.0  # of a wait for events, which is made shorter here
    assert looked + gpu_health.ANSWER_SECONDS_MAX + gpu_health.TICK_SECONDS < 30
    assert gpu_health.EXPLAIN_SECONDS_MAX > gpu_health.ANSWER_SECONDS_MAX


def test_an_error_of_cuda_is_let_pass_after_a_look_and_others_at_once() -> None:
    health = watching(Ended())
    for error in (ValueError("CUDA error"), torch.OutOfMemoryError("CUDA out of memory")):
        health.explain(error)
        assert not health._asked.is_set()
    health.explain(CUDA)
    assert health._looked.is_set()
    assert not health.fault
    health.close()
    over(health)


def test_an_error_of_cuda_behind_which_a_gpu_is_broken_does_not_come_out_first() -> None:
    looked, ended = threading.Event(), Ended()

    def look(self: Nvml) -> str:
        looked.set()
        return fault[0]

    fault = [""]
    health = GpuHealth(Nvml(library=fake, uuids=("aaaa",)), ended)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nvml, "look", look)
        health.start()
        assert looked.wait(SECONDS_MAX)  # the next look of its own is seconds away
        fault[0] = "broken"
        health.explain(RuntimeError("NCCL error: unhandled cuda error"))
    assert ended.faults == ["broken"]


def test_without_nvml_the_log_says_so_and_the_learner_trains() -> None:
    ended = Ended()
    fake.answers["nvmlInit"] = fake.NVMLError(fake.NVML_ERROR_LIBRARY_NOT_FOUND)
    with capture_logs() as lines:
        health = watching(ended)
        over(health)
    assert [(each["event"], each["reason"]) for each in lines] == [
        ("the health of GPUs is not watched: NVML fails", "NVML Shared Library Not Found")
    ]
    health.explain(CUDA)  # returns
    assert not ended.faults


def test_a_learner_that_leaves_while_a_fault_is_found_is_not_ended() -> None:
    ended = Ended()
    health = GpuHealth(Nvml(library=fake, uuids=("aaaa",)), ended)
    health.fault = "broken"
    health.close()
    health.start()
    over(health)
    assert not ended.faults


# ---------------------------------------------------------------- who watches what


def with_gpus(patch: pytest.MonkeyPatch) -> None:
    """Make torch see the two GPUs of the fake, the second as the current one."""
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch.cuda, "current_device", lambda: 1)
    patch.setattr(
        torch.cuda, "get_device_properties", lambda n: SimpleNamespace(uuid=fake.UUIDS[n])
    )


def test_the_gpus_of_the_parameters_are_watched_else_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def model(*devices: str) -> Any:
        found = [SimpleNamespace(device=torch.device(each)) for each in devices]
        return SimpleNamespace(parameters=lambda: found)

    model_on_cpu = nn.Linear(1, 1)
    assert gpu_health.uuids_of([model_on_cpu]) == ()  # nobody uses CUDA
    with_gpus(monkeypatch)
    assert gpu_health.uuids_of([model("cuda:0", "cuda:0")]) == ("aaaa",)
    assert gpu_health.uuids_of([model("cuda:1"), model("cpu", "cuda:0")]) == fake.UUIDS
    assert gpu_health.uuids_of([model_on_cpu]) == ("bbbb",)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert gpu_health.uuids_of([model_on_cpu]) == ()


def test_without_a_job_a_gpu_or_the_package_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1, 1)
    assert gpu_health.begin([model], JOB) is None  # no GPU
    with_gpus(monkeypatch)
    health = gpu_health.begin([model], JOB)
    assert health is not None
    health.close()
    over(health)
    assert gpu_health.begin([model], replace(JOB, alone=True)) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with capture_logs() as lines:
        assert gpu_health.begin([model], JOB) is None
    assert [each["event"] for each in lines] == [
        "the health of GPUs is not watched: the package nvidia-ml-py is not installed"
    ]
