"""`atoll tokens`: who may bring a machine into a job of `atoll serve`, look at it or edit it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.local.folder.run_files import MACHINES_FOLDER
from atoll_operator.local.planning import edits
from atoll_protos.errors import SpecError

PERSON_HOURS: Final = 720.0  # that a token to look or to edit lasts
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
            show_default="24; to look or edit 720",
        ),
    ] = None,
    look: Annotated[
        bool, typer.Option("--look", help="Make one that shows the job and changes nothing.")
    ] = False,
    edit: Annotated[
        bool, typer.Option("--edit", help="Make one that may also edit, suspend, resume and stop.")
    ] = False,
    revoke: Annotated[
        str,
        typer.Option(
            metavar="ID|MACHINE", help="Take back a token, or shut a machine out at once."
        ),
    ] = "",
) -> None:
    """Make a token and print the line that uses it; without options list tokens and machines."""
    wanted = TokenWanted(region=region, uses=uses, hours=hours, look=look, edit=edit)
    if revoke and wanted != TokenWanted():
        raise SpecError("--revoke", "takes one back, and the others make one", "use it alone")
    now = time.time()
    if revoke:
        typer.echo(revoked(folder, revoke))
    elif wanted != TokenWanted():
        typer.echo(made(folder, wanted, now))
    else:
        typer.echo(listed(folder, now))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWanted:
    """A token to join, unless it is to look or to edit; `hours` None: as usual for it."""

    region: str = ""
    uses: int | None = None
    hours: float | None = None
    look: bool = False
    edit: bool = False

    def check(self, out: Path) -> None:
        """Raises SpecError."""
        if self.look and self.edit:
            raise SpecError("--look", "is given with --edit, which may look, too", "use one")
        if (self.look or self.edit) and (self.region or self.uses):
            problem = "is of a token that brings machines in"
            option = "--region" if self.region else "--uses"
            raise SpecError(option, problem, "leave it out with --look and --edit")
        if not self.region:
            return
        regions = [each.name for each in edits.job_of(out).spec.regions]  # soon also of the run
        if self.region not in regions:
            problem = f"{self.region} is no region of the job"
            raise SpecError("--region", problem, f"use one of {', '.join(regions)}")


def made(out: Path, wanted: TokenWanted, now: float) -> str:
    """A new token, as a whole line that uses it. Raises SpecError."""
    from atoll_operator.machines.server.folder import (  # noqa: PLC0415 - slow to import
        DAY_HOURS,
        line_with,
        new_token,
        read_server,
    )
    from atoll_operator.machines.server.register import May  # noqa: PLC0415

    read_server(out / MACHINES_FOLDER)
    wanted.check(out)
    may = May.EDIT if wanted.edit else May.LOOK if wanted.look else May.JOIN
    usual = DAY_HOURS if may is May.JOIN else PERSON_HOURS
    token = new_token(
        out,
        region=wanted.region,
        uses=wanted.uses,
        hours=wanted.hours or usual,
        now=now,
        may=may,
    )
    return line_with(token, out, "join" if may is May.JOIN else "status")


def listed(out: Path, now: float) -> str:
    from atoll_operator.machines.server.folder import read_server  # noqa: PLC0415
    from atoll_operator.machines.server.register import Book, May, valid  # noqa: PLC0415

    read_server(out / MACHINES_FOLDER)
    register = Book(out / MACHINES_FOLDER).read()
    rows = [("token", "is to", "region", "machines left", "until")]
    for each in valid(register.tokens, now):
        joins = each.may == May.JOIN
        scope = (each.region or "any", _number(each.uses)) if joins else ("-", "-")
        rows.append((each.name, each.may, *scope, _time(each.until)))
    rows += [("machine", "", "region", "slots", "since")]
    rows += [
        (each.name, "", each.region, each.shown, _time(each.since)) for each in register.machines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
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
