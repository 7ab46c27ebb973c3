"""Processes whose GPU is broken end with exit code 74, also where training hangs.

NVML's answers are replaced at the border of pynvml, and CUDA by one GPU that torch seems to have.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll_protos.exits import ExitCode

BROKEN = "GPU 0 (GPU-aaaa) is broken: "
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
    "cuda error": f"{TRAIN}fake.answers['nvmlDeviceGetRemappedRows'] = fake.NVMLError(15)\n"
    "    raise cuda",
    "error of the script": f"{TRAIN}fake.events.put(fake.xid(31)); raise cuda",
    "no package": f"sys.modules['pynvml'] = None\n{TRAIN}fake.events.put(fake.xid(79))",
}
Ends = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """The exit code of every scene, and its log."""
    folder = tmp_path_factory.mktemp("telemetry")
    (folder / "learners").mkdir()
    (folder / "learners/here-1.jsonl").touch()
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
        ("cuda error", f"{BROKEN}NVML says GPU is lost"),
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
