"""Whether a learner with a real GPU ends as docs/operating.md says, and what watching it costs.

In tests/: python -m bench.gpu_health

Five learners train on one CUDA device at once. The test speaks for their transport processes.

    healthy   trains for a while; shows what NVML answers for this GPU, and how long an answer takes
    address   writes to memory that is not its own: the driver reports an XID that programs cause
    assert    fails an assertion on the device
    row       has a kernel that never ends, and NVML begins to answer that a row is broken
    hang      has a kernel that never ends, and NVML stops to answer

A fault of the hardware cannot be made on purpose. So its answer is replaced, at the border of
pynvml, in the last two; all else there is real. Exit codes: 0; 1 when a learner ended otherwise
than it must; 3 without a device.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

from atoll_protos.exits import ExitCode
from bench.table import show

NO_DEVICE: Final = 3
SECONDS_MAX: Final = 30  # from a fault to the end
BEGIN: Final = """
import threading, time
import pynvml, torch
from torch import nn
from atoll_protos import logs
from unit.worker.tiny_learner import entered, learner_of
logs.configure()
model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, 512, device="cuda")
learner = learner_of(model, optimizer)

def train(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

def fault():
    print("FAULT", time.time(), flush=True)

def never_ends():
    torch.cuda._sleep(1 << 62)
    torch.cuda.synchronize()

class TooLarge:  # memory of one value, said to have many
    held = torch.zeros(1, device="cuda")
    __cuda_array_interface__ = {
        "shape": (1 << 38,), "typestr": "<f4", "data": (held.data_ptr(), False), "version": 3
    }
"""
HEALTHY: Final = """
import statistics
from atoll_worker.training.gpu_faults import Nvml
from atoll_worker.training.gpu_health import uuids_of
with entered(learner):
    learner.step(tokens=1)
    nvml = Nvml(library=pynvml, uuids=uuids_of([model]))
    nvml.open()
    (gpu,) = nvml.gpus
    kinds = pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
    train(8)
    seconds = []
    for _ in range(100):
        begun = time.perf_counter()
        assert not nvml.look(), nvml.look()
        seconds.append(time.perf_counter() - begun)
    rows = pynvml.nvmlDeviceGetRemappedRows(gpu.handle)
    print(f"{gpu.name}: events {kinds:#x}, ECC errors {gpu.ecc_errors}, rows {rows}, "
          f"a look takes {1e3 * statistics.median(seconds):.2f} ms", flush=True)
    fault()
"""
SCENES: Final = {
    "healthy": (HEALTHY, 0, ""),
    "address": (
        "with entered(learner):\n    learner.step(tokens=1)\n    train(6)\n    fault()\n"
        "    torch.as_tensor(TooLarge(), device='cuda')[1 << 37 :].fill_(1)\n"
        "    torch.cuda.synchronize()",
        1,
        "an error of a program",
    ),
    "assert": (
        "with entered(learner):\n    learner.step(tokens=1)\n    train(6)\n    fault()\n"
        "    batch[torch.tensor([64], device='cuda')]\n    torch.cuda.synchronize()",
        1,
        "device-side assert triggered",
    ),
    "row": (
        "def rows(handle):\n    threading.Timer(0, fault).start()\n    return 0, 0, 0, 1\n"
        "with entered(learner):\n    learner.step(tokens=1)\n    train(3)\n"
        "    pynvml.nvmlDeviceGetRemappedRows = rows\n    never_ends()",
        ExitCode.BAD_DEVICE,
        "no spare row",
    ),
    "hang": (
        "def errors(*_):\n    fault()\n    threading.Event().wait()\n"
        "with entered(learner):\n    learner.step(tokens=1)\n    train(3)\n"
        "    pynvml.nvmlDeviceGetTotalEccErrors = errors\n    never_ends()",
        ExitCode.BAD_DEVICE,
        "hangs: no answer within 20 s",
    ),
}


def scene(name: str) -> tuple[int, str, float]:
    """The exit code, all that was printed, and seconds from the fault to the end of the process."""
    program, _, _ = SCENES[name]
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    ended, printed = time.time(), done.stdout + done.stderr
    times = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("FAULT")]
    return done.returncode, printed, ended - min(times, default=ended)


def main() -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device here: nothing was measured\n")
        return NO_DEVICE
    with ThreadPoolExecutor() as pool:
        ends = dict(zip(SCENES, pool.map(scene, SCENES), strict=True))
    rows, right = [], True
    for name, (code, printed, seconds) in ends.items():
        _, wanted, words = SCENES[name]
        same = code == wanted and words in printed and 0 < seconds < SECONDS_MAX
        right = right and same
        rows.append((name, code, seconds, "yes" if same else "NO"))
        if not same or name == "healthy":
            sys.stdout.write(f"{name}:\n{printed}\n")
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}: five learners on it"
    show(title, ("scene", "exit code", "seconds to the end", "right"), rows)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
