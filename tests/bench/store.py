"""What the place of a run's state costs its learners: files, and a bucket at some distance.

In tests/: python -m bench.store [--delay MILLISECONDS ...] [--steps N] [--json FILE]

The same job runs once for each place: two shards, two learners whose steps take 0.1 s, a slice due
every other step. The places are files, moto (S3), Azurite (Azure) and the stub of Google's API, and
moto again behind a proxy that adds half of a delay to each request and half to each answer.

What the shards asked of each bucket and wrote there stands beside what docs/object-stores.md says
that a commit and a second take: one object and up to one entry and one delete a commit, half a
heartbeat and one read a second, and as many bytes as the formula.
"""

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Final

from safetensors.torch import load_file

from bench import jobs
from bench.results import Figure, option, publish
from local.stores.fault_proxy import FaultProxy
from local.stores.gcs_stub import GcsStub
from local.stores.servers import Place, azurite, gcs, moto

STEP_MILLISECONDS: Final = 100
SHARDS: Final = 2
SYNC: Final = {"period": 8, "fragments": 4, "overlap": 4, "quorum": 2}
VALUE_BYTES: Final = 8  # of a parameter in an object: f32, and f32 of momentum
KINDS: Final = {  # by how a request's line begins
    r"PUT \S*(/|%2F)objects(/|%2F)": "objects a commit",
    r"PUT \S*(/|%2F)log(/|%2F)": "entries a commit",
    r"DELETE |POST \S*(\?delete|comp=batch)": "deletes a commit",
    r"PUT \S*(/|%2F)heartbeat": "heartbeats a second and shard",
    r"(GET|HEAD) ": "reads and lists a second and shard",
}


def main() -> None:
    """Run the job in all places, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=int, nargs="*", default=[30, 100])
    parser.add_argument("--steps", type=int, default=200)
    option(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        figures = [*measured("files", folder / "files", given.steps, None)]
        started = [moto(folder), azurite(folder), gcs(GcsStub())]
        s3, *others = [servers.enter_context(each) for each in started]
        places = [(each.kind, each, 0) for each in (s3, *others)]
        places += [(f"moto, {delay} ms", s3, delay) for delay in given.delay]
        for number, (kind, server, delay) in enumerate(places):
            with FaultProxy(server.port).running() as proxy:
                proxy.delay_seconds = delay / 2000
                out = folder / str(number)
                figures += measured(kind, out, given.steps, server.place().at(proxy.port))
                figures += requests(kind, out, proxy)
    publish(given, figures, about="Two learners, two shards, five commits a second and shard.")


def measured(name: str, out: Path, steps: int, place: Place | None) -> Iterator[Figure]:
    """Run the job: how long commits take, how long learners wait, what is merged, their pace."""
    storage = {}
    if place is not None:
        storage = {"type": "ObjectStore", "url": place.url, "endpoint": place.endpoint}
    train = [
        "--batch=1",
        "--width=64",
        "--layers=1",
        f"--step-milliseconds-min={STEP_MILLISECONDS}",
    ]
    regions = dict.fromkeys(("us", "eu"), train)
    job = jobs.manifest(regions, steps=steps, sync=SYNC, shards=SHARDS, storage=storage)
    jobs.run(job, out, environment=place.environment if place else {})
    summary = json.loads((out / "run/summary.json").read_text())
    commits = jobs.commits(out)
    durable = mean(each["commit_seconds"] for each in commits)
    blocked = max(each["blocked_share"] for each in summary["learners"].values())
    yield Figure(what=f"{name}: from close to durable", values=[durable], unit="s")
    yield Figure(what=f"{name}: blocked", values=[100 * blocked], unit="%")
    yield Figure(what=f"{name}: merged", values=[100 * summary["goodput"]], unit="%")
    yield Figure(what=f"{name}: steps a second", values=[pace(out)])


def pace(out: Path) -> float:
    """Return the steps a second of the slowest learner, from its first to its last."""
    times = [[line["time"] for line in jobs.steps(out, slot)] for slot in ("us-0", "eu-0")]
    return min(float((len(each) - 1) / (each[-1] - each[0])) for each in times)


def requests(name: str, out: Path, proxy: FaultProxy) -> Iterator[Figure]:
    """Count what was asked of the bucket."""
    kinds = [
        next((kind for kind in KINDS if re.match(kind, line)), "others") for line in proxy.lines
    ]
    summary, counts = json.loads((out / "run/summary.json").read_text()), Counter(kinds)
    for kind, what in KINDS.items():
        per = summary["commits"] if "commit" in what else SHARDS * summary["wall_seconds"]
        yield Figure(what=f"{name}: {what}", values=[counts[kind] / per])
    objects = next(iter(KINDS))
    written = sum(n for kind, n in zip(kinds, proxy.byte_counts, strict=True) if kind == objects)
    (export,) = out.glob("run/export/*.safetensors")
    parameters = sum(each.numel() for each in load_file(export).values())
    formula = counts[objects] * VALUE_BYTES * parameters / (SHARDS * SYNC["fragments"])
    yield Figure(what=f"{name}: bytes of objects, of the formula's", values=[written / formula])


if __name__ == "__main__":
    main()
