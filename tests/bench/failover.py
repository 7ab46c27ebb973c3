"""What follows a fault of the process that has a shard: for its commits, others', and learners.

In tests/: python -m bench.failover [--times 20] [--json FILE]

Four runs at once, of 3 learners and 2 shards: with and without a second process of each shard, and
both with the state in a bucket. In turn each shard is hit; a row of the table is one kind of fault:

    kill   SIGKILL, and `atoll run` starts the process again
    stop   SIGSTOP for 10 s
    cut    no learner reaches the process that has the shard for 6 s
    store  the process that has the shard does not reach its store for 15 s

"commit" is seconds from the fault to the next commit; where no other process takes over, that is
after the fault's end, since which "healed" counts. "gap" is the longest time between two commits of
the other shard meanwhile, and may be twice the longest in quiet, or the longest grace and 0.5 s.
"rate" is the learners' steps a second meanwhile, of those in quiet.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.failover_found import Effect, effects
from bench.failover_runs import Case, Kind, run
from bench.restart import running
from bench.results import Figure, option, publish
from bench.table import show
from local.stores.servers import moto

COLUMNS = (
    *("fault", "standby", "times", "commit", "most", "healed", "most"),
    *("gap", "may be", "above", "rate", "terms", "model"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All faults of a kind, in seconds; `above`: gaps that were longer than they may be."""

    fault: Kind
    standby: bool
    times: int
    commit_median: float
    commit_max: float
    healed_median: float | None  # since the end of the fault, of those that no term followed
    healed_max: float | None
    gap_max: float
    gap_bound: float
    above: int
    rate: float
    terms_max: int
    model_is_newest: bool

    @property
    def cells(self) -> tuple[object, ...]:
        model = "as stored" if self.model_is_newest else "OTHER"
        healed = ["-" if x is None else x for x in (self.healed_median, self.healed_max)]
        return (
            *(self.fault, "yes" if self.standby else "no", self.times),
            *(self.commit_median, self.commit_max, *healed),
            *(self.gap_max, self.gap_bound, self.above, self.rate, self.terms_max, model),
        )


def main() -> None:
    """Run all cases, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="of each fault")
    parser.add_argument("--faults", nargs="+", choices=[*Kind], default=[*Kind], type=Kind)
    parser.add_argument("--standby", choices=("yes", "no", "both"), default="both")
    parser.add_argument("--busy", type=int, default=0, help="processes that only burn a core each")
    parser.add_argument("--out", type=Path, help="keep the run folders here")
    option(parser)
    given = parser.parse_args()
    began, loads = time.monotonic(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = given.out or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        server = ends.enter_context(moto(Path(name)))
        os.environ.update(server.environment)
        for _ in range(given.busy):
            ends.enter_context(running(["sh", "-c", "while :; do :; done"]))
        cases = [
            Case(kinds=kinds, standby=standby, times=given.times, folder=folder, server=server)
            for standby in (True, False)
            if given.standby in ("both", "yes" if standby else "no")
            for kinds in (
                tuple(each for each in given.faults if each is not Kind.STORE),
                tuple(each for each in given.faults if each is Kind.STORE),
            )
            if kinds
        ]
        with ThreadPoolExecutor(len(cases)) as threads:
            results = list(threads.map(run, cases))
        rows = [
            row(kind, case, effects(result.out, result.faults), is_newest=result.model_is_newest)
            for case, result in zip(cases, results, strict=True)
            for kind in case.kinds
        ]
        loads.append(os.getloadavg()[0])
    rows.sort(key=lambda each: ([*Kind].index(each.fault), not each.standby))
    title = (
        f"After a fault of a shard's process: seconds, load {min(loads):.1f} to {max(loads):.1f}"
        f" on {os.cpu_count()} cores, {time.monotonic() - began:.0f} s"
    )
    show(title, COLUMNS, [each.cells for each in rows])
    publish(given, [*figures(rows)], about=f"Median and most of {given.times} times.")
    sys.exit(any(each.above or each.terms_max > 1 or not each.model_is_newest for each in rows))


def row(kind: Kind, case: Case, found: list[Effect], *, is_newest: bool) -> Row:
    """The figures of one kind of fault in one run."""
    mine = [each for each in found if each.fault == kind]
    healed = [each.healed_seconds for each in mine if each.healed_seconds is not None]
    return Row(
        fault=kind,
        standby=case.standby,
        times=len(mine),
        commit_median=statistics.median(each.commit_seconds for each in mine),
        commit_max=max(each.commit_seconds for each in mine),
        healed_median=statistics.median(healed) if healed else None,
        healed_max=max(healed, default=None),
        gap_max=max(each.gap_seconds for each in mine),
        gap_bound=max(each.gap_bound for each in mine),
        above=sum(each.gap_seconds > each.gap_bound for each in mine),
        rate=sum(each.steps for each in mine) / sum(each.steps_expected for each in mine),
        terms_max=max(each.terms for each in mine),
        model_is_newest=is_newest,
    )


def figures(rows: list[Row]) -> Iterator[Figure]:
    """Median and most of each kind, and the rates of all."""
    for each in rows:
        what = f"{each.fault}, {'with a standby' if each.standby else 'alone'}"
        values = [each.commit_median, each.commit_max]
        yield Figure(what=f"{what}: next commit", values=values, unit="s")
    rates = [100 * each.rate for each in rows]
    yield Figure(what="learners' rate of steps", values=[min(rates), max(rates)], unit="%")


if __name__ == "__main__":
    main()
