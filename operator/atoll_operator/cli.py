"""The command `atoll`: validate, run, status, eval."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.api.spec import Job, parse
from atoll_operator.local import plan
from atoll_operator.local.run import Exit, Output, train
from atoll_protos.errors import SpecError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train one model on islands.",
)

Manifest = Annotated[Path, typer.Argument(help="a DecoupledTrainingJob")]


def main() -> None:
    """Bad input is one line that names the field and the remedy, and exit code 2."""
    try:
        app()
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(Exit.BAD_INPUT)


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """The manifest in a file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error
    job = parse(text, changes)
    plan.run_file(job)
    return job


@app.command()
def validate(file: Manifest) -> None:
    """Check a manifest without a cluster."""
    job = read_job(file)
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners: valid")


@app.command()
def run(
    file: Manifest,
    out: Annotated[Path, typer.Option("--out", help="run folder")],
    change: Annotated[list[str] | None, typer.Option("--set", help="spec.x=y")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the run in --out")] = False,
    output: Annotated[Output, typer.Option("--output", help="what to show")] = Output.TABLE,
    chaos: Annotated[bool, typer.Option("--chaos", help="kill -9 a process now and then")] = False,
) -> None:
    """Train on this machine: the manifest's learners and shards as processes."""
    job = read_job(file, tuple(change or ()))
    raise typer.Exit(train(job, out.resolve(), resume=resume, output=output, chaos=chaos))


@app.command()
def status(folder: Annotated[Path, typer.Argument(help="run folder")]) -> None:
    """The newest status of a run, in the shape of the CRD's."""
    try:
        typer.echo((folder / "status.json").read_text(encoding="utf-8"), nl=False)
    except OSError as error:
        remedy = "give the --out folder of a run"
        raise SpecError(str(folder), "holds no status.json", remedy) from error


@app.command(name="eval", context_settings={"ignore_unknown_options": True})
def evaluate(
    export: Annotated[Path, typer.Argument(help="folder of an exported model")],
    arguments: Annotated[list[str] | None, typer.Argument(help="such as --data PATH")] = None,
) -> None:
    """Held-out loss of an exported byte model: JSON with nats per byte."""
    command = [sys.executable, "-P", "-m", "bytegpt.evaluate", "--export", str(export)]
    raise typer.Exit(subprocess.run([*command, *(arguments or [])], check=False).returncode)
