"""What the place of a run's state costs its learners: files, and a bucket at some distance.

In tests/: python -m bench.store [--delay MILLISECONDS ...] [--steps N]. The same job runs once for
each place: two shards, two learners whose steps take 0.1 s, a slice due every other step. The
places are files, moto (S3), Azurite (Azure) and the stub of Google's API, and moto again behind a
proxy that adds half of a delay to each request and half to each answer.
"pace" is the learners' rate of steps, of that with files. "100 joins": seconds until 100 learners
that come at once are admitted.

A second table counts what the shards asked of each bucket and wrote there, against what
docs/object-stores.md says that a commit and a second take.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file

from bench import admission
from bench.results import Figure, option, publish
from bench.table import show
from local.stores.fault_proxy import FaultProxy
from local.stores.gcs_stub import GcsStub
from local.stores.servers import Place, azurite, gcs, moto

STEP_MILLISECONDS = 100
SHARDS = 2
FRAGMENTS = 4
JOINS = 100
VALUE_BYTES = 8  # of a parameter in an object: f32, and f32 of momentum
KINDS = {  # by how a request's line begins
    r"PUT \S*(/|%2F)objects(/|%2F)": ("objects", "commit"),
    r"PUT \S*(/|%2F)log(/|%2F)": ("entries", "commit"),
    r"DELETE |POST \S*(\?delete|comp=batch)": ("deletes", "commit"),
    r"PUT \S*(/|%2F)heartbeat": ("heartbeats", "s and shard"),
    r"(GET|HEAD) ": ("reads and lists", "s and shard"),
}


def main() -> None:
    """Run the job in all places, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=int, nargs="*", default=[30, 100])
    parser.add_argument("--steps", type=int, default=200)
    option(parser)
    given = parser.parse_args()
    rows, asked = [], [("expected", 1, "up to 1", "up to 1", 0.5, 1.0, "", 1.0)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        rows.append(row("files", folder / "files", given.steps, None))
        rows[0] += (admission.seconds(folder / "join-files", JOINS, None),)
        started = [moto(folder), azurite(folder), gcs(GcsStub())]
        s3, *others = [servers.enter_context(each) for each in started]
        places = [(each.kind, each, 0) for each in (s3, *others)]
        places += [(f"moto, {delay} ms", s3, delay) for delay in given.delay]
        for number, (kind, server, delay) in enumerate(places):
            with FaultProxy(server.port).running() as proxy:
                proxy.delay_seconds = delay / 2000
                out = folder / str(number)
                found = row(kind, out, given.steps, server.place().at(proxy.port))
                asked.append(requests(proxy, *found[1:3], name=kind, out=out))
                joining = server.place().at(proxy.port)
                os.environ.update(joining.environment)
                rows.append((*found, admission.seconds(folder / f"join-{number}", JOINS, joining)))
    show(
        "Where the state lies",
        (
            *("place", "seconds", "commits", "blocked %", "merged %"),
            *("close to durable s", "pace", f"{JOINS} joins"),
        ),
        [(*each[:6], each[6] / rows[0][6], each[7]) for each in rows],
    )
    figures = [
        Figure(what=f"{each[0]}: from close to durable", values=[each[5]], unit="s")
        for each in rows
    ]
    publish(given, figures, about="Two learners, two shards, five commits a second and shard.")
    words = [f"{kind} a {of}" for kind, of in KINDS.values()]
    show("Requests", ("place", *words, "others", "bytes of objects / formula"), asked)


def requests(
    proxy: FaultProxy, seconds: float, commits: int, *, name: str, out: Path
) -> tuple[Any, ...]:
    """A row of the second table: the rate of each kind of request, for a commit or a second."""
    sorted_ = [
        next((kind for kind in KINDS if re.match(kind, line)), "others") for line in proxy.lines
    ]
    kinds, per = Counter(sorted_), {"commit": commits, "s and shard": SHARDS * seconds}
    rates = [kinds[kind] / per[of] for kind, (_, of) in KINDS.items()]
    objects = next(iter(KINDS))
    pairs = zip(sorted_, proxy.byte_counts, strict=True)
    written = sum(count for kind, count in pairs if kind == objects)
    (export,) = out.glob("export/*.safetensors")
    parameters = sum(each.numel() for each in load_file(export).values())
    objects_written = kinds[objects] * VALUE_BYTES * parameters / (SHARDS * FRAGMENTS)
    return (name, *rates, kinds["others"], written / objects_written)


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
            "sync": {"period": 8, "fragments": FRAGMENTS, "overlap": 4, "quorum": 2},
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
