"""Who a round waits for, with real processes: `atoll run` over links that a plan makes slow.

In tests/: python -m bench.waiting_real [--fleet NAME]... [--link PERCENT]... [--arm NAME]...

Four learners of a byte model of 115 thousand parameters on loopback, with paced steps, on one
shard. All but the numbers of learners and ticks, and the columns, is as in bench.waiting. Here the
shares are those of all trained tokens, by what learners and tape have written; the work since the
last adoptions is in none of them, but that of a learner that has died is lost. `step` is the mean
step of the fastest learner over the planned one: a busy machine shows there.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

import yaml

from atoll_operator.local.show.run_summary import conserve
from atoll_protos.job.run_file import Sync
from bench import jobs
from bench.results import Figure, option, publish
from bench.table import show
from bench.waiting import ARMS, CLASSES, DIES_AT, LINKS, Fleet
from bytegpt.model import ByteGPT, Size
from local.command import tapes
from local.law import learners_lines

SIZE: Final = Size(layers=2, heads=4, width=64, context=64)
SIZES: Final = ["--layers=2", "--heads=4", "--width=64", "--context=64"]
TRAIN: Final = [*SIZES, "--batch=2"]
VALUE_BYTES: Final = 2  # on the wire, up and down: bf16
FLEETS: Final = {
    "equal": Fleet(paces=(1.0,) * 4),
    "18% apart": Fleet(paces=(1.0, 1.0, 1.18, 1.18)),
    "one 3 x slower": Fleet(paces=(1.0, 1.0, 1.0, 3.0)),
    "one dies": Fleet(paces=(1.0,) * 4, last_dies=True),
    "one link 2 x slower": Fleet(paces=(1.0,) * 4, last_link=2.0),
    "one link 3 x slower": Fleet(paces=(1.0,) * 4, last_link=3.0),
}
COLUMNS: Final = ("link", "busy", *CLASSES, "kept", "rounds", "late rounds", "step", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one run kept, and its row."""

    kept: float
    loss: float
    row: tuple[object, ...]


def manifest(sync: Sync, fleet: Fleet, ticks: int, step_seconds: float, seed: int) -> str:
    """A job of one learner in each region."""
    train = {
        f"r{n}": [*TRAIN, f"--step-milliseconds-min={1000 * step_seconds * pace:.0f}"]
        for n, pace in enumerate(fleet.paces)
    }
    fields = {name: getattr(sync, name) for name in ("fragments", "period", "overlap", "quorum")}
    fields["grace"] = {"enabled": sync.grace, "limit": str(sync.grace_limit)}
    return jobs.manifest(train, steps=ticks, sync=fields, seed=seed)


def plan(sync: Sync, link: int, fleet: Fleet, ticks: int, step_seconds: float) -> str:
    """From the moment at which all train: slow links, and a learner that stands for ever."""
    values = sum(each.numel() for each in ByteGPT(SIZE, seed=0).parameters())
    way = link / 100 * sync.overlap * step_seconds / 2
    rate = values / sync.fragment_count * VALUE_BYTES / way
    last, ever = len(fleet.paces) - 1, {"for": "1h"}
    faults: list[dict[str, Any]] = [
        {
            "at": "100ms",
            "rate": f"{rate / (fleet.last_link if n == last else 1.0) / 1000:.1f}kB/s",
            "of": [f"r{n}-0", "shard-0"],
            **ever,
        }
        for n in range(last + 1)
    ]
    if fleet.last_dies:
        at = f"{DIES_AT * ticks * step_seconds:.1f}s"
        faults.append({"at": at, "pause": f"r{last}-0", **ever})
    return yaml.safe_dump({"faults": faults})


def played(
    sync: Sync, link: int, fleet: Fleet, ticks: int, step_seconds: float, seed: int, folder: Path
) -> Found:
    """One cell."""
    file = folder / "plan.yaml"
    file.write_text(plan(sync, link, fleet, ticks, step_seconds))
    job = manifest(sync, fleet, ticks, step_seconds, seed)
    jobs.run(job, folder / "job", "--chaos-plan", str(file))
    return found_in(folder / "job", fleet, step_seconds)


def found_in(out: Path, fleet: Fleet, step_seconds: float) -> Found:
    """See COLUMNS; the row is without the first one."""
    lines, sums = learners_lines(out / "run"), Counter[str]()
    for tokens in conserve(lines, tapes(out / "run")).values():
        sums.update(dataclasses.asdict(tokens))
    slots = [f"r{n}-0" for n in range(len(fleet.paces))]
    steps = {slot: jobs.steps(out, slot) for slot in slots}
    blocked = [
        sum(each["blocked_seconds"] for each in steps[slot])
        / sum(each["step_seconds"] + each["blocked_seconds"] for each in steps[slot])
        for slot in slots
    ]
    commits = jobs.commits(out)
    late = sum(slots[-1] not in {part["slot"] for part in x["participants"]} for x in commits)
    settled = sum(sums[name] for name in CLASSES)
    shares = {name: sums[name] / settled for name in CLASSES}
    kept, loss = shares["merged"] / (1 - shares["overlap"]), jobs.loss(out, SIZES)
    step = min(mean(each["step_seconds"] for each in steps[slot]) for slot in slots) / step_seconds
    row = (
        1 - max(blocked),
        *shares.values(),
        f"{kept:.3f}",
        len(commits),
        late,
        step,
        f"{loss:.3f}",
    )
    return Found(kept=kept, loss=loss, row=row)


def main() -> None:
    """Print one table for each fleet and arm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--fleet", action="append", choices=FLEETS)
    parser.add_argument("--link", action="append", type=int, help="percent of the overlap")
    parser.add_argument("--ticks", type=int, default=240)
    parser.add_argument("--step-seconds", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    option(parser)
    given = parser.parse_args()
    cells: dict[tuple[str, int], list[Found]] = {}
    for fleet in given.fleet or FLEETS:
        for arm in given.arm or ["K = 1"]:
            rows = []
            for link in given.link or (LINKS[0], LINKS[-1]):
                with tempfile.TemporaryDirectory() as folder:
                    found = played(
                        ARMS[arm],
                        link,
                        FLEETS[fleet],
                        given.ticks,
                        given.step_seconds,
                        given.seed,
                        Path(folder),
                    )
                rows.append((f"{link}%", *found.row))
                cells.setdefault((fleet, link), []).append(found)
            show(f"{fleet}; {arm}", COLUMNS, rows)
            sys.stdout.flush()
    publish(given, [*figures(cells)], about="Four learners; the values are by arm.")


def figures(cells: Mapping[tuple[str, int], Sequence[Found]]) -> Iterator[Figure]:
    """Of each fleet and link, by arm."""
    for (fleet, link), found in cells.items():
        yield Figure(what=f"{fleet}; link {link}%: kept", values=[each.kept for each in found])
        losses = [each.loss for each in found]
        yield Figure(what=f"{fleet}; link {link}%: loss", values=losses, unit="nats")


if __name__ == "__main__":
    main()
