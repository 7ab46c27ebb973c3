"""Seconds from a fault of a shard's process to the shard's next commit, and the longest step.

In tests/: python -m bench.failover [--standby] [--fault kill|stop|end] [--busy PROCESSES]

kill is SIGKILL and end SIGTERM, after which `atoll run` starts the process again. stop is SIGSTOP,
as a node that is gone: without a standby nothing follows until SIGCONT, so it needs one.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.restart import SLOTS, json_lines, learner_lines, running, training, until
from bench.table import show

QUIET_SECONDS = 65.0  # from one fault of a shard to the next: T doubles with each one of a minute
AFTER_SECONDS = 1.0  # behind the commit, in which a step may still end that waited
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}


def main() -> None:
    """Hit the shards of a run in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--standby", action="store_true", help="each shard has a second process")
    parser.add_argument("--fault", choices=SIGNALS, default="kill")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=0, help="processes that only burn a core each")
    parser.add_argument("--step-milliseconds", type=int, default=200, help="no step is faster")
    parser.add_argument("--shards", type=int, default=4, help="which are hit in turn")
    given = parser.parse_args()
    if given.fault == "stop" and not given.standby:
        parser.error("stop needs --standby")
    found: list[tuple[float, float]] = []
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        more = ["--set", f"spec.syncer.shards={given.shards}", *["--standby"] * given.standby]
        out = ends.enter_context(training(Path(folder), given.step_milliseconds, more))
        for shard in range(given.shards):
            until(partial(commits, out, shard, 0.0), f"a commit of shard {shard}")
        for _ in range(given.busy):
            ends.enter_context(running(["sh", "-c", "while :; do :; done"]))
        for number in range(given.times):
            time.sleep(QUIET_SECONDS / given.shards)
            loads.append(os.getloadavg()[0])
            found.append(hit(out, number % given.shards, SIGNALS[given.fault]))
            sys.stderr.write(
                f"commit after {found[-1][0]:.2f} s, longest step {found[-1][1]:.2f}\n"
            )
    show(
        f"Seconds since {given.fault}, {len(found)} times, {'with' if given.standby else 'without'}"
        f" a standby, {given.busy} busy processes beside it, load {min(loads):.1f} to"
        f" {max(loads):.1f} on {os.cpu_count()} cores",
        ("", "median", "least", "most"),
        [
            (name, statistics.median(each), min(each), max(each))
            for name, each in zip(
                ("first new commit", "longest step"), zip(*found, strict=True), strict=True
            )
        ],
    )


def hit(out: Path, shard: int, number: signal.Signals) -> tuple[float, float]:
    """Until the shard's next commit, and the longest step of any learner meanwhile."""
    owner = owner_of(out, shard)
    begun = time.time()
    os.kill(owner, number)
    again = until(lambda: commits(out, shard, begun), f"a commit of shard {shard}")
    if number is signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner, signal.SIGCONT)
    time.sleep(AFTER_SECONDS)
    steps = [
        line["step_seconds"] + line["blocked_seconds"]
        for slot in SLOTS
        for line in learner_lines(out, slot)
        if begun < line["time"] and "step_seconds" in line
    ]
    return again - begun, max(steps)


def owner_of(out: Path, shard: int) -> int:
    """The process that has the shard."""

    def look() -> int:
        rows = json.loads((out / "processes.json").read_text())
        those = [each for each in rows if each.get("shard") == shard and each["pid"]]
        serving = [each["pid"] for each in those if not each["standby"]]
        return int(serving[0]) if len(serving) == 1 else 0

    return until(look, f"an owner of shard {shard}")


def commits(out: Path, shard: int, after: float) -> float:
    """When the shard has committed first after that moment, in Unix seconds; 0.0 before that."""
    lines: list[dict[str, Any]] = json_lines(out / "syncer" / f"{shard}.tape.jsonl")
    times = (each["time"] for each in lines if each["event"] == "commit" and each["time"] > after)
    return min(times, default=0.0)


if __name__ == "__main__":
    main()
