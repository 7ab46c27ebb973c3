"""`atoll tokens`: who may bring a machine into a job of `atoll serve`, and who has."""

import time
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.local.folder.run_files import MACHINES_FOLDER, SLOTS_FILE
from atoll_protos.errors import SpecError
from atoll_protos.job.expected import Expected


def tokens(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `atoll serve`.")],
    region: Annotated[str, typer.Option(help="Make one that is for this region alone.")] = "",
    uses: Annotated[int | None, typer.Option(min=1, help="Make one for so many machines.")] = None,
    hours: Annotated[
        float | None,
        typer.Option(min=0.001, help="Make one that lasts so long.", show_default="24"),
    ] = None,
    revoke: Annotated[
        str,
        typer.Option(
            metavar="ID|MACHINE", help="Take back a token, or shut a machine out at once."
        ),
    ] = "",
) -> None:
    """Make a token and print the line that uses it; without options list tokens and machines."""
    if revoke and (region or uses or hours):
        raise SpecError("--revoke", "takes one back, and the others make one", "use it alone")
    now = time.time()
    if revoke:
        typer.echo(revoked(folder, revoke))
    elif region or uses or hours:
        line = made(folder, region=region, uses=uses, hours=hours or 24.0, now=now)
        typer.echo(line)
    else:
        typer.echo(listed(folder, now))


def made(out: Path, *, region: str, uses: int | None, hours: float, now: float) -> str:
    """A new token, as the whole line that uses it. Raises SpecError."""
    from atoll_operator.machines.server.folder import (  # noqa: PLC0415 - slow to import
        join_line,
        new_token,
        read_server,
    )

    read_server(out / MACHINES_FOLDER)
    names = [each.name for each in Expected.from_json((out / SLOTS_FILE).read_text()).regions]
    if region and region not in names:
        problem = f"{region} is no region of the job"
        raise SpecError("--region", problem, f"use one of {', '.join(names)}")
    return join_line(out, new_token(out, region=region, uses=uses, hours=hours, now=now))


def listed(out: Path, now: float) -> str:
    from atoll_operator.machines.server.folder import read_server  # noqa: PLC0415
    from atoll_operator.machines.server.register import Book, valid  # noqa: PLC0415 - slow to import

    read_server(out / MACHINES_FOLDER)
    register = Book(out / MACHINES_FOLDER).read()
    rows = [("token", "region", "machines left", "until")]
    rows += [
        (each.name, each.region or "any", _number(each.uses), _time(each.until))
        for each in valid(register.tokens, now)
    ]
    rows += [("machine", "region", "slots", "since")]
    rows += [
        (each.name, each.region, ", ".join(each.slots), _time(each.since))
        for each in register.machines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def revoked(out: Path, name: str) -> str:
    """Raises SpecError where nothing has that name."""
    from atoll_operator.machines.server.folder import read_server  # noqa: PLC0415
    from atoll_operator.machines.server.register import Book, revoke  # noqa: PLC0415 - slow to import

    read_server(out / MACHINES_FOLDER)
    Book(out / MACHINES_FOLDER).change(lambda register: (revoke(register, name), None))
    return f"{name} is revoked"


def _number(uses: int | None) -> str:
    return "any number" if uses is None else str(uses)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
