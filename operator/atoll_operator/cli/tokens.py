"""`atoll tokens`: who may bring a machine into a job of `atoll serve`."""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.local import run_manifest
from atoll_operator.local.run_files import MACHINES_FOLDER
from atoll_protos.errors import SpecError

HOURS_MAX: Final = 87_600.0  # ten years, as the certificate whose digest a token has


def tokens(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `atoll serve`.")],
    region: Annotated[str, typer.Option(help="Make one that is for this region alone.")] = "",
    uses: Annotated[int | None, typer.Option(min=1, help="Make one for so many machines.")] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=HOURS_MAX,
            help="Make one that lasts so long.",
            show_default="24",
        ),
    ] = None,
    revoke: Annotated[
        str,
        typer.Option(
            metavar="ID|MACHINE", help="Take back a token, or shut a machine out at once."
        ),
    ] = "",
) -> None:
    """Make a token and print the line that uses it; without options list tokens and machines."""
    makes = bool(region or uses or hours)
    if revoke and makes:
        raise SpecError("--revoke", "takes one back, and the others make one", "use it alone")
    now = time.time()
    if revoke:
        typer.echo(revoked(folder, revoke))
    elif makes:
        typer.echo(made(folder, now, region=region, uses=uses, hours=hours))
    else:
        typer.echo(listed(folder, now))


def made(
    out: Path, now: float, *, region: str = "", uses: int | None = None, hours: float | None = None
) -> str:
    """Make a token: a whole line that uses it; `hours` None: as usual. Raises SpecError."""
    from atoll_operator.machines.server.serving import DAY_HOURS, line_with, new_token, read_server  # noqa: PLC0415

    read_server(out / MACHINES_FOLDER)
    regions = [entry.name for entry in run_manifest.job_of(out).spec.regions] if region else []
    if region and region not in regions:  # soon also of the run
        problem = f"{region} is no region of the job"
        raise SpecError("--region", problem, f"use one of {', '.join(regions)}")
    token = new_token(out, region=region, uses=uses, hours=hours or DAY_HOURS, now=now)
    return line_with(token, out)


def listed(out: Path, now: float) -> str:
    from atoll_operator.machines.server.register import Book, valid  # noqa: PLC0415
    from atoll_operator.machines.server.serving import read_server  # noqa: PLC0415

    read_server(out / MACHINES_FOLDER)
    register = Book(out / MACHINES_FOLDER).read()
    rows = [("token", "region", "machines left", "until")]
    rows += [
        (token.name, token.region or "any", _number(token.uses), _time(token.until))
        for token in valid(register.tokens, now)
    ]
    rows += [("machine", "region", "slots", "since")]
    rows += [
        (machine.name, machine.region, machine.shown, _time(machine.since))
        for machine in register.machines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def revoked(out: Path, name: str) -> str:
    """Raise SpecError where nothing has that name."""
    from atoll_operator.machines.server.register import Book, revoke  # noqa: PLC0415 - slow to import
    from atoll_operator.machines.server.serving import read_server  # noqa: PLC0415

    read_server(out / MACHINES_FOLDER)
    Book(out / MACHINES_FOLDER).change(lambda register: (revoke(register, name), None))
    return f"{name} is revoked"


def _number(uses: int | None) -> str:
    return "any number" if uses is None else str(uses)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
