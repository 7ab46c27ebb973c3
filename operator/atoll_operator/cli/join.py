"""`atoll join`: brings the learners of this machine into a job of `atoll serve` or a cluster."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.cli import detached
from atoll_operator.cli.run import GpusPerLearner, ProcessesPerLearner
from atoll_operator.local.run_files import Say
from atoll_operator.local.show.live import echo
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

LOG_FILE: Final = "join.log"  # of one in the background, in its state folder

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
Hosts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Machines of one learner, all of one network.",
        show_default="as the manifest says",
    ),
]
Host = Annotated[
    int | None, typer.Option(min=0, help="Which of them this is, from 0.", show_default="the only")
]
Slot = Annotated[
    str,
    typer.Option(help="Whose host it is, where several learners lack this one.", metavar="SLOT"),
]
Rendezvous = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Of host 0, as the other hosts reach it.",
        show_default="its address towards the server, port 29400",
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
    hosts: Hosts = None,
    host: Host = None,
    slot: Slot = "",
    rendezvous: Rendezvous = "",
    name: Annotated[
        str, typer.Option(help="Of this machine.", show_default="the host's name")
    ] = "",
    state: State = None,
    credentials: Brought = None,
    first_slot: FirstSlot = None,
    enter_only: Annotated[
        bool, typer.Option("--enter-only", help="End then; started again with its state it trains.")
    ] = False,
    detach: detached.Detach = False,
    stop: detached.Stop = False,
) -> None:
    """Train on this machine for a job whose shards another machine serves, or a cluster.

    It dials out only, and needs no open port. Its key stays here. SIGTERM and Ctrl-C let its
    learners leave in order; started again it has the same slots and needs no token.
    """
    from atoll_operator.machines.joined.entering import JoinOptions, enter  # noqa: PLC0415
    from atoll_operator.machines.joined.joining import join as joined  # noqa: PLC0415
    from atoll_operator.machines.joined.learners import Wanted  # noqa: PLC0415

    words = list(script or ())
    if credentials is not None:
        own: dict[str, object] = {"--token": token, "--region": region, "--slot": slot}
        own |= {"--enter-only": enter_only}
        _check_alone(server, own)
        words = [server, *words] if server else words  # nothing stands before the script
    elif not server:
        raise SpecError("HOST:PORT", "is missing", "give it as `atoll serve` prints it")
    elif first_slot is not None:
        remedy = "leave it out: the server gives each machine slots of its own"
        raise SpecError("--first-slot", "is for --credentials", remedy)
    wanted = Wanted(command=words, gpus=gpus_per_learner, processes=processes_per_learner)
    place = JoinOptions(
        server="" if credentials else server,
        token=token,
        variable=os.environ.get(Env.TOKEN, ""),
        credentials=credentials and credentials.resolve(),
        region=region,
        learners=learners,
        first_slot=first_slot,
        hosts=hosts,
        host=host,
        slot=slot,
        rendezvous=rendezvous,
        name=name or socket.gethostname(),
        state=state and state.resolve(),
        enter_only=enter_only,
    )

    def say(text: str) -> None:
        echo(text, err=True)

    if detach or stop:
        known = replace(place, token="", variable="") if stop else place
        raise typer.Exit(_in_background(enter(known, time.time()).folder, say, ends=stop))
    raise typer.Exit(joined(place, wanted, say))


def _in_background(folder: Path, say: Say, *, ends: bool) -> int:
    """Start this command again in the background, or end the one that is there."""
    from atoll_operator.machines.joined.joining import STARTED  # noqa: PLC0415 - imports gRPC

    if ends:
        detached.stop(folder, say)
        return 0
    own = ("--state", str(folder))
    words = detached.again(sys.argv[1:], ("--token", "--state"), *own)
    return detached.start(words, folder / LOG_FILE, say, STARTED)


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
