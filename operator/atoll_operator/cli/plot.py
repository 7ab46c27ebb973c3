"""`atoll plot`: losses, tokens or rounds of a run as a picture, wherever it runs."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll_operator.cli.run_or_job import Context, Namespace, Token, Which, folder_or_copy
from atoll_operator.cli.top import MODULE, in_pod, kubectl
from atoll_operator.local.folder.run_files import read_tapes
from atoll_protos.errors import SpecError


class Picture(StrEnum):
    """What a picture shows."""

    LOSS = "loss"
    TOKENS = "tokens"
    ROUNDS = "rounds"


def plot(
    which: Which,
    of: Annotated[
        Picture,
        typer.Option(
            "--of",
            help="What it shows: loss by tick; what became of tokens, participation, uptime and"
            " traffic by time; or the rounds: who took part, how long each waited.",
        ),
    ] = Picture.LOSS,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Picture to write: .png, .svg or .pdf; or loss.png, ..."),
    ] = None,
    token: Token = "",
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Draw the losses of all learners and the held-out loss, or what became of their work.

    In a cluster it is what shard 0 has noted, at each of its merges, and comes through
    `kubectl exec`. A job that is over has no pods to ask any more.
    """
    picture = out or Path(f"{of}.png")
    with folder_or_copy(
        which, "curves", token=token, namespace=namespace, context=context
    ) as folder:
        if folder is not None:
            if of is Picture.LOSS:
                _draw(folder, picture)
            else:
                _draw_tapes(of, read_tapes(folder), picture)
            return
    from atoll_operator.client.shards import shards_of  # noqa: PLC0415 - slow to import

    found = shards_of(which, namespace, context)
    lines = in_pod([*found.command(kubectl(), context), MODULE, "--curves"])
    if of is not Picture.LOSS:
        _draw_tapes(of, [lines], picture, note="of shard 0; ")
        return
    with tempfile.TemporaryDirectory(prefix="atoll-plot-") as copy:
        write(Path(copy), lines)
        _draw(Path(copy), picture, note="as noted at the merges of a shard; ")


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Lines of a tape as the files of a run folder that hold losses."""
    (folder / "syncer").mkdir()
    _write(folder / "syncer" / "0.tape.jsonl", lines)
    _write(folder / "evaluations.jsonl", [x for x in lines if x.get("event") == "evaluation"])


def _write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _draw_tapes(of: Picture, tapes: list[list[dict[str, Any]]], out: Path, note: str = "") -> None:
    with _troubles(out):
        from atoll_operator.local.show import plots  # noqa: PLC0415 - slow to import

        commits = plots.draw_tapes(of, tapes, out)
    typer.echo(f"{out}: {note}{commits} commits")


@contextmanager
def _troubles(out: Path) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = "pip install matplotlib"
        raise SpecError("--out", f"no picture can be drawn ({error})", remedy) from error
    except (OSError, ValueError) as error:
        raise SpecError("--out", f"{out}: {error}", "name a .png in a writable folder") from error


def _draw(folder: Path, out: Path, *, note: str = "") -> None:
    with _troubles(out):
        from atoll_operator.local.show import plots  # noqa: PLC0415 - slow to import

        learners, held_out = plots.draw_losses(folder, out)
    if not learners:
        typer.echo("no learner has reported a loss yet", err=True)
    if not held_out:
        typer.echo("there is no held-out loss: spec.evaluator measures it", err=True)
    typer.echo(f"{out}: {note}{learners} learners")
