"""All that is to be measured on a CUDA device, with one command.

In tests/: python -m bench.gpu [--out FILE.json] [--json FILE] [--folder DIR] [--cpu]

One learner on the device and the shards beside it, under `atoll run`, at P = 24, H = 24, tau = 2:
in every step one fragment is captured and one adopted, if the shards keep up (then there is one
commit per tick). They write 8 bytes per parameter in 24 steps: give `--folder` a fast disk, or
memory. Three cases: bf16 parameters; f32 parameters with fp16 autocast and a GradScaler; bf16 with
CUDA graphs (torch.compile, mode "reduce-overhead"). AdamW is fused in all of them. For each case:

1. The share of the step time that Atoll takes: windows of steps with `learner.step` and without,
   in pairs in one process, medians.
2. Nothing in `learner.step` makes the thread wait for the device: torch warns of nothing, and a
   profile of the CUDA calls has no synchronisation and no copy through memory that is not pinned.
3. The addresses of the parameters stay, so that CUDA graphs see what is adopted; the compiled model
   computes with those values; and at the end the learner holds the values of the export.

The model's size follows from the memory of the device and of the host, and the batch fills what is
left of the device's. Exit codes: 0; 1 when something of 2 or 3 does not hold; 3 without a device.
`--cpu` runs all of it small on the CPU, as a test of this script. Its times mean nothing.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from safetensors.torch import load_file

from bench import jobs
from bench.gpu_loop import SETTLE_STEPS, TICKS_MARGIN, digest
from bench.results import Figure, option, publish
from bench.table import show

NO_DEVICE: Final = 3
SHARE_MAX: Final = 0.01  # the goal
PERIOD: Final = 24
OVERLAP: Final = 2
CASES: Final = {
    "bf16": ["--dtype", "bf16"],
    "fp16 autocast": ["--dtype", "fp16"],
    "bf16, CUDA graphs": ["--dtype", "bf16", "--compile"],
}
# Bytes for each parameter, with some room: on the device f32 parameter, gradient and two moments;
# on the host the learner's shared memory and the shard's values; on the disk two versions.
DEVICE_BYTES, HOST_BYTES, DISK_BYTES = 18, 30, 24
DEVICE_SHARE, HOST_SHARE, DISK_SHARE = 0.45, 0.5, 0.8
SHARDS: Final = 4  # so that a commit is made in every step of a model of 2 billion parameters
HEAD: Final = 128  # values of an attention head


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is trained."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int  # 0: what fills the device

    @property
    def words(self) -> list[str]:
        """As arguments of the loop."""
        names = ("layers", "width", "heads", "context", "batch")
        return [word for name in names for word in (f"--{name}", str(getattr(self, name)))]


TINY: Final = Shape(layers=6, width=32, heads=2, context=16, batch=2)


def shape_for(device_bytes: int, host_bytes: int, disk_bytes: int) -> Shape:
    """The largest model for these memories: blocks of 12 width^2, some 24 of them or more."""
    parameters = min(
        DEVICE_SHARE * device_bytes / DEVICE_BYTES,
        HOST_SHARE * host_bytes / HOST_BYTES,
        DISK_SHARE * disk_bytes / DISK_BYTES,
    )
    width = HEAD
    while 12 * (2 * width) ** 2 * PERIOD <= parameters:
        width *= 2
    layers = max(1, int(parameters / (12 * width**2)))
    return Shape(layers=layers, width=width, heads=width // HEAD, context=1024, batch=0)


def manifest(words: Sequence[str], steps: int, *, gpu: bool) -> str:
    """One learner; at every tick one fragment is due, on several shards where it is large."""
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "examples"), *known_path()])
    container: dict[str, Any] = {
        "name": "learner",
        "command": [sys.executable, "-m", "atoll_worker", "bench.gpu_loop:main"],
        "args": list(words),
        "env": [{"name": "PYTHONPATH", "value": path}],
    }
    if gpu:
        container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    sync = {"fragments": PERIOD, "period": PERIOD, "overlap": OVERLAP, "quorum": 1}
    spec = {
        "steps": steps,
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": "here"}],
        "syncer": {"shards": SHARDS if gpu else 1},
        "sync": sync,
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    return yaml.safe_dump({**kind, "metadata": {"name": "gpu"}, "spec": spec})


def known_path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def run(case: str, shape: Shape, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One case as a job of its own: what its learner and the run's files have."""
    out = folder / "case"
    measured = out.with_suffix(".json")
    words = [*CASES[case], *shape.words, "--device", "cpu" if given.cpu else "cuda"]
    counts = {"pairs": given.pairs, "window": given.window, "profiled": given.profiled}
    words += [word for name, count in counts.items() for word in (f"--{name}", str(count))]
    steps = given.pairs * (SETTLE_STEPS + given.window) + given.window + 2 * given.profiled
    try:
        job = manifest([*words, "--out", str(measured)], steps + TICKS_MARGIN, gpu=not given.cpu)
        jobs.run(job, out)
        found: dict[str, Any] = json.loads(measured.read_text())
        commits = jobs.commits(out)
        found["commits"] = len(commits)
        found["shards"] = len({each["shard"] for each in commits})
        found["ticks"] = max(each["tick"] for each in commits)
        found["same_as_export"] = is_exported(found.pop("values"), out / "run" / "export")
    finally:
        shutil.rmtree(out, ignore_errors=True)
    shares = [(with_ - without) / without for with_, without in found["pairs"]]
    found |= {"case": case, "share": statistics.median(shares), "shares": shares}
    found["right"] = is_right(found)
    return found


def is_exported(values: dict[str, str], export: Path) -> bool:
    """Whether the learner's final values are those of the export, as they travelled."""
    exported = {
        name: digest(tensor)
        for path in export.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    return bool(exported) and all(values.get(name) == each for name, each in exported.items())


def is_right(found: dict[str, Any]) -> bool:
    """Whether all holds that does not depend on the speed of the machine."""
    never_waits = not (found["refused"] or found["waits"] or found["unpinned"])
    overlaps = not set(found["copy_streams"]) & set(found["compute_streams"])
    same = found["same_addresses"] and found["compiled_sees_adopted"] and found["same_as_export"]
    return bool(never_waits and overlaps and same and found["ranges"] and found["adopted_share"])


def row(found: dict[str, Any]) -> tuple[object, ...]:
    """One line of the table."""
    with_, without = (statistics.median(times) for times in zip(*found["pairs"], strict=True))
    quarters = statistics.quantiles(found["shares"], n=4) if len(found["shares"]) > 1 else [0.0] * 3
    return (
        found["case"],
        f"{found['parameters'] / 1e6:.0f}M",
        found["batch"],
        1e3 * without,
        1e3 * with_,
        100 * found["share"],
        f"{100 * quarters[0]:.2f} to {100 * quarters[2]:.2f}",
        found["inside_milliseconds"],
        100 * found["adopted_share"],
        found["commits"] / found["shards"] / found["ticks"],
        found["copied_bytes"] / found["ranges"] / 1e6,
        sum(found["waits"].values()) + len(found["refused"]) + found["unpinned"],
        "yes" if found["right"] else "NO",
    )


def figures(found: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """A step without Atoll, what it takes more with it, and what it is inside."""
    for each in found:
        without = statistics.median(pair[1] for pair in each["pairs"])
        nanoseconds = 1e6 * each["inside_milliseconds"] * PERIOD / each["parameters"]
        for what, value, unit in (
            ("a step without Atoll", 1e3 * without, "ms"),
            ("longer with it", 100 * each["share"], "%"),
            ("inside learner.step, of a parameter that is due", nanoseconds, "ns"),
        ):
            yield Figure(what=f"{each['case']}: {what}", values=[value], unit=unit)


COLUMNS: Final = (
    *("case", "parameters", "batch", "without ms", "with ms", "lost %", "quartiles"),
    *("inside ms", "adopting %", "commits/tick", "MB/step", "waits", "right"),
)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="all of it small, on the CPU")
    parser.add_argument("--case", choices=tuple(CASES), action="append", help="only this one")
    parser.add_argument("--pairs", type=int, default=6, help="of windows with and without")
    parser.add_argument("--window", type=int, default=PERIOD, help="steps")
    parser.add_argument("--profiled", type=int, default=PERIOD, help="steps")
    for name in ("layers", "width", "context", "batch"):
        parser.add_argument(f"--{name}", type=int, help="of the model; else by the memory")
    parser.add_argument("--folder", type=Path, help="for the run's files: GB for large models")
    parser.add_argument("--out", type=Path, help="write all that was found there, as JSON")
    option(parser)
    return parser.parse_args()


def host_bytes() -> int:
    """Memory that is free here, also in a container with a limit of its own."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return free if text == "max" else min(free, int(text))


def chosen(given: argparse.Namespace, folder: Path) -> Shape:
    """What is trained: by the memories, and by the command line."""
    if given.cpu:
        shape = TINY
    else:
        device_bytes = torch.cuda.get_device_properties(0).total_memory
        shape = shape_for(device_bytes, host_bytes(), shutil.disk_usage(folder).free)
    width = given.width or shape.width
    return Shape(
        layers=given.layers or shape.layers,
        width=width,
        heads=shape.heads if given.width is None else max(1, width // HEAD),
        context=given.context or shape.context,
        batch=shape.batch if given.batch is None else given.batch,
    )


def main() -> int:
    """Run and print; the exit code."""
    given = parsed()
    if not given.cpu and not torch.cuda.is_available():
        sys.stderr.write("no CUDA device here: nothing was measured; --cpu runs all of it small\n")
        return NO_DEVICE
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        shape = chosen(given, Path(folder))
        found = [run(case, shape, given, Path(folder)) for case in given.case or CASES]
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    first = found[0]
    show(
        f"{first['device']}, torch {first['torch']}: one loop with and without learner.step,\n"
        f"P = H = {PERIOD}, tau = {OVERLAP}, {given.pairs} pairs of {given.window} steps each\n"
        f"goal: lost < {SHARE_MAX:.0%}{'; on a CPU the times mean nothing' if given.cpu else ''}",
        COLUMNS,
        [row(each) for each in found],
    )
    publish(given, [*figures(found)], device=first["device"], about=f"torch {first['torch']}.")
    return 0 if all(each["right"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
