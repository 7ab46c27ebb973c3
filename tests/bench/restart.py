"""Seconds from `kill -9` of a learner to its next merged offer, and where they go.

In tests/: python -m bench.restart [--json FILE]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from bench.jobs import TINY, command, manifest
from bench.results import Figure, option, publish

SLOTS = ("us-east-0", "eu-west-0", "ap-south-0")
STEPS = 100_000  # no end before the measurements have one
LOOK_SECONDS = 0.02
FLUSH_SECONDS = 1.0  # learners write out what they note twice a second
SECONDS_MAX = 120.0
STAGES = ("started again", "Learner entered", "welcomed", "first step", "merged offer")

T = TypeVar("T")


def main() -> None:
    """Kill each learner of a run once, in several runs, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--step-milliseconds", type=int, default=200, help="no step is faster")
    parser.add_argument("--steady-seconds", type=float, default=3.0, help="from a merge to a kill")
    option(parser)
    given = parser.parse_args()
    found: list[dict[str, float]] = []
    for _ in range(given.runs):
        with (
            tempfile.TemporaryDirectory() as folder,
            training(Path(folder), given.step_milliseconds) as out,
        ):
            for slot in SLOTS:  # each once: the second restart of a process waits longer
                wait_for_merge(out, slot)
                time.sleep(given.steady_seconds)
                found.append(killed(out, slot))
                sys.stderr.write(f"{ {stage: round(s, 2) for stage, s in found[-1].items()} }\n")
    figures = [
        Figure(
            what=f"until: {stage}, median",
            values=[statistics.median(each[stage] for each in found)],
            unit="s",
        )
        for stage in STAGES
    ]
    publish(given, figures, about=f"{len(found)} kills.")


@contextmanager
def training(folder: Path, step_milliseconds: int) -> Iterator[Path]:
    """`atoll run` in the background: its run folder."""
    arguments = [f"--step-milliseconds-min={step_milliseconds}"]
    regions = {slot.removesuffix("-0"): arguments for slot in SLOTS}
    file, out = folder / "bench.yaml", folder / "run"
    file.write_text(manifest(regions, steps=STEPS, sync=TINY, shards=2))
    words = [*map(str, (command("atoll"), "run", file, "--out", out)), "--output", "lines"]
    # A shell's background job does not hear SIGINT.
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        try:
            yield out
        finally:
            process.terminate()


def killed(out: Path, slot: str) -> dict[str, float]:
    """Kill a learner and follow its next process: seconds to each of STAGES."""
    before = row(out, slot)
    incarnation = max(line.get("incarnation", 0) for line in learner_lines(out, slot)) + 1
    begun = time.time()
    os.kill(before["pid"], signal.SIGKILL)
    at = {"started again": until(lambda: restarted(out, slot, before["restarts"]), "a restart")}
    at["merged offer"] = until(lambda: merged(out, slot, incarnation), "a merged offer")
    time.sleep(FLUSH_SECONDS)
    at["Learner entered"] = logged(out, slot, "joining")
    lines = [each for each in learner_lines(out, slot) if each.get("incarnation") == incarnation]
    at["welcomed"] = next(each["time"] for each in lines if "event" in each)
    at["first step"] = next(each["time"] for each in lines if each.get("step_seconds"))
    return {stage: at[stage] - begun for stage in STAGES}


def wait_for_merge(out: Path, slot: str) -> None:
    """Return when the first process of a learner has had an offer merged."""
    until(lambda: merged(out, slot, 1), f"a first merged offer of {slot}")


def until(look: Callable[[], T], what: str, seconds_max: float = SECONDS_MAX) -> T:
    """What `look` returns once it is true."""
    deadline = time.monotonic() + seconds_max
    while not (found := look()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} does not come")
        time.sleep(LOOK_SECONDS)
    return found


def row(out: Path, slot: str) -> dict[str, Any]:
    """A learner's line in processes.json."""
    rows = json.loads((out / "processes.json").read_text())
    found: dict[str, Any] = next(each for each in rows if each.get("slot") == slot)
    return found


def restarted(out: Path, slot: str, restarts: int) -> float:
    """When its next process was started, in Unix seconds; 0.0 before that."""
    now = row(out, slot)
    again = now["restarts"] > restarts and now["pid"] is not None
    return (out / "processes.json").stat().st_mtime if again else 0.0


def merged(out: Path, slot: str, incarnation: int) -> float:
    """When an offer of that incarnation was first committed, in Unix seconds; 0.0 before that."""
    times = [
        line["time"]
        for tape in out.glob("syncer/*.tape.jsonl")
        for line in json_lines(tape)
        if line.get("event") == "commit"
        for part in line["participants"]
        if part["slot"] == slot and part["incarnation"] == incarnation
    ]
    return min(times, default=0.0)


def learner_lines(out: Path, slot: str) -> list[dict[str, Any]]:
    return json_lines(out / "learners" / f"{slot}.jsonl")


def logged(out: Path, slot: str, event: str) -> float:
    """When its newest process logged an event, in Unix seconds."""
    lines = [each for each in json_lines(out / "logs" / f"{slot}.log") if each["event"] == event]
    return datetime.fromisoformat(lines[-1]["timestamp"]).timestamp()


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line; what is still being written is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [json.loads(line) for line in whole if line.startswith("{")]


if __name__ == "__main__":
    main()
