"""`atoll plan`: what a job needs of networks and machines, before the first step."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.api.job.spec import Job, Spec
from atoll_operator.cli.validate import read_job
from atoll_operator.sizing.needs import Assumptions, Border, Needs, RegionLink, links, needs
from atoll_protos.errors import SpecError, require

NUMBER: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kMBT]?)")
TIMES: Final = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
DECIMAL: Final = r"\d{1,9}(?:\.\d{1,9})?"
REGION: Final = re.compile(rf"([^=]+)=({DECIMAL})(?:,({DECIMAL}))?")
LINK_COLUMNS: Final = (
    *("region", "learners", "out Gbit/s", "peak", "in Gbit/s", "peak"),
    *("of the link", "way s", "lanes"),
)
MACHINE_COLUMNS: Final = ("", "memory GB", "cores", "network Gbit/s", "disk GB/s", "room GB")


def plan(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
    step_time: Annotated[
        str,
        typer.Option(
            metavar="SECONDS",
            help="Of a step of the learner that sets the clock.",
            show_default="spec.sizing.stepMilliseconds",
        ),
    ] = "",
    parameters: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="That travel, as in 350M or 12B.",
            show_default="spec.sizing.parameters",
        ),
    ] = "",
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION=GBIT,MS",
            help="Gbit/s of each direction and round-trip time of a region's line to the syncer;"
            " once for each. The syncer's own region needs no MS.",
            show_default="the link of each region in the manifest",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Say what a job needs of networks and machines, and what will not hold; exit with 1 then.

    It only computes: by the formulas of docs/sizing.md, which are averages over a period.
    """
    job = read_job(file)
    given = Assumptions(
        parameters=_parameters(job.spec, parameters),
        step_seconds=_step_seconds(job.spec, step_time),
        links=links(job.spec) | _links(link or ()),
    )
    needed = needs(job.spec, given)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(needed), indent=2))
    else:
        for line in lines(job, needed):
            typer.echo(line)
    if needed.limits[0].used > 1:
        raise typer.Exit(1)


def _step_seconds(spec: Spec, text: str) -> float:
    if not text and spec.sizing is not None:
        return spec.sizing.step_milliseconds / 1e3
    require(bool(text), "--step-time", "is missing", "give it, or spec.sizing in the manifest")
    seconds = float(text) if re.fullmatch(DECIMAL, text) else 0.0
    require(seconds > 0, "--step-time", f"{text!r} is no number above 0", "give seconds, as in 0.5")
    return seconds


def _parameters(spec: Spec, text: str) -> int:
    """Read a whole number of at least 1, as in 350M."""
    if not text and spec.sizing is not None:
        return spec.sizing.parameters
    match = NUMBER.fullmatch(text)
    number = int(float(match[1]) * TIMES[match[2]]) if match else 0
    require(number > 0, "--parameters", f"{text!r} is no number", "give one as 350M or 12B")
    return number


def _links(texts: Iterable[str]) -> dict[str, RegionLink]:
    """By region. Raises SpecError for text that is no link, and for a region that comes twice."""
    by_region: dict[str, RegionLink] = {}
    for text in texts:
        region, link = _link(text)
        if region in by_region:
            raise SpecError(text, f"{region} is given twice", "give each once")
        by_region[region] = link
    return by_region


def _link(text: str) -> tuple[str, RegionLink]:
    match = REGION.fullmatch(text)
    if match is None or not float(match[2]):
        raise SpecError(
            "--link", f"{text!r} is no link", "give REGION=GBIT,MS as in eu-west=2.5,80"
        )
    return match[1], RegionLink(
        bits_per_second=float(match[2]) * 1e9, round_trip_seconds=float(match[3] or 0) / 1e3
    )


def lines(job: Job, needed: Needs) -> Iterator[str]:
    """Yield the plan as text, for a person who buys links and machines."""
    spec = job.spec
    yield (
        f"{job.name}: {needed.parameters:,} parameters, {spec.learners} learners,"
        f" steps of {needed.step_seconds:g} s"
    )
    yield ""
    rows = [_of_border(border) for border in needed.traffic.borders]
    yield from _table(LINK_COLUMNS, rows)
    yield _about_waits(spec, needed)
    yield ""
    yield from _table(MACHINE_COLUMNS, _of_machines(spec, needed))
    yield ""
    broken = [limit for limit in needed.limits if limit.used > 1]
    for limit in broken:
        yield f"Will not hold: {limit.sentence}."
    if not broken:
        tightest = needed.limits[0]
        yield (
            f"It holds. The tightest limit is {tightest.what}, at {tightest.used:.0%} of what"
            " works well."
        )


def _of_border(border: Border) -> Sequence[str]:
    return (
        border.region,
        str(border.learners),
        _gigabits(border.out),
        _gigabits(border.out_peak),
        _gigabits(border.into),
        _gigabits(border.into_peak),
        "" if border.link_share is None else f"{border.link_share:.0%}",
        "" if border.way_seconds is None else f"{border.way_seconds:.2g}",
        "" if border.lanes is None else str(border.lanes),
    )


def _about_waits(spec: Spec, needed: Needs) -> str:
    copying = f"learner.step copies in {needed.machines.copying_share:.1%} of their time."
    waiting = needed.traffic.waiting_share
    if not spec.sync.lockstep:
        return f"Learners never wait for the network; {copying}"
    if waiting is None:
        return f"Learners wait for the network, and --link of all regions tells how long; {copying}"
    return f"Learners wait for the network in {waiting:.0%} of their time; {copying}"


def _of_machines(spec: Spec, needed: Needs) -> Sequence[Sequence[str]]:
    machines, shards, hosts = needed.machines, spec.syncer.shards, spec.learner.hosts
    learner = "each learner" if hosts == 1 else "the first host of each learner"
    return (
        (
            f"{learner}, beside its training",
            f"{machines.learner_memory / 1e9:.3g}",
            f"{machines.learner_cores:.2g}",
            _gigabits(machines.learner_network),
            "",
            "",
        ),
        (
            f"each of {shards} shards" if shards > 1 else "the shard",
            f"{machines.shard_memory / 1e9:.3g}",
            f"{machines.shard_cores:.2g}",
            _gigabits(machines.shard_network),
            f"{machines.shard_writes / 1e9:.2g}",
            f"{machines.shard_room / 1e9:.3g}",
        ),
    )


def _gigabits(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e9:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines; the first column begins at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for first, *others in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join((first.ljust(widths[0]), *cells)).rstrip()
