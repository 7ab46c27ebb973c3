"""`atoll join`: brings the learners of this machine into a job of `atoll serve` or a cluster."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.run import GpusPerLearner, ProcessesPerLearner
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

Server = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Of `atoll serve`, which prints this line.")
]
Brought = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="DIR",
        help="What `atoll credentials JOB --files DIR` has written: joins that job of a cluster.",
    ),
]
FirstSlot = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With --credentials: number of the first learner here, in its region.",
        show_default="as before, else 0",
    ),
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
    server: Server = "",
    script: Script = None,
    token: Annotated[
        str,
        typer.Option(
            help="Needed once: a machine that is started again needs none.",
            show_default="$ATOLL_TOKEN",
        ),
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
    credentials: Brought = None,
    first_slot: FirstSlot = None,
    enter_only: Annotated[
        bool, typer.Option("--enter-only", help="End then; started again with its state it trains.")
    ] = False,
) -> None:
    """Train on this machine for a job whose shards another machine serves, or a cluster.

    It dials out only, and needs no open port. Its key stays here. SIGTERM and Ctrl-C let its
    learners leave in order; started again it has the same slots and needs no token.
    """
    from atoll_operator.machines.joined.credentials import BroughtOptions  # noqa: PLC0415 - only this verb needs gRPC
    from atoll_operator.machines.joined.entering import JoinOptions  # noqa: PLC0415
    from atoll_operator.machines.joined.joining import join as joined  # noqa: PLC0415
    from atoll_operator.machines.joined.joining import join_with_credentials  # noqa: PLC0415
    from atoll_operator.machines.joined.learners import Wanted  # noqa: PLC0415

    words = list(script or ())
    if credentials is not None:
        _check_alone(server, {"--token": token, "--region": region, "--enter-only": enter_only})
        words = [server, *words] if server else words  # nothing stands before the script
    elif not server:
        raise SpecError("HOST:PORT", "is missing", "give it as `atoll serve` prints it")
    elif first_slot is not None:
        remedy = "leave it out: the server gives each machine slots of its own"
        raise SpecError("--first-slot", "is for --credentials", remedy)
    wanted = Wanted(command=words, gpus=gpus_per_learner, processes=processes_per_learner)
    name, state = name or socket.gethostname(), state and state.resolve()

    def say(text: str) -> None:
        typer.echo(text, err=True)

    if credentials is None:
        place = JoinOptions(
            server=server,
            token=token or os.environ.get(Env.TOKEN, ""),
            region=region,
            learners=learners,
            name=name,
            state=state,
            enter_only=enter_only,
        )
        raise typer.Exit(joined(place, wanted, say))
    brought = BroughtOptions(
        folder=credentials.resolve(),
        learners=learners,
        first_slot=first_slot,
        name=name,
        state=state,
    )
    raise typer.Exit(join_with_credentials(brought, wanted, say))


def _check_alone(first: str, given: Mapping[str, object]) -> None:
    """With --credentials. Raises SpecError."""
    host, _, port = first.rpartition(":")
    if host and port.isdecimal():
        problem = f"{first} is given, and so are --credentials, which have the addresses"
        raise SpecError("HOST:PORT", problem, "leave one of the two out")
    for option, value in given.items():
        if value:
            remedy = "leave it out: the credentials say whose they are"
            raise SpecError(option, "is not for --credentials", remedy)
