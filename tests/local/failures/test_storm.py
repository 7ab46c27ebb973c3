"""A storm of every fault that a plan knows: the job ends well, as if there had been none."""

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest

from atoll_operator.local.run_files import read_lines
from local.background import Running, running
from local.command import LIGHT, TINY, commits, json_lines, tapes
from local.failures.test_conservation import all_are_back
from local.law import balanced, check_merges, conserve, learners_lines
from local.leftovers import check_none_is_left

SECONDS = float(os.environ.get("STORM_SECONDS", "1800"))
FAULTS_AN_HOUR = 125
ENDLESS, MORE_STEPS = 1_000_000, 40
SLOTS, SHARDS = ("us-east-0", "eu-west-0", "ap-south-0"), ("shard-0", "shard-1")
# A step takes so long whatever its compute: on two cores a start takes 3 s of one of them, which
# the other learners have to spare. Those of a real job are on other machines.
PACED = ("--set", LIGHT[1].replace("step-milliseconds-min=30", "step-milliseconds-min=400"))
LOSS_DIFFERENCE_MAX = 0.05  # nats per byte, at equal merged tokens
THROUGHPUT_MIN, PARTICIPATION_MIN = 0.97, 0.95  # ticks a second, of the quiet run's; of learners
GOODPUT_MIN = 0.8  # of the quiet run's; a loaded machine is late as well
QUIET_SHARE = 1 / 6  # of the storm's time
LOOK_SECONDS = 2.0
LIVED_SHARE = 0.2  # of the storm: a process that lived so long may not have grown
GROWTH_MAX = 0.08  # of a process's memory, in the second half of its life
LASTS = {"kill": 0.0, "pause": 5.0, "cut": 8.0}  # seconds of each fault


def written(seed: int, seconds: float, faults: int) -> str:
    """A plan of about so many faults, of each kind as many; the first comes after a whole pause."""
    mean, found = seconds / (faults / len(LASTS) + 0.45), list[dict[str, Any]]()
    for kind, lasts in LASTS.items():
        draw = random.Random(f"{seed} {kind}")
        at = draw.uniform(0.6 * mean, 1.4 * mean)
        while at <= seconds:
            link = [draw.choice(SLOTS), draw.choice(SHARDS)]
            target = link if kind == "cut" else draw.choice([*SLOTS, *SHARDS])
            found.append({"at": at, kind: target, **({"for": lasts} if lasts else {})})
            at += draw.uniform(0.6 * mean, 1.4 * mean)
    return json.dumps({"faults": found})


@dataclass(slots=True)
class Memory:
    """What each process of a run had of the machine's, by name and pid: bytes, by Unix seconds."""

    seen: dict[tuple[str, int], list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def look(self, run: Running) -> None:
        rows = json.loads((run.out / "processes.json").read_text())
        named = [(row.get("name") or row.get("slot") or row["role"], row["pid"]) for row in rows]
        for name, pid in [("atoll run", run.process.pid), *named]:
            if pid is not None and (held := resident_bytes(pid)):
                self.seen[name, pid].append((time.time(), held))

    def growth(self, seconds: float, out: Path) -> dict[str, float]:
        """Of those that lived so long, in the second half of their lives, as a share.

        A shard counts from when it serves: before that it has no values.
        """
        found = {}
        for (name, pid), seen in self.seen.items():
            first, last = seen[0][0], seen[-1][0]
            began = next((at for at in serving(out, name) if first < at < last), first)
            samples = [each for each in seen if each[0] >= began]
            half = samples[len(samples) // 2 :]
            if samples[-1][0] - samples[0][0] >= seconds and len(half) > 2:
                thin = half[:: max(1, len(half) // 60)]
                slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(thin, 2)]
                span = half[-1][0] - half[0][0]
                found[f"{name} {pid}"] = median(slopes) * span / half[0][1]
        return found


def serving(out: Path, name: str) -> list[float]:
    """When processes of this name took their shard over, in Unix seconds."""
    lines = read_lines(out / "logs" / f"{name}.log")
    served = (line["timestamp"] for line in lines if line.get("event") == "serving")
    return [datetime.fromisoformat(each).timestamp() for each in served]


def resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    return next((int(x.split()[1]) * 1024 for x in status.splitlines() if "VmRSS" in x), 0)


def complete(
    out: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> dict[str, float]:
    """A run until the plan is over, or for so long, that is then made shorter; its summary."""
    temporary = out.with_suffix(".tmp")
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    out.with_suffix(".yaml").write_text(text)
    count = len(json.loads(text)["faults"]) if text else 0
    words = ("--chaos-plan", str(out.with_suffix(".yaml"))) if text else ()
    steps = ("--set", f"spec.steps={ENDLESS}", *PACED)
    with running(TINY, out, *steps, *words) as run:
        run.until(lambda: run.commits(0) and run.commits(1), "commits")
        until = time.monotonic() + seconds
        while not (all_are_back(out, count) if text else time.monotonic() > until):
            assert run.process.poll() is None, f"it has ended\n{run.logs()}"
            memory.look(run)
            time.sleep(LOOK_SECONDS)
        end = max(line["tick"] for line in commits(out)) + MORE_STEPS
        run.edit(f"spec.steps={end}")
        code, stderr = run.finish()
    assert code == 0, stderr
    assert "Traceback" not in stderr
    check_none_is_left(out)
    assert [each for each in temporary.iterdir() if "torchinductor" not in each.name] == []
    found: dict[str, float] = json.loads((out / "summary.json").read_text())
    return found


def losses(out: Path) -> Iterator[tuple[float, float]]:
    """Tokens merged, as a mean over slices, and the held-out loss of what was read then."""
    lines = sorted(commits(out), key=lambda line: line["time"])
    slices = len({(line["shard"], line["slice"]) for line in lines})
    merged = 0
    for each in json_lines(out / "evaluations.jsonl"):
        while lines and lines[0]["time"] <= each["time"] - each["seconds"]:
            merged += sum(part["tokens"] for part in lines.pop(0)["participants"])
        yield merged / slices, each["loss"]


def loss_difference(stormy: Path, quiet: Path) -> float:
    """How much higher the loss was in the storm, at the merged tokens of the quiet run's end."""
    tokens, curve = zip(*losses(stormy), strict=True)
    other = [*losses(quiet)]
    near_its_end = other[len(other) * 2 // 3 :]
    return fmean(float(np.interp(at, tokens, curve)) - loss for at, loss in near_its_end)


def ticks_a_second(out: Path) -> float:
    """The job's pace, from its first commit to the moment at which it was made shorter."""
    lines = sorted(commits(out), key=lambda line: line["time"])
    end = lines[-1]["tick"] - MORE_STEPS
    first, last = lines[0], next(line for line in lines if line["tick"] >= end)
    return float((last["tick"] - first["tick"]) / (last["time"] - first["time"]))


def check_store(out: Path) -> None:
    """Two versions of each slice and the data states, and nothing half-written."""
    for shard in range(len(SHARDS)):
        folder = out / "commits" / str(shard)
        slices = {line["slice"] for line in commits(out) if line["shard"] == shard}
        objects = [*folder.glob("**/objects/*")]
        most = 2 * len(slices) + len(SLOTS) + 8
        assert len(objects) <= most, objects
        assert [*(folder / "tmp").iterdir()] == []
        assert len([*folder.glob("**/snapshots/*")]) <= 2


@pytest.mark.long
@pytest.mark.fresh
@pytest.mark.timeout(3 * 3600)
def test_a_storm_of_half_an_hour_leaves_nothing_behind_and_costs_no_quality(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, stormy, memory = tmp_path / "quiet", tmp_path / "stormy", Memory()
    faults = max(len(LASTS), round(FAULTS_AN_HOUR * SECONDS / 3600))
    calm = complete(quiet, Memory(), monkeypatch, "", SECONDS * QUIET_SHARE)
    end = complete(stormy, memory, monkeypatch, written(1, SECONDS, faults), SECONDS)
    law = conserve(learners_lines(stormy), tapes(stormy))
    assert all(map(balanced, law.values())), law
    check_merges(commits(stormy))
    check_store(stormy)
    difference = loss_difference(stormy, quiet)
    growth = memory.growth(LIVED_SHARE * SECONDS, stormy)
    share = end["goodput"] / calm["goodput"]
    pace, participation = ticks_a_second(stormy) / ticks_a_second(quiet), end["participation"]
    found = (
        f"throughput {pace:.3f} and goodput {share:.3f} of the quiet run's, "
        f"participation {participation:.3f}, loss {difference:+.3f}, memory {growth}"
    )
    print(found)  # noqa: T201
    assert pace >= THROUGHPUT_MIN, found
    assert participation >= PARTICIPATION_MIN, found
    assert difference <= LOSS_DIFFERENCE_MAX, found
    assert share >= GOODPUT_MIN, found
    assert all(each <= GROWTH_MAX for each in growth.values()), found
