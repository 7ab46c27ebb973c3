"""`atoll tokens`: who may bring a machine into a job of `atoll serve`, and who has."""

import time
from pathlib import Path
from typing import Annotated

import typer

from atoll_protos.errors import SpecError


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
    from atoll_operator.machines import token_commands  # noqa: PLC0415 - slow to import

    if revoke and (region or uses or hours):
        raise SpecError("--revoke", "takes one back, and the others make one", "use it alone")
    now = time.time()
    if revoke:
        typer.echo(token_commands.revoked(folder, revoke))
    elif region or uses or hours:
        line = token_commands.made(folder, region=region, uses=uses, hours=hours or 24.0, now=now)
        typer.echo(line)
    else:
        typer.echo(token_commands.listed(folder, now))
