"""`atoll join`: brings the learners of this machine into a job of `atoll serve`."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.run import GpusPerLearner, ProcessesPerLearner

Server = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Of `atoll serve`, which prints this line.")
]
Script = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- SCRIPT ARGUMENTS",
        help="What trains here; left out, what the manifest says.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="What makes this the same machine when it is started again.",
        show_default="~/.local/state/atoll/JOB-UID-NAME",
    ),
]


def join(  # noqa: PLR0913, PLR0917 - each argument is an option of the command
    server: Server,
    script: Script = None,
    token: Annotated[
        str, typer.Option(help="Needed once: a machine that is started again needs none.")
    ] = "",
    region: Annotated[
        str,
        typer.Option(help="Whose learners these are.", show_default="that of the token"),
    ] = "",
    learners: Annotated[
        int | None, typer.Option(min=1, help="Number of learners here.", show_default="1")
    ] = None,
    gpus_per_learner: GpusPerLearner = None,
    processes_per_learner: ProcessesPerLearner = None,
    name: Annotated[
        str, typer.Option(help="Of this machine.", show_default="the host's name")
    ] = "",
    state: State = None,
) -> None:
    """Train on this machine for a job whose shards another machine serves.

    It dials out only, and needs no open port. Its key stays here. SIGTERM and Ctrl-C let its
    learners leave in order; started again it has the same slots and needs no token.
    """
    from atoll_operator.machines.joined.entering import JoinOptions  # noqa: PLC0415 - only this verb needs gRPC
    from atoll_operator.machines.joined.joining import join as joined  # noqa: PLC0415
    from atoll_operator.machines.joined.learners import Wanted  # noqa: PLC0415

    place = JoinOptions(
        server=server,
        token=token,
        region=region,
        learners=learners,
        name=name or socket.gethostname(),
        state=state and state.resolve(),
    )
    wanted = Wanted(
        command=tuple(script or ()), gpus=gpus_per_learner, processes=processes_per_learner
    )
    raise typer.Exit(joined(place, wanted, lambda text: typer.echo(text, err=True)))
