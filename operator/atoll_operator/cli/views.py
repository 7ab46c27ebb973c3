"""`atoll status`, `top` and `logs`: how a run or a job stands, and what its processes write."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.run_or_job import (
    Context,
    FolderArgument,
    Namespace,
    Which,
    folder_of,
    run_folder,
)
from atoll_operator.local import last_status
from atoll_operator.local import run_folder as files
from atoll_operator.local.run_files import STATUS_FILE, continued_by
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.show.status_text import status_text
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile

MODULE = "atoll_syncer.edges.status_lines"
LOOK_SECONDS = 2.0  # shards report their numbers only when they are asked
CLEAR = "\x1b[H\x1b[2J"
CALL_SECONDS_MAX = 60.0

Look = Callable[[], str]


def top(
    which: Which,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every 2 s until Ctrl-C.")
    ] = False,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Show every learner and shard: speed, time blocked, loss, node; ticks, commits and bytes.

    In a cluster a shard's pod asks the shards, through `kubectl exec`. Of a job of `atoll serve` it
    shows every machine.
    """
    look = _look(which, namespace, context)
    try:
        while True:
            text = look()
            typer.echo(f"{CLEAR}{text}" if watch else text)
            if not watch:
                return
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit(RunResult.INTERRUPTED) from None


def _look(which: str, namespace: str, context: str) -> Look:
    out = folder_of(which, namespace, context)
    return _folder(out) if out is not None else _cluster(which, namespace, context)


def in_pod(command: list[str]) -> list[dict[str, object]]:
    """Read the lines of JSON that a program in a shard's pod writes. Raises SpecError."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=CALL_SECONDS_MAX
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        remedy = "check that you may exec into pods, and that the job's image is of this version"
        raise SpecError(shlex.join(command), said, remedy)
    return [json.loads(line) for line in done.stdout.splitlines()]


def kubectl() -> str:
    if (found := shutil.which("kubectl")) is not None:
        return found
    problem = "is not on the PATH, and the shards are asked through kubectl exec"
    raise SpecError("kubectl", problem, "install it")


def _cluster(job: str, namespace: str, context: str) -> Look:
    from google.protobuf import json_format  # noqa: PLC0415 - slow to import

    import atoll_protos.v1.atoll_pb2 as pb  # noqa: PLC0415
    from atoll_operator.client.job_client import nodes_of, shards_of  # noqa: PLC0415
    from atoll_operator.local.show.live import Answer, table  # noqa: PLC0415

    program = kubectl()

    def look() -> str:
        found = shards_of(job, namespace, context)
        answers = []
        for each in in_pod([*found.command(program, context), MODULE]):
            problem = each.pop("problem", "")
            reply = json_format.ParseDict(each, pb.StatusReply(), ignore_unknown_fields=True)
            answers.append(Answer(None if problem else reply, str(problem)))
        return table(answers, nodes_of(job, found.namespace, context))

    return look


def _folder(out: Path) -> Look:
    if not files.is_run(out):
        problem = "nothing runs in it now"
        remedy = (
            f"see atoll status {out}; `{continued_by(out)}` continues it, unless it is complete"
        )
        raise SpecError(str(out), problem, remedy)
    from atoll_operator.local.local_status import read_machines  # noqa: PLC0415 - needs protobuf
    from atoll_operator.local.poller import ShardLinks  # noqa: PLC0415 - needs gRPC
    from atoll_operator.local.show.live import Answer, table  # noqa: PLC0415

    endpoints = files.endpoints_of(out)
    links = ShardLinks(endpoints, files.observer_in(out))

    def look() -> str:
        replies = zip(endpoints, links.ask(), strict=True)
        answers = [Answer(found, "" if found else f"{e} does not answer") for e, found in replies]
        seen = read_machines(out)
        machines = seen.machines if seen else ()
        return table(answers, {}, machines=machines)

    return look


def status(
    which: FolderArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="All of it, in the shape of the CRD's status.")
    ] = False,
) -> None:
    """Say how a run stands: its step, losses, learners, and what is wrong with it."""
    out = run_folder(which)
    found = last_status.read_status(out)
    if as_json:
        typer.echo(json.dumps(found.to_object(), indent=2))
        return
    if not (out / "run.json").is_file():
        raise SpecError(str(out), "has no run.json", "give the folder of a run")
    age = time.time() - (out / STATUS_FILE).stat().st_mtime
    run = RunFile.from_json((out / "run.json").read_text(encoding="utf-8"))
    typer.echo(status_text(found, run.job, run.steps, age))


COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def _of_folder(context: typer.Context, incomplete: str) -> list[str]:
    known = files.processes_of(Path(context.params.get("which") or ""))
    return [name for name in known if name.startswith(incomplete)]


def logs(
    which: FolderArgument,
    process: Annotated[
        str,
        typer.Argument(
            metavar="[PROCESS]",
            help="A slot, SLOT-HOST, shard-0, or evaluator.",
            autocompletion=_of_folder,
        ),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with what comes, through restarts.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Last lines of each process only.", show_default="all")
    ] = None,
) -> None:
    """Show what the processes of a run have written.

    The log of a learner of `atoll join` is in the state folder of its machine. Lines begin with
    their process if there are several.
    """
    colours: dict[str, str] = {}
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        for name, line in files.lines(run_folder(which), process, tail=tail, follow=follow):
            prefix = ""
            if name != process:
                colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
                prefix = f"[{name}] "
                prefix = typer.style(prefix, fg=colour) if coloured else prefix
            typer.echo(prefix + line)
    except KeyboardInterrupt:
        raise typer.Exit(RunResult.INTERRUPTED) from None
