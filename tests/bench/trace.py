"""What a profile of torch.profiler has of the CUDA calls inside of a marked range.

A trace in Chrome's format has an event for every call of the CUDA runtime, with its thread and
time, and one for every copy of the device, tied to its call by a correlation number. So two things
can be read from it without trust in anybody's code: which calls inside of the range make the
thread wait for the device, and which copies go through memory that is not pinned (the driver copies
such memory in pieces, and the thread waits).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WAITS: Final = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMemcpy2D",
        "cudaFree",
        "cudaFreeHost",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
    }
)
ALLOCATIONS: Final = frozenset({"cudaMalloc", "cudaMallocAsync", "cudaHostAlloc"})
SMALL_BYTES: Final = 1024  # a copy of one number may stand in line on any stream
CALLS: Final = ("cuda_runtime", "cuda_driver")
COPIES: Final = "gpu_memcpy"
KERNEL: Final = "kernel"
RANGES: Final = ("user_annotation", "cpu_op")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What happened inside of the ranges of one name."""

    ranges: int
    calls: int  # of CUDA
    allocations: int  # of these calls; none once the caches are warm
    waits: dict[str, int]  # calls that wait for the device
    copies: int  # between device and host
    copied_bytes: int
    unpinned: int  # of these copies, through memory that is not pinned
    copy_streams: tuple[int, ...]  # on which they ran, but for single numbers
    compute_streams: tuple[int, ...]  # on which kernels ran, anywhere in the trace


def read(path: Path, name: str) -> Reading:
    """Read the ranges of this name in a trace that torch.profiler has exported."""
    return reading(json.loads(path.read_text())["traceEvents"], name)


def reading(events: Sequence[dict[str, Any]], name: str) -> Reading:
    """The same of the trace's events."""
    whole = [event for event in events if event.get("ph") == "X"]
    ranges = [each for each in whole if each.get("cat") in RANGES and each["name"] == name]
    calls = [each for each in whole if each.get("cat") in CALLS and inside(each, ranges)]
    numbers = {number for each in calls if (number := correlation(each)) is not None}
    copies = [
        each
        for each in whole
        if each.get("cat") == COPIES and correlation(each) in numbers and "Host" in kinds(each)
    ]
    return Reading(
        ranges=len(ranges),
        calls=len(calls),
        allocations=sum(each["name"] in ALLOCATIONS for each in calls),
        waits=dict(Counter(each["name"] for each in calls if each["name"] in WAITS)),
        copies=len(copies),
        copied_bytes=sum(map(byte_count, copies)),
        unpinned=sum("Pageable" in each["name"] for each in copies),
        copy_streams=streams(each for each in copies if byte_count(each) >= SMALL_BYTES),
        compute_streams=streams(each for each in whole if each.get("cat") == KERNEL),
    )


def streams(events: Iterable[dict[str, Any]]) -> tuple[int, ...]:
    """On which this work of the device ran."""
    return tuple(sorted({int(each["args"]["stream"]) for each in events}))


def byte_count(copy: dict[str, Any]) -> int:
    return int(copy["args"].get("bytes", 0))


def inside(call: dict[str, Any], ranges: Sequence[dict[str, Any]]) -> bool:
    """Whether a call was made in one of the ranges, by the same thread."""
    return any(
        each["tid"] == call["tid"] and each["ts"] <= call["ts"] < each["ts"] + each["dur"]
        for each in ranges
    )


def correlation(event: dict[str, Any]) -> int | None:
    """What ties a call to the device's work."""
    number = event.get("args", {}).get("correlation")
    return None if number is None else int(number)


def kinds(copy: dict[str, Any]) -> set[str]:
    """Of a copy's two ends: `Memcpy DtoH (Device -> Pinned)` is one of Device and Host."""
    direction = copy["name"].removeprefix("Memcpy ").partition(" ")[0]
    ends = {"D": "Device", "H": "Host", "P": "Peer"}
    return {ends[letter] for letter in direction.replace("to", "") if letter in ends}
