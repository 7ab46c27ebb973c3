"""`atoll serve`: the shards of a job, for learners on other machines."""

import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.cli import detached, region_values
from atoll_operator.cli.manifest_file import checked, read_text
from atoll_operator.cli.region_values import PricePerGb
from atoll_operator.cli.run import (
    AllowRefused,
    Changes,
    Shown,
    Standby,
    changed,
    checked_folder,
    complete_in,
    of_folder,
    warn,
)
from atoll_operator.local.folder import run_lock
from atoll_operator.local.folder.run_files import RUN_FILE
from atoll_operator.local.planning import run_manifest
from atoll_operator.local.show.live import Output, echo
from atoll_operator.local.show.run_summary import RunResult
from atoll_protos.errors import SpecError

LOG_FILE: Final = "serve.log"  # of one in the background, in its run folder

Manifest = Annotated[
    Path, typer.Argument(metavar="MANIFEST|DIR", help="A manifest, or the folder of its run.")
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
    listen: Listen = "",
    advertise: Advertise = "",
    here: Here = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run.", show_default="runs/NAME")
    ] = None,
    change: Changes = None,
    standby: Standby = False,
    output: Shown = Output.TABLE,
    allow_refused: AllowRefused = False,
    price_per_gb: PricePerGb = None,
    detach: detached.Detach = False,
    stop: detached.Stop = False,
) -> None:
    """Serve a job's shards to learners on other machines, with certificates of its own.

    Prints the line that brings a machine in. Started again with the same folder it is the same job.
    """
    from atoll_operator.local.atoll_run import train  # noqa: PLC0415 - only this verb needs gRPC
    from atoll_operator.machines.server.serving import AWAITS, INVITES, serving_in  # noqa: PLC0415

    if what.suffix == ".py":
        problem = "is a script, and machines need to know the job's regions and length"
        raise SpecError(str(what), problem, "give a manifest; `atoll join ... -- SCRIPT` trains it")
    what, out = of_folder(what, out, resume=True)
    text = read_text(what)
    changes = [*(change or ()), *(["spec.syncer.standby=true"] if standby else [])]
    document = changed(text, changes, what.resolve().parent, None, None)
    job = checked(document)
    folder = out or Path("runs") / job.name
    resume = (folder / RUN_FILE).exists()
    over = complete_in(job, folder) if resume else ""
    folder = checked_folder(job, folder, resume=resume and not over).resolve()
    if stop:
        detached.stop(folder, typer.echo)
        return
    if detach:
        words = detached.again(sys.argv[1:], ())
        raise typer.Exit(detached.start(words, folder / LOG_FILE, typer.echo, INVITES, AWAITS))
    warn(job)
    region_values.prices(price_per_gb or ())  # refused before it is kept
    with run_lock.running(folder):
        pass  # who is refused has changed nothing of what is in it
    serving = serving_in(
        folder,
        job,
        listen=listen,
        advertise=advertise,
        here=here or (),
        prices=price_per_gb or (),
        now=time.time(),
    )
    serving.prices = region_values.prices(serving.server.prices)
    if over:
        typer.echo(over)
        serving.tell_the_rest(echo)
        raise typer.Exit(RunResult.COMPLETE)
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
