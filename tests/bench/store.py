"""What the place of a run's state costs its learners: files, and a bucket at some distance.

In tests/: python -m bench.store [--delay MILLISECONDS ...] [--steps N]. The server is moto behind a
proxy that adds half of the delay to each request and half to each answer. The same job runs once
for each place: two shards, two learners whose steps take 0.1 s, a slice due every other step.
"pace" is the learners' rate of steps, of that with files. "100 joins": seconds until 100 learners
that come at once are admitted.

A second table counts what the shards asked of the bucket, against what docs/object-stores.md says
that a commit and a second take.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import admission
from bench.table import show
from local.stores.fault_proxy import FaultProxy
from local.stores.servers import Place, moto

STEP_MILLISECONDS = 100
SHARDS = 2
JOINS = 100
KINDS = {  # by how a request's line begins
    r"PUT \S*/objects/": ("objects", "commit"),
    r"PUT \S*/log/": ("entries", "commit"),
    r"DELETE |POST \S*\?delete": ("deletes", "commit"),
    r"PUT \S*/heartbeat": ("heartbeats", "s and shard"),
    r"(GET|HEAD) ": ("reads and lists", "s and shard"),
}


def main() -> None:
    """Run the job in all places, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=int, nargs="*", default=[0, 30, 100])
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [row("files", folder / "files", given.steps, None)]
        rows[0] += (admission.seconds(folder / "join-files", JOINS, None),)
        asked: list[tuple[Any, ...]] = []
        with moto(folder) as server, FaultProxy(server.port).running() as proxy:
            for number, delay in enumerate(given.delay):
                proxy.delay_seconds, before = delay / 2000, len(proxy.lines)
                place = server.place().at(proxy.port)
                found = row(f"{delay} ms", folder / str(number), given.steps, place)
                asked.append(requests(proxy.lines[before:], *found[1:3], name=found[0]))
                joining = server.place().at(proxy.port)
                os.environ.update(place.environment)
                seconds = admission.seconds(folder / f"join-{number}", JOINS, joining)
                rows.append((*found, seconds))
    show(
        "Where the state lies",
        (
            *("a request takes", "seconds", "commits", "blocked %", "merged %"),
            *("close to durable s", "pace", f"{JOINS} joins"),
        ),
        [(*each[:6], each[6] / rows[0][6], each[7]) for each in rows],
    )
    words = ("a request takes", *(f"{kind} a {of}" for kind, of in KINDS.values()), "others")
    show("Requests", words, [("expected", 1, "up to 1", "up to 1", 0.5, 1.0, ""), *asked])


def requests(lines: Sequence[str], seconds: float, commits: int, *, name: str) -> tuple[Any, ...]:
    """A row of the second table: the rate of each kind of request, for a commit or a second."""
    kinds = Counter(
        next((kind for kind in KINDS if re.match(kind, line)), "others") for line in lines
    )
    per = {"commit": commits, "s and shard": SHARDS * seconds}
    rates = [kinds[kind] / per[of] for kind, (_, of) in KINDS.items()]
    return (name, *rates, kinds["others"])


def row(name: str, out: Path, steps: int, place: Place | None) -> tuple[Any, ...]:
    """One run: how long, what was committed, how long learners waited, what was merged."""
    storage = {} if place is None else {"type": "ObjectStore", "url": place.url}
    if place is not None:
        storage["endpoint"] = place.endpoint
    command = ["atoll-worker", "bytegpt.train:main", "--batch=1", "--width=64", "--layers=1"]
    command += ["--step-milliseconds-min", str(STEP_MILLISECONDS)]
    manifest = {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "DecoupledTrainingJob",
        "metadata": {"name": "store"},
        "spec": {
            "steps": steps,
            "regions": [{"name": name, "learners": 1} for name in ("us", "eu")],
            "learner": {
                "template": {"spec": {"containers": [{"name": "learner", "command": command}]}}
            },
            "syncer": {"shards": SHARDS, "storage": storage},
            "sync": {"period": 8, "fragments": 4, "overlap": 4, "quorum": 2},
        },
    }
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(manifest))
    words = [str(Path(sys.executable).with_name("atoll")), "run", str(file), "--out", str(out)]
    environment = {**os.environ, **({} if place is None else place.environment)}
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((out / "summary.json").read_text())
    learners = summary["learners"].values()
    blocked = max(each["blocked_share"] for each in learners)
    commits = [
        line["commit_seconds"]
        for tape in out.glob("syncer/*.tape.jsonl")
        for line in map(json.loads, tape.read_text().splitlines())
        if line["event"] == "commit"
    ]
    return (
        name,
        summary["wall_seconds"],
        summary["commits"],
        100 * blocked,
        100 * summary["goodput"],
        sum(commits) / len(commits),
        step_rate(out),
    )


def step_rate(out: Path) -> float:
    """Steps a second of one learner, from the first to the last; the slowest one's."""
    found = list[float]()
    for path in out.glob("learners/*.jsonl"):
        lines = map(json.loads, path.read_text().splitlines())
        times = [each["time"] for each in lines if each.get("step_seconds")]
        found.append((len(times) - 1) / (times[-1] - times[0]))
    return min(found)


if __name__ == "__main__":
    main()
