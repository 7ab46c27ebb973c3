"""All that is to be measured on a CUDA device, with one command.

In tests/: python -m bench.gpu [--json FILE] [--folder DIR] [--cpu]

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

All that was found of a case is a line of JSON; the goal is a `share` below 0.01. The model has 302
million parameters where nothing else is said. Exit codes: 0; 1 when something of 2 or 3 does not
hold; 3 without a device.
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
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from safetensors.torch import load_file

from bench import jobs
from bench.gpu_loop import SETTLE_STEPS, TICKS_MARGIN, digest
from bench.results import Figure, option, publish

NO_DEVICE: Final = 3
PERIOD: Final = 24
OVERLAP: Final = 2
SIZE: Final = {"layers": 24, "width": 1024, "heads": 8, "context": 1024, "batch": 8}
TINY: Final = {"layers": 6, "width": 32, "heads": 2, "context": 16, "batch": 2}  # on a CPU
CASES: Final = {
    "bf16": ["--dtype", "bf16"],
    "fp16 autocast": ["--dtype", "fp16"],
    "bf16, CUDA graphs": ["--dtype", "bf16", "--compile"],
}
SHARDS: Final = 4  # so that a commit is made in every step of a model of 2 billion parameters


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


def run(case: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One case as a job of its own: what its learner and the run's files have."""
    out = folder / "case"
    measured = out.with_suffix(".json")
    words = [*CASES[case], "--device", "cpu" if given.cpu else "cuda"]
    counts = {name: getattr(given, name) for name in ("pairs", "window", "profiled")}
    sizes = TINY if given.cpu else {name: getattr(given, name) for name in TINY}
    words += [word for item in (counts | sizes).items() for word in (f"--{item[0]}", str(item[1]))]
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
    for name, size in SIZE.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--folder", type=Path, help="for the run's files: GB for large models")
    option(parser)
    return parser.parse_args()


def main() -> int:
    """Run and print; the exit code."""
    given = parsed()
    if not given.cpu and not torch.cuda.is_available():
        sys.stderr.write("no CUDA device here: nothing was measured; --cpu runs all of it small\n")
        return NO_DEVICE
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        found = [run(case, given, Path(folder)) for case in given.case or CASES]
    for case in found:
        sys.stdout.write(f"{json.dumps(case)}\n")
    first = found[0]
    publish(given, [*figures(found)], device=first["device"], about=f"torch {first['torch']}.")
    return 0 if all(each["right"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
