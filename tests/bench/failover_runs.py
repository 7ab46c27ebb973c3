"""Runs whose shards are hit, one after the other, for bench.failover."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from atoll_operator.local.folder.run_files import CHAOS_FILE, STORE_FILE, read_lines
from atoll_operator.local.planning import edits
from atoll_syncer.checkpoints.bucket_place import BucketPlace
from atoll_syncer.checkpoints.places import FolderPlace, Place
from bench.failover_found import Fault
from bench.jobs import TINY, command, manifest
from bench.restart import SLOTS, json_lines, until
from local.law import exported_is_newest
from local.stores.fault_proxy import FaultProxy
from local.stores.servers import Server

SHARDS = 2
STEP_MILLISECONDS = 200  # no step is faster
QUIET_SECONDS = 6.0  # behind a fault, before the next one
WARM_SECONDS = 8.0
MORE_STEPS = 40
SECONDS_MAX = 300.0


class Kind(StrEnum):
    """Of a fault."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"
    STORE = "store"


LASTS = {Kind.KILL: 0.0, Kind.STOP: 10.0, Kind.CUT: 6.0, Kind.STORE: 15.0}  # seconds
NEXT_SECONDS_MIN = 8.0  # from one fault to the next one
STANDBY_SECONDS = 33.0  # T doubles where a shard has two takeovers in a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: faults of these kinds take turns, each so many times."""

    kinds: tuple[Kind, ...]
    standby: bool
    times: int
    folder: Path
    server: Server

    @property
    def name(self) -> str:
        return f"{'-'.join(self.kinds)}-{'standby' if self.standby else 'one'}"

    @property
    def faults(self) -> list[tuple[float, Kind, int]]:
        """When, which, and of which shard."""
        found, at = [], WARM_SECONDS
        for number in range(self.times * len(self.kinds)):
            kind = self.kinds[number % len(self.kinds)]
            turn = number // len(self.kinds)  # an even number of kinds would hit one shard each
            found.append((at, kind, (number + turn * (len(self.kinds) % 2 == 0)) % SHARDS))
            least = STANDBY_SECONDS if self.standby else NEXT_SECONDS_MIN
            at += max(least, LASTS[kind] + QUIET_SECONDS)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What is left of it."""

    out: Path
    faults: list[Fault]
    model_is_newest: bool


def run(case: Case) -> Result:
    """All faults, then the end of the job."""
    folder = case.folder / case.name
    folder.mkdir()
    out = folder / "run"
    in_bucket = Kind.STORE in case.kinds
    place = case.server.place()
    with FaultProxy(case.server.port).running() as proxy:
        words = arguments(case, folder, proxy.port if in_bucket else 0, place.url)
        with _running([*words, "--out", str(out)], folder / "said.txt") as process:
            for shard in range(SHARDS):
                until(partial(_commits, out, shard), f"a commit of shard {shard}", SECONDS_MAX)
            faults = by_hand(case, out, proxy) if in_bucket else planned(case, out)
            time.sleep(QUIET_SECONDS)
            ticks = [x["tick"] for slot in SLOTS for x in _lines(out, slot) if "tick" in x]
            edits.edit(out, [f"spec.steps={max(ticks) + MORE_STEPS}"])
            if process.wait():
                raise RuntimeError(f"{case.name}: {(folder / 'said.txt').read_text()[-2000:]}")

        def open_place(url: str) -> Place:
            if in_bucket:
                return BucketPlace(url, place.at(proxy.port).endpoint)
            return FolderPlace(Path(url.removeprefix("file://")))

        url = (out / STORE_FILE).read_text().strip() if in_bucket else f"file://{out}/commits"
        is_newest = exported_is_newest(out, url, open_place)
    return Result(out=out, faults=faults, model_is_newest=is_newest)


def arguments(case: Case, folder: Path, port: int, url: str) -> list[str]:
    """Of `atoll run`; with a port the state is in a bucket, reached through it."""
    train = [f"--step-milliseconds-min={STEP_MILLISECONDS}", "--batch=2", "--context=32"]
    regions = {slot.removesuffix("-0"): train for slot in SLOTS}
    job = yaml.safe_load(manifest(regions, steps=1_000_000, sync=TINY, shards=SHARDS))
    if port:
        endpoint = f"http://127.0.0.1:{port}"
        job["spec"]["syncer"]["storage"] = {"type": "ObjectStore", "url": url, "endpoint": endpoint}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    words = [str(command("atoll")), "run", str(folder / "job.yaml"), "--output", "lines"]
    if case.standby:
        words.append("--standby")
    if not port:
        plan = {"faults": [each for fault in case.faults for each in of_plan(*fault)]}
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
        words += ["--chaos-plan", str(folder / "plan.yaml")]
    return words


def of_plan(at: float, kind: Kind, shard: int) -> list[dict[str, Any]]:
    """A fault as a plan has it; of links one for each learner."""
    fault: dict[str, Any] = {"at": f"{at}s"}
    lasts = {"for": f"{LASTS[kind]}s"}
    if kind is Kind.KILL:
        return [fault | {"kill": f"shard-{shard}"}]
    if kind is Kind.STOP:
        return [fault | {"pause": f"shard-{shard}"} | lasts]
    return [fault | {"cut": [slot, f"shard-{shard}"]} | lasts for slot in SLOTS]


def planned(case: Case, out: Path) -> list[Fault]:
    """The faults of the plan, once all are over."""
    wanted = [each for fault in case.faults for each in of_plan(*fault)]
    seconds = case.faults[-1][0]
    file = out / CHAOS_FILE
    until(lambda: len(read_lines(file)) == len(wanted), "the last fault", seconds + SECONDS_MAX)
    found: dict[tuple[float, int], Fault] = {}
    for line in read_lines(file):
        assert "not_made" not in line, line
        target = line["target"] if isinstance(line["target"], str) else line["target"][1]
        kind = Kind.STOP if line["fault"] == "pause" else Kind(line["fault"])
        shard = int(target.split("-")[1])
        key = line["planned"], shard
        found[key] = Fault(
            kind=kind,
            shard=shard,
            began=line["began"],
            ended=line["ended"],
            lasts=kind is not Kind.KILL,
        )
    return [*found.values()]


def by_hand(case: Case, out: Path, proxy: FaultProxy) -> list[Fault]:
    """Cut the owner's process, and only it, off from its bucket."""
    began, found = time.monotonic(), list[Fault]()
    for at, kind, shard in case.faults:
        time.sleep(max(0.0, began + at - time.monotonic()))
        owner = owner_of(out, shard)
        start = time.time()
        with proxy.holding(owner):
            time.sleep(LASTS[kind])
        found.append(Fault(kind=kind, shard=shard, began=start, ended=time.time(), lasts=True))
    time.sleep(QUIET_SECONDS)
    return found


def owner_of(out: Path, shard: int) -> int:
    """The process that has the shard."""

    def look() -> int:
        rows = json.loads((out / "processes.json").read_text())
        those = [each for each in rows if each.get("shard") == shard and each["pid"]]
        serving = [each["pid"] for each in those if not each["standby"]]
        return int(serving[0]) if len(serving) == 1 else 0

    return until(look, f"an owner of shard {shard}")


@contextlib.contextmanager
def _running(words: list[str], said: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with said.open("wb") as file, subprocess.Popen(words, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def _commits(out: Path, shard: int) -> bool:
    lines = json_lines(out / "syncer" / f"{shard}.tape.jsonl")
    return any(each["event"] == "commit" for each in lines)


def _lines(out: Path, slot: str) -> list[dict[str, Any]]:
    return json_lines(out / "learners" / f"{slot}.jsonl")
