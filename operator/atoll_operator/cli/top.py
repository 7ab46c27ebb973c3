"""`atoll top`: every learner and shard of a run as it is now, wherever it runs."""

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll_operator.cli import region_values
from atoll_operator.cli.region_values import PricePerGb
from atoll_operator.cli.run_or_job import Context, Namespace, Token, Which, folder_of, served_at
from atoll_operator.local.folder import log_files, run_lock
from atoll_operator.local.folder.run_files import continued_by
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.sizing.prices import Prices
from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.local.progress.machines import MachinesFile, ShownMachine
    from atoll_operator.machines.looking.served import Served

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
    price_per_gb: PricePerGb = None,
    token: Token = "",
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Show every learner and shard: speed, time blocked, loss, node; ticks, commits and bytes.

    In a cluster a shard's pod asks the shards, through `kubectl exec`. Of a job of `atoll serve` it
    shows every machine, with `--price-per-gb` also what its bytes cost.
    """
    prices = region_values.prices(price_per_gb) if price_per_gb else None
    look = _look(which, prices, token, namespace, context)
    try:
        while True:
            text = look()
            typer.echo(f"{CLEAR}{text}" if watch else text)
            if not watch:
                return
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit(RunResult.INTERRUPTED) from None


def _look(which: str, prices: Prices | None, token: str, namespace: str, context: str) -> Look:
    served = served_at(which, token, namespace, context)
    if served is not None:
        return partial(_served, served, prices)
    out = folder_of(which, namespace, context)
    return _folder(out, prices) if out is not None else _cluster(which, namespace, context)


def _served(job: "Served", prices: Prices | None) -> str:
    from atoll_operator.local.show.top_table import Answer, table  # noqa: PLC0415

    shards, seen = job.shards()
    answers = [
        Answer(each.reply)
        if each.HasField("reply")
        else Answer(None, f"{each.endpoint} does not answer")
        for each in shards
    ]
    now = max((each.at for each in shards), default=0.0)
    return table(answers, {}, machines=_machines(seen, prices), now=now)


def in_pod(command: list[str]) -> list[dict[str, object]]:
    """The lines of JSON that a program in a shard's pod writes. Raises SpecError."""
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
    raise SpecError("kubectl", problem, "install it; atoll status JOB needs none")


def _cluster(job: str, namespace: str, context: str) -> Look:
    from google.protobuf import json_format  # noqa: PLC0415 - slow to import

    import atoll_protos.v1.atoll_pb2 as pb  # noqa: PLC0415
    from atoll_operator.client.shards import nodes_of, shards_of  # noqa: PLC0415
    from atoll_operator.local.show.top_table import Answer, table  # noqa: PLC0415

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


def _folder(out: Path, prices: Prices | None) -> Look:
    if not run_lock.is_run(out):
        problem = "nothing runs in it now"
        remedy = (
            f"see atoll status {out}; `{continued_by(out)}` continues it, unless it is complete"
        )
        raise SpecError(str(out), problem, remedy)
    from atoll_operator.local.progress.machines import read_machines  # noqa: PLC0415 - needs protobuf
    from atoll_operator.local.progress.poller import ask  # noqa: PLC0415 - needs gRPC
    from atoll_operator.local.show.top_table import Answer, table  # noqa: PLC0415

    endpoints, observer = log_files.endpoints_of(out), log_files.observer_in(out)

    def look() -> str:
        replies = zip(endpoints, ask(endpoints, observer), strict=True)
        answers = [Answer(found, "" if found else f"{e} does not answer") for e, found in replies]
        machines = _machines(read_machines(out), prices)
        return table(answers, {}, machines=machines, now=time.time())

    return look


def _machines(seen: "MachinesFile | None", prices: Prices | None) -> Sequence["ShownMachine"]:
    """With the server's prices, unless others are given here."""
    from atoll_operator.local.progress.machines import priced  # noqa: PLC0415 - needs protobuf

    if seen is None or prices is None:
        return seen.machines if seen else ()
    return priced(seen.machines, seen.home, prices)
