"""`atoll eval`: the held-out loss of an exported byte model."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    export: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Such as --data PATH.")] = None,
) -> None:
    """Print the held-out loss of an export of the built-in byte-level GPT, in nats per byte."""
    command = [sys.executable, "-P", "-m", "bytegpt.evaluate", "--export", str(export)]
    raise typer.Exit(subprocess.run([*command, *(arguments or [])], check=False).returncode)
