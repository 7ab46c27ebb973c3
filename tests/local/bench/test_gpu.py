"""The benchmark of the CUDA path runs, small on a CPU; what it reads from a profile is right."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, gpu_loop, trace
from local.command import TESTS

TID, OTHER = 7, 8


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m bench.gpu` as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu", *arguments],
        cwd=TESTS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_all_of_it_runs_small_on_a_cpu(tmp_path: Path) -> None:
    few = ("--pairs", "2", "--window", "6", "--profiled", "4")
    done = bench("--cpu", *few, "--out", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [each["case"] for each in found] == list(gpu.CASES)
    for each in found:
        assert each["right"]
        assert each["same_as_export"]
        assert len(each["shares"]) == 2
        assert each["ranges"] == 4  # of the profile
        assert each["adopted_share"] > 0
    lines = done.stdout.splitlines()
    assert all(any(case in line for line in lines) for case in gpu.CASES)


def test_without_a_device_one_line_says_so_and_the_exit_code_is_its_own() -> None:
    done = bench(CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (gpu.NO_DEVICE, "")
    assert len(done.stderr.splitlines()) == 1
    assert "no CUDA device" in done.stderr


def test_a_model_is_as_large_as_the_smallest_of_three_memories_allows() -> None:
    gib = 1 << 30
    shape = gpu.shape_for(78 * gib, 100 * gib, 2000 * gib)
    parameters = 12 * shape.width**2 * shape.layers
    assert 1.7e9 < parameters < 2.1e9  # by the host
    assert shape.layers >= gpu.PERIOD
    small = gpu.shape_for(78 * gib, 100 * gib, 20 * gib)
    assert 12 * small.width**2 * small.layers < 0.8e9  # by the disk
    tiny = gpu.shape_for(1 << 20, 1 << 20, 1 << 20)
    assert (tiny.layers, tiny.width) == (1, 128)


def test_of_torchs_warnings_only_the_one_of_a_wait_counts() -> None:
    waited = "called a synchronizing CUDA operation (Triggered internally at ...)"
    others = [
        "Synchronization debug mode does not yet detect all synchronizing operations",
        "Detected call of `lr_scheduler.step()` before `optimizer.step()`",
    ]
    assert gpu_loop.waits_in([*others, waited]) == {waited}


# ------------------------------------------------------------ a profile


def event(cat: str, name: str, ts: float, *, tid: int = TID, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 1.0, "tid": tid, "args": args}


def step(ts: float) -> dict[str, Any]:
    return {**event("user_annotation", "atoll.step", ts), "dur": 10.0}


def copied(name: str, number: int, stream: int, bytes_: int) -> dict[str, Any]:
    fields = {"correlation": number, "stream": stream, "bytes": bytes_}
    return event("gpu_memcpy", name, 500.0, tid=stream, **fields)


def test_a_profile_shows_copies_of_a_step_and_that_none_of_them_waits() -> None:
    found = trace.reading(
        [
            step(100.0),
            step(200.0),
            event("cuda_runtime", "cudaMemcpyAsync", 101.0, correlation=1),
            event("cuda_runtime", "cudaMemcpyAsync", 102.0, correlation=2),
            event("cuda_runtime", "cudaMemcpyAsync", 103.0, correlation=3),
            event("cuda_runtime", "cudaHostAlloc", 104.0, correlation=4),
            event("cuda_runtime", "cudaEventQuery", 201.0, correlation=5),
            copied("Memcpy DtoH (Device -> Pinned)", 1, 20, 4096),
            copied("Memcpy HtoD (Pinned -> Device)", 2, 21, 2048),
            copied("Memcpy DtoH (Device -> Pinned)", 3, 7, 8),  # the loss
            event("kernel", "gemm", 105.0, tid=7, stream=7, correlation=9),
        ],
        "atoll.step",
    )
    assert found == trace.Reading(
        ranges=2,
        calls=5,
        allocations=1,
        waits={},
        copies=3,
        copied_bytes=6152,
        unpinned=0,
        copy_streams=(20, 21),
        compute_streams=(7,),
    )


def test_a_profile_shows_what_waits_in_the_step_and_only_there() -> None:
    found = trace.reading(
        [
            step(100.0),
            event("cuda_runtime", "cudaStreamSynchronize", 109.0, correlation=1),
            event("cuda_runtime", "cudaStreamSynchronize", 111.0, correlation=2),  # behind it
            event("cuda_runtime", "cudaDeviceSynchronize", 105.0, tid=OTHER, correlation=3),
            event("cuda_runtime", "cudaMemcpyAsync", 101.0, correlation=4),
            copied("Memcpy HtoD (Pageable -> Device)", 4, 7, 4096),
        ],
        "atoll.step",
    )
    assert found.waits == {"cudaStreamSynchronize": 1}
    assert (found.copies, found.unpinned) == (1, 1)
