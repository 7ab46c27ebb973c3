"""A learner whose GPU is broken ends with exit code 74: threads here, and whole processes.

NVML's answers are replaced at the border of pynvml, and CUDA by one GPU that torch seems to have.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from atoll_protos.exits import ExitCode
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


def test_a_learner_that_has_left_is_not_ended() -> None:
    ended = Ended()
    health = GpuHealth(Nvml(library=fake, uuids=("aaaa",)), ended)
    health.close()
    fake.events.put(fake.xid(79))
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


# ---------------------------------------------------------------- real processes

# Each scene is a fork of one process that has imported torch.
PROGRAM = """
import gc, json, os, sys, tempfile, threading
from dataclasses import replace
from types import SimpleNamespace
import torch
from atoll_protos import logs
from atoll_worker.training import gpu_health
from unit.worker import fake_pynvml as fake
from unit.worker.tiny_learner import entered, learner_of, model_and_optimizer
torch.set_num_threads(1)
gc.freeze()  # else each fork looks at all of torch at its end
ends = {}
for name, script in json.load(sys.stdin).items():
    errors = tempfile.TemporaryFile("w+")
    if not (pid := os.fork()):
        os.dup2(errors.fileno(), 2)
        break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    errors.seek(0)
    ends[name] = code, errors.read()
else:
    sys.exit(print(json.dumps(ends)))
logs.configure()
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda number: SimpleNamespace(uuid=fake.UUIDS[number])
sys.modules["pynvml"] = fake
learner = learner_of(*model_and_optimizer())
learner._job = replace(learner._job, telemetry_folder=sys.argv[1])
hang = threading.Event().wait  # as a training thread that waits for the driver
cuda = RuntimeError("CUDA error: uncorrectable ECC error encountered")
exec(script)
"""
TRAIN = "with entered(learner):\n    learner.step(tokens=1)\n    "
SCENES = {
    "xid": f"{TRAIN}fake.events.put(fake.xid(79)); hang()",
    "ecc": f"{TRAIN}fake.events.put(fake.event(fake.nvmlEventTypeDoubleBitEccError)); hang()",
    "hang": "gpu_health.TICK_SECONDS = 0.01\n"
    "driver = fake.answers['nvmlDeviceGetTotalEccErrors'] = fake.Hang()\n"
    f"{TRAIN}driver.begun.wait(); gpu_health.ANSWER_SECONDS_MAX = 0.5; hang()",
    "cuda error": f"{TRAIN}fake.events.put(fake.xid(48)); raise cuda",
    "error of the script": f"{TRAIN}fake.events.put(fake.xid(31)); raise cuda",
    "no package": f"sys.modules['pynvml'] = None\n{TRAIN}fake.events.put(fake.xid(79))",
}
Ends = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """The exit code of every scene, and its log."""
    folder = tmp_path_factory.mktemp("telemetry")
    (folder / "learners").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        input=json.dumps(SCENES),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found = {name: (code, said) for name, (code, said) in json.loads(done.stdout).items()}
    return {**found, "telemetry": (0, Path(folder, "learners/here-1.jsonl").read_text())}


@pytest.mark.parametrize(
    ("scene", "fault"),
    [
        ("xid", f"{BROKEN}the driver reports XID 79"),
        ("ecc", f"{BROKEN}an uncorrectable ECC error"),
        ("hang", "the driver of GPU 0 (GPU-aaaa) hangs: no answer within 0.5 s"),
        ("cuda error", f"{BROKEN}the driver reports XID 48"),
    ],
)
def test_a_learner_ends_with_its_own_code_and_one_line_though_training_hangs(
    scene: str, fault: str, ends: Ends
) -> None:
    code, said = ends[scene]
    assert code == ExitCode.BAD_DEVICE
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (line,) = (each for each in lines if each["level"] == "error")
    assert line == lines[-1]
    reason = f"{fault}; another machine is needed, until this one's GPU is reset or replaced"
    assert (line["event"], line["slot"], line["exit_code"]) == (reason, "here-1", 74)
    told = [json.loads(each) for each in ends["telemetry"][1].splitlines()]
    assert [(each["slot"], each["event"]) for each in told if each["reason"] == reason] == [
        ("here-1", "warning")
    ]


def test_an_error_that_the_script_has_made_keeps_its_own_code(ends: Ends) -> None:
    code, said = ends["error of the script"]
    assert code == 1
    assert "the driver reports XID 31, an error of a program" in said
    assert said.endswith("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")


def test_a_learner_without_the_package_trains_and_says_once_that_nobody_watches(ends: Ends) -> None:
    code, said = ends["no package"]
    assert code == 0
    assert said.count("the package nvidia-ml-py is not installed") == 1
