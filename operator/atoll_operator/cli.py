"""The command `atoll`: each verb is one function of this file.

A verb imports what it needs when it runs, so that `atoll --help`, `validate` and `status` start
without gRPC, matplotlib or rich. A new verb is one more function with `@app.command()`.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator import templates
from atoll_operator.api import manifest, runfile, support
from atoll_operator.api.spec import Job
from atoll_operator.local.live import Output
from atoll_operator.local.summary import Exit
from atoll_protos.errors import SpecError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train one model on learners in several regions, which merge their work as they go.",
)

Manifest = Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")]


def main() -> None:
    """Run a verb; bad input becomes one line that names field and remedy, and exit code 2."""
    try:
        app()
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(Exit.BAD_INPUT)


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """The job in a file, checked as far as any executor needs; raises SpecError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error
    job = manifest.parse(text, changes)
    refused = support.nowhere(job)
    if refused is not None:
        raise refused
    runfile.run_file(job)
    return job


@app.command()
def validate(file: Manifest) -> None:
    """Check a manifest without a cluster."""
    job = read_job(file)
    templates.check(job)
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners: valid")
    refused = support.on_a_cluster(job)
    if refused is not None:
        typer.echo(f"For `atoll run` only; a cluster does not accept it: {refused}")


@app.command()
def run(
    file: Manifest,
    out: Annotated[Path, typer.Option("--out", help="Folder for everything the run writes.")],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the manifest for this run, as in --set spec.steps=100."
            " The value is YAML, so text that looks like a number needs quotes:"
            " --set spec.sync.outer.momentum='\"0.5\"'. Lists are set as a whole. Repeatable.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that the folder holds.")
    ] = False,
    output: Annotated[
        Output, typer.Option("--output", help="What to show; without a terminal, lines.")
    ] = Output.TABLE,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill a random process with SIGKILL every 20 s.")
    ] = False,
) -> None:
    """Train on this machine: learners and shards of the manifest run as processes."""
    from atoll_operator.local.run import train  # noqa: PLC0415 - only this verb needs gRPC

    job = read_job(file, tuple(change or ()))
    refused = support.on_this_machine(job)
    if refused is not None:
        raise refused
    raise typer.Exit(train(job, out.resolve(), resume=resume, output=output, chaos=chaos))


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder that was --out of a run.")],
) -> None:
    """Print the newest status of a run as JSON; its fields are those of the CRD's status."""
    try:
        typer.echo((folder / "status.json").read_text(encoding="utf-8"), nl=False)
    except OSError as error:
        remedy = "give the --out folder of a run"
        raise SpecError(str(folder), "has no status.json", remedy) from error


@app.command(name="eval", context_settings={"ignore_unknown_options": True})
def evaluate(
    export: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Such as --data PATH.")] = None,
) -> None:
    """Print the held-out loss of an exported byte model as JSON, in nats per byte."""
    command = [sys.executable, "-P", "-m", "bytegpt.evaluate", "--export", str(export)]
    raise typer.Exit(subprocess.run([*command, *(arguments or [])], check=False).returncode)
