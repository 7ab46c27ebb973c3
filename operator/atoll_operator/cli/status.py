"""`atoll status`: the status of a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from atoll_protos.errors import SpecError


def status(
    folder: Annotated[Path, typer.Argument(help="Folder that was --out of a run.")],
) -> None:
    """Print the newest status of a run as JSON; its fields are those of the CRD's status."""
    try:
        typer.echo((folder / "status.json").read_text(encoding="utf-8"), nl=False)
    except OSError as error:
        remedy = "give the --out folder of a run"
        raise SpecError(str(folder), "has no status.json", remedy) from error
