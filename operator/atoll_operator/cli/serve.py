"""`atoll serve`: the shards of a job, for learners on other machines."""

import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.api.status.conditions import some_of
from atoll_operator.cli import detached
from atoll_operator.cli.run import (
    AllowRefused,
    Changes,
    Shown,
    changed,
    checked_folder,
    complete_in,
    of_folder,
    warn,
)
from atoll_operator.cli.validate import checked, read_text
from atoll_operator.local import run_folder, run_manifest
from atoll_operator.local.process_plan import container_of
from atoll_operator.local.run_files import RUN_FILE
from atoll_operator.local.show.live import Output, echo
from atoll_operator.local.show.run_summary import RunResult
from atoll_protos.errors import SpecError

LOG_FILE: Final = "serve.log"  # of one in the background, in its run folder

Manifest = Annotated[
    Path, typer.Argument(metavar="MANIFEST|DIR", help="A manifest, or the folder of its run.")
]
Script = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- SCRIPT", help="What learners train, in place of the manifest's command."
    ),
]
Listen = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Where machines enter. The shards listen on the ports that follow.",
        show_default="0.0.0.0:7700, or as before",
    ),
]
Advertise = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT]",
        help="How other machines reach this one, where that is not as they dial it.",
    ),
]
Here = Annotated[
    list[str] | None,
    typer.Option("--here", metavar="REGION", help="Whose learners run here. Repeatable."),
]


def serve(  # noqa: PLR0913, PLR0917 - each argument is an option of the command
    what: Manifest,
    script: Script = None,
    listen: Listen = "",
    advertise: Advertise = "",
    here: Here = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run.", show_default="runs/NAME")
    ] = None,
    change: Changes = None,
    output: Shown = Output.TABLE,
    allow_refused: AllowRefused = False,
    detach: detached.Detach = False,
    stop: detached.Stop = False,
) -> None:
    """Serve a job's shards to learners on other machines, with certificates of its own.

    Prints the line that brings a machine in. Started again with the same folder it is the same job.
    """
    from atoll_protos.logs import quiet_grpc  # noqa: PLC0415

    quiet_grpc()  # before gRPC is imported
    from atoll_operator.local.atoll_run import train  # noqa: PLC0415 - only this verb needs gRPC
    from atoll_operator.machines.server.serving import INVITES, serving_in  # noqa: PLC0415

    if what.suffix == ".py":
        problem = "is a script, and machines need to know the job's regions and length"
        raise SpecError(str(what), problem, "give a manifest; `atoll join ... -- SCRIPT` trains it")
    what, out = of_folder(what, out, resume=True)
    text = read_text(what)
    document = changed(text, change or (), what.resolve().parent, None, None)
    if script:
        document = run_manifest.with_command(document, script, Path.cwd())
    job = checked(document)
    folder = out or Path("runs") / job.name
    resume = (folder / RUN_FILE).exists()
    if stop:
        detached.stop(folder.resolve(), typer.echo)
        return
    if resume and (over := complete_in(job, folder)):
        typer.echo(over)
        raise typer.Exit(RunResult.COMPLETE)
    folder = checked_folder(job, folder, resume=resume).resolve()
    if detach:
        words = detached.again(sys.argv[1:], ())
        raise typer.Exit(detached.start(words, folder / LOG_FILE, typer.echo, INVITES))
    warn(job)
    with run_folder.running(folder):
        pass  # who is refused has changed nothing of what is in it
    serving = serving_in(
        folder,
        job,
        listen=listen,
        advertise=advertise,
        here=here or (),
        now=time.time(),
    )
    here_now = serving.here(job).spec.regions
    if built_in := [each.name for each in here_now if not container_of(job, each).command]:
        how = "the manifest names no script, and `-- SCRIPT` neither"
        echo(f"{some_of(built_in)}: learners here train the built-in byte-level GPT: {how}")
    code = train(
        job,
        folder,
        resume=resume,
        output=output,
        manifest=run_manifest.kept_manifest(text, document, sys.argv[2:], folder),
        chaos=False,
        allow_refused=allow_refused,
        elsewhere=serving,
    )
    raise typer.Exit(code)
