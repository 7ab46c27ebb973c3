"""`atoll plan`: what a job needs of networks and machines, before the first step."""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator import sizing
from atoll_operator.cli.manifest_file import read_job
from atoll_operator.sizing import Needs, RegionLink, RegionNeeds
from atoll_protos.errors import SpecError

NUMBER: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kMBT]?)")
TIMES: Final = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
LINK: Final = re.compile(r"([^=]+)=(\d{1,9}(?:\.\d{1,9})?),(\d{1,9}(?:\.\d{1,9})?)")

REGION_COLUMNS: Final = (
    *("region", "learners", "up Gbit/s", "down Gbit/s", "TB a day"),
    *("of the link", "way s", "lanes"),
)
MACHINE_COLUMNS: Final = ("", "memory GB", "cores", "network Gbit/s", "disk GB/s", "room GB")


def plan(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
    step_time: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.001, help="Of a step of the learner that sets the clock."
        ),
    ],
    parameters: Annotated[
        str, typer.Option(metavar="NUMBER", help="Of the model, as in 350M or 12B.")
    ] = "",
    safetensors: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, help="The model's files, in place of a number."),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION=GBIT,MS",
            help="Gbit/s and round-trip time of a region's line to the syncer; once for each.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Say what a job needs of networks and machines, and what will not hold.

    It only computes: by the formulas of docs/sizing.md, which are averages over a period.
    """
    job = read_job(file)
    if not math.isfinite(step_time):
        raise SpecError("--step-time", f"{step_time} is no time", "give seconds, as in 0.5")
    if bool(parameters) == (safetensors is not None):
        raise SpecError(
            "--parameters", "a model's size is needed", "give --parameters or --safetensors"
        )
    count = _number(parameters) if safetensors is None else _parameters_in(safetensors)
    found = sizing.needs(job.spec, count, step_time, dict(map(_link, link or ())))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    for line in _lines(job.name, job.spec.syncer.shards, found):
        typer.echo(line)


def _number(text: str) -> int:
    found = NUMBER.fullmatch(text)
    number = int(float(found[1]) * TIMES[found[2]]) if found else 0
    if not number:
        raise SpecError(
            "--parameters", f"{text!r} is no number", "give one as 350M, 12B or 1000000"
        )
    return number


def _link(text: str) -> tuple[str, RegionLink]:
    found = LINK.fullmatch(text)
    if found is None or not float(found[2]):
        raise SpecError(
            "--link", f"{text!r} is no link", "give REGION=GBIT,MS as in eu-west=2.5,80"
        )
    return found[1], RegionLink(
        bits_per_second=float(found[2]) * 1e9, round_trip_seconds=float(found[3]) / 1e3
    )


def _parameters_in(folder: Path) -> int:
    """A file begins with the length of a JSON table of its tensors, in 8 bytes, and the table."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                table = json.loads(file.read(min(length, path.stat().st_size)))
            shapes = [each["shape"] for name, each in table.items() if name != "__metadata__"]
            count += sum(int(math.prod(shape)) for shape in shapes)
        except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
            raise SpecError(str(path), f"is no model ({error!r})", "give whole files") from error
    if not count:
        remedy = "give a folder of *.safetensors"
        raise SpecError("--safetensors", f"{folder} has no values", remedy)
    return count


def _lines(name: str, shards: int, found: Needs) -> list[str]:
    length = "until its tokens are trained" if found.hours is None else f"{found.hours:.3g} h"
    lines = [
        f"{name}: {found.parameters:,} parameters, steps of {found.step_seconds:g} s, {length}",
        "",
        *_table(REGION_COLUMNS, [_of_region(each) for each in found.regions]),
        "",
        *_table(MACHINE_COLUMNS, _of_machines(shards, found)),
    ]
    if found.store_writes_per_day is not None:
        count = f"{found.store_writes_per_day:,.0f}"
        lines += ["", f"The bucket gets {count} requests that write a day."]
    if found.shards_least > shards:
        count = f"{found.shards_least} shards"
        lines += ["", f"{count} are needed for the merges: raise spec.syncer.shards"]
    return [*lines, *(["", *found.advice] if found.advice else [])]


def _of_region(each: RegionNeeds) -> Sequence[str]:
    return (
        each.region,
        str(each.learners),
        f"{each.up / 1e9:.3g}",
        f"{each.down / 1e9:.3g}",
        f"{each.bytes_per_day / 1e12:.3g}",
        "" if each.link_share is None else f"{each.link_share:.0%}",
        "" if each.way_seconds is None else f"{each.way_seconds:.2g}",
        "" if each.lanes is None else str(each.lanes),
    )


def _of_machines(shards: int, found: Needs) -> Sequence[Sequence[str]]:
    learner = (f"{found.learner_memory / 1e9:.3g}", f"{found.learner_cores:.2g}", "", "", "")
    shard = (
        f"{found.shard_memory / 1e9:.3g}",
        f"{found.shard_cores:.2g}",
        f"{max(found.syncer_up, found.syncer_down) / shards / 1e9:.3g}",
        f"{found.shard_writes / 1e9:.2g}",
        f"{found.shard_room / 1e9:.3g}",
    )
    each_shard = f"each of {shards} shards" if shards > 1 else "the shard"
    return ("each learner, beside its training", *learner), (each_shard, *shard)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
