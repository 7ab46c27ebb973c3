"""The learner of bench.gpu: an ordinary loop, timed with and without `learner.step`."""

import argparse
import hashlib
import json
import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atoll
from bytegpt.model import BYTES, ByteGPT, Size

RANGE = "atoll.step"
SETTLE_STEPS = 4  # before a timed window, so that it begins in the middle of things
BATCHES = 4  # of data, made beforehand
SMALL_BYTES = 1024  # a copy of one number may stand in line on any stream
WAITS = re.compile(r"cu(da)?(Device|Stream|Event|Ctx)Synchronize|cudaMemcpy(2D)?|cudaFree(Host)?")
WAITED = "called a synchronizing CUDA operation"  # in torch's warning
TICKS_MARGIN = 10  # steps that the job is longer than what is measured


@dataclass(slots=True, kw_only=True)
class Loop:
    """A model in training on one device."""

    model: ByteGPT
    loss: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    autocast: torch.dtype | None
    batches: list[Tensor]
    steps: int = 0
    inside_seconds: list[float] = field(default_factory=list)  # of learner.step
    adopted: int = 0  # boundaries at which something was adopted

    @property
    def device(self) -> torch.device:
        return self.batches[0].device

    @property
    def tokens(self) -> int:
        """Of one step."""
        rows, columns = self.batches[0].shape
        return int(rows * (columns - 1))

    def step(self) -> Tensor:
        """One optimizer step; the loss, on the device."""
        new_step()
        windows = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            loss = self.loss(windows)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def step_with(self, learner: atoll.Learner) -> None:
        """One optimizer step of a learner."""
        loss = self.step()
        begun = time.perf_counter()
        with torch.profiler.record_function(RANGE):
            done = learner.step(tokens=self.tokens, loss=loss)
        self.inside_seconds.append(time.perf_counter() - begun)
        self.adopted += bool(done.adopted)


def new_step() -> None:
    """Let CUDA graphs know that outputs of the last step are not needed any more."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def main() -> None:
    """Train, measure, train to the job's end, and write down what was found."""
    arguments = parsed()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    loop = made(arguments, device)
    for _ in range(2 * SETTLE_STEPS):  # compiles, and records graphs
        loop.step()
    with atoll.Learner(loop.model, loop.optimizer) as learner:
        places = [each.data_ptr() for each in loop.model.parameters()]
        for _ in range(arguments.window):
            loop.step_with(learner)
        found = timed(loop, learner, arguments)
        found |= never_waits(loop, learner, arguments)
        found["same_addresses"] = places == [each.data_ptr() for each in loop.model.parameters()]
        found["compiled_sees_adopted"] = same_losses(loop)
        while not learner.finished:
            loop.step_with(learner)
    found |= described(loop, arguments)
    found["values"] = {name: digest(each) for name, each in loop.model.state_dict().items()}
    Path(arguments.out).write_text(json.dumps(found))


def parsed() -> argparse.Namespace:
    """What bench.gpu gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    for name in ("layers", "width", "heads", "context", "batch", "pairs", "window", "profiled"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def made(arguments: argparse.Namespace, device: torch.device) -> Loop:
    """The model and all that steps it."""
    size = Size(
        layers=arguments.layers,
        heads=arguments.heads,
        width=arguments.width,
        context=arguments.context,
    )
    model = ByteGPT(size, seed=0).to(device)
    if arguments.dtype == "bf16":
        model = model.to(torch.bfloat16)
    on_cuda = device.type == "cuda"
    loss: Callable[[Tensor], Tensor] = model.loss
    if arguments.compile:
        how: dict[str, Any] = {"mode": "reduce-overhead"} if on_cuda else {"backend": "eager"}
        loss = torch.compile(model.loss, **how)
    loop = Loop(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True),
        scaler=torch.amp.GradScaler(device.type, enabled=arguments.dtype == "fp16" and on_cuda),
        autocast=torch.float16 if arguments.dtype == "fp16" else None,
        batches=random_batches(model, arguments.batch, device),
    )
    if not on_cuda and loop.autocast is not None:
        loop.autocast = torch.bfloat16  # what a CPU computes in 16 bits
    return loop


def random_batches(model: ByteGPT, rows: int, device: torch.device) -> list[Tensor]:
    """Windows of random bytes: int64 [rows, context + 1] each."""
    shape = (rows, model.size.context + 1)
    return [torch.randint(BYTES, shape, device=device) for _ in range(BATCHES)]


def timed(loop: Loop, learner: atoll.Learner, arguments: argparse.Namespace) -> dict[str, Any]:
    """Windows of steps in pairs, with `learner.step` and without, in turns: AB, BA, AB ..."""
    loop.inside_seconds.clear()
    loop.adopted, boundaries = 0, 0

    def with_it() -> float:
        for _ in range(SETTLE_STEPS):
            loop.step_with(learner)
        return seconds(loop, lambda: loop.step_with(learner), arguments.window)

    def without_it() -> float:
        for _ in range(SETTLE_STEPS):
            loop.step()
        return seconds(loop, loop.step, arguments.window)

    pairs = []
    for number in range(arguments.pairs):
        if number % 2:
            without, with_ = without_it(), with_it()
        else:
            with_, without = with_it(), without_it()
        pairs.append((with_, without))
        boundaries += SETTLE_STEPS + arguments.window
    return {
        "pairs": pairs,
        "inside_milliseconds": 1e3 * statistics.median(loop.inside_seconds),
        "adopted_share": loop.adopted / boundaries,
    }


def seconds(loop: Loop, step: Callable[[], object], count: int) -> float:
    """Of one step, in a window of so many that the thread does not wait in between."""
    finish(loop.device)
    begun = time.perf_counter()
    for _ in range(count):
        step()
    finish(loop.device)
    return (time.perf_counter() - begun) / count


def finish(device: torch.device) -> None:
    """Wait until the device has done all."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def never_waits(
    loop: Loop, learner: atoll.Learner, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Twice: torch warns of what it knows to wait, and a profile shows what CUDA is asked for."""
    refused: set[str] = set()
    for _ in range(arguments.profiled):
        loss = loop.step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_waits(loop.device, "warn")
            learner.step(tokens=loop.tokens, loss=loss)
            warn_of_waits(loop.device, "default")
        refused |= waits_in(str(each.message) for each in caught)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if loop.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(arguments.profiled):
            loop.step_with(learner)
        finish(loop.device)
    path = Path(arguments.out).with_suffix(".trace.json")
    profile.export_chrome_trace(str(path))
    found = calls_within(json.loads(path.read_text())["traceEvents"])
    path.unlink()
    return {"refused": sorted(refused), **found}


def calls_within(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Read what CUDA is asked for inside of `learner.step` from a trace in Chrome's format.

    It has each call of the CUDA runtime, with its thread and time, and each copy of the device,
    tied to its call by a correlation number. The driver copies memory that is not pinned in pieces,
    and the thread waits.
    """
    whole = [event for event in events if event.get("ph") == "X"]

    def of(*kinds: str) -> list[dict[str, Any]]:
        return [event for event in whole if event.get("cat") in kinds]

    ranges = [event for event in of("user_annotation", "cpu_op") if event["name"] == RANGE]
    calls = [
        call
        for call in of("cuda_runtime", "cuda_driver")
        for span in ranges
        if span["tid"] == call["tid"] and span["ts"] <= call["ts"] < span["ts"] + span["dur"]
    ]
    numbers = {call.get("args", {}).get("correlation") for call in calls} - {None}
    copies = [
        copy
        for copy in of("gpu_memcpy")
        if copy["args"].get("correlation") in numbers
        and re.match(r"Memcpy (HtoD|DtoH)", copy["name"])
    ]
    sizes = [int(copy["args"].get("bytes", 0)) for copy in copies]
    large = [copy for copy, size in zip(copies, sizes, strict=True) if size >= SMALL_BYTES]
    return {
        "ranges": len(ranges),
        "waits": dict(Counter(call["name"] for call in calls if WAITS.fullmatch(call["name"]))),
        "copied_bytes": sum(sizes),
        "unpinned": sum("Pageable" in copy["name"] for copy in copies),
        "copy_streams": sorted({int(copy["args"]["stream"]) for copy in large}),
        "compute_streams": sorted({int(kernel["args"]["stream"]) for kernel in of("kernel")}),
    }


def waits_in(warnings_told: Iterable[str]) -> set[str]:
    """Those about an operation that waits; torch also warns that it may not see all."""
    return {each for each in warnings_told if WAITED in each}


def warn_of_waits(device: torch.device, mode: str) -> None:
    """Whether torch warns where an operation waits for the device."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


@torch.no_grad()
def same_losses(loop: Loop) -> bool:
    """Whether the compiled model computes with the values that the model has now."""
    windows = loop.batches[0]
    with torch.autocast(loop.device.type, loop.autocast, enabled=loop.autocast is not None):
        new_step()
        one = float(loop.loss(windows))
        other = float(loop.model.loss(windows))
    return abs(one - other) <= 1e-2 * abs(other)


def described(loop: Loop, arguments: argparse.Namespace) -> dict[str, Any]:
    """What was trained, and on what."""
    on_cuda = loop.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(loop.device) if on_cuda else 0
    return {
        "device": torch.cuda.get_device_name(loop.device) if on_cuda else "cpu",
        "torch": torch.__version__,
        "parameters": sum(each.numel() for each in loop.model.parameters()),
        "batch": loop.batches[0].shape[0],
        "context": arguments.context,
        "peak_bytes": peak,
        "own_steps": loop.steps,
    }


def digest(tensor: nn.Parameter | Tensor) -> str:
    """Of the values in bf16, as they travel."""
    values = tensor.detach().to(torch.bfloat16).cpu().contiguous()
    return hashlib.sha256(values.view(torch.int16).numpy().tobytes()).hexdigest()
