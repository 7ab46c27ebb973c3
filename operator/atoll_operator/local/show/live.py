"""What `atoll run` shows while it runs: the live table of `atoll top`, lines of text or of JSON.

A row for each learner and each shard:

tokens/s   the tokens of a step in its last merge, by the seconds of a step; its count of steps
           does not serve, since one that joined late has not made all of them
busy       share of its time outside of `learner.step`
blocked    seconds inside of `learner.step`, over this start of the process
late       share of its tokens, of this start, that came too late for a merge
share      of the weight of the last merge that had it, as shard 0 says
quorum     learners that a merge waits for
grace      seconds that an open merge waits for more than these
state      Starting: its process has made no step yet; Reading: a shard reads its values back

A row for each machine of `atoll serve`; up and down are from it to the shards and back: the mean
of the last 10 s, and all bytes so far.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

import typer
from rich import filesize

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.conditions import some_of
from atoll_operator.api.status.job_status import in_first_step, reads
from atoll_operator.local.local_status import RunSnapshot, ShownMachine
from atoll_operator.local.show.status_text import duration, time_left
from atoll_protos.job.run_file import shard_text, slot_text

if TYPE_CHECKING:
    from rich.console import RenderableType


COLUMNS = ("MACHINE", "REGION", "ADDRESS", "UP NOW", "DOWN NOW", "UP", "DOWN")
NOTHING = "-"


def machine_rows(machines: Sequence[ShownMachine]) -> list[list[str]]:
    """Return the head, a row for each machine, and a sum of several."""
    rows = [[*COLUMNS], *(_row(machine) for machine in machines)]
    if len(machines) > 1:
        up, down = (sum(x.up_bytes for x in machines), sum(x.down_bytes for x in machines))
        empty = [NOTHING] * (len(COLUMNS) - 3)
        rows.append(["all", *empty, filesize.decimal(up), filesize.decimal(down)])
    return rows


def of_slots(machines: Sequence[ShownMachine]) -> dict[str, str]:
    """Return the machine of each slot that has one."""
    return {slot: machine.name for machine in machines for slot in machine.slots}


def _row(each: ShownMachine) -> list[str]:
    return [
        each.name,
        each.region,
        "revoked" if each.revoked else each.address or NOTHING,
        _machine_rate(each.up_rate),
        _machine_rate(each.down_rate),
        filesize.decimal(each.up_bytes),
        filesize.decimal(each.down_bytes),
    ]


def _machine_rate(bits: float | None) -> str:
    return NOTHING if bits is None else f"{bits / 1e6:.2f} Mbit/s"


LEARNERS = ("LEARNER", "STATE", "STEP TIME", "TOKENS/S", "BUSY", "BLOCKED", "LATE", "SHARE", "LOSS")
SHARDS = ("SHARD", "STATE", "TICK", "COMMITS", "QUORUM", "GRACE", "RECEIVED", "SENT")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shard says, or why it says nothing."""

    reply: pb.StatusReply | None
    problem: str = ""


def table(
    answers: Sequence[Answer],
    nodes: Mapping[str, str],
    *,
    last: pb.StatusReply | None = None,
    names: Sequence[str] = (),
    machines: Sequence[ShownMachine] = (),
) -> str:
    """Return the tables as text. `nodes`: by process, the node it runs on; empty: there are none.

    `last`: what shard 0 said last, if that is known. While it is silent learners have these
    numbers, and no state. `names`: the job's learners, which have a row before they join.
    `machines` are those of `atoll serve`.
    """
    heard = answers[0].reply if answers else None
    registrar = heard or last
    learners = [[*LEARNERS], *map(_learner, registrar.slots if registrar else ())]
    if heard is None:
        for row in learners[1:]:
            row[1] = "?"
    known, rest = {row[0] for row in learners}, [NOTHING] * (len(LEARNERS) - 2)
    learners += [[name, "Starting", *rest] for name in names if name not in known]
    shards = [[*SHARDS], *(_shard(number, answer) for number, answer in enumerate(answers))]
    if nodes:
        for rows in (learners, shards):
            _add(rows, "NODE", nodes)
    if machines:
        _add(learners, "MACHINE", of_slots(machines))
    first = (
        _aligned(learners) if registrar or names else "learners: unknown while shard 0 is silent"
    )
    problems = [answer.problem for answer in answers if answer.problem]
    tables = [_aligned(machine_rows(machines))] if machines else []
    return "\n\n".join([first, _aligned(shards), *tables, *problems])


def _add(rows: list[list[str]], column: str, values: Mapping[str, str]) -> None:
    """Add a column of what each row's process has."""
    rows[0].append(column)
    for row in rows[1:]:
        row.append(values.get(row[0], NOTHING))


def _learner(slot: pb.SlotStatus) -> list[str]:
    known = slot.t_m and slot.step_seconds  # else its present process has made no step
    return [
        slot.slot,
        "Starting" if in_first_step(slot) else slot_text(slot.state),
        f"{slot.step_seconds:.2f} s" if known else NOTHING,
        _rate(slot),
        f"{slot.busy_share:.0%}" if known else NOTHING,
        f"{slot.blocked_seconds:.1f} s" if known else NOTHING,
        f"{slot.late_share:.0%}" if known else NOTHING,
        f"{slot.merge_share:.0%}" if slot.merge_share else NOTHING,
        f"{slot.loss:.3f}" if known and not math.isnan(slot.loss) else NOTHING,
    ]


def _rate(slot: pb.SlotStatus) -> str:
    if not (slot.t_m and slot.step_seconds and slot.merge_tokens_per_step):
        return NOTHING
    return f"{slot.merge_tokens_per_step / slot.step_seconds:,.0f}"


def _shard(number: int, answer: Answer) -> list[str]:
    reply = answer.reply
    if reply is None:
        return [f"shard-{number}", "silent", *[NOTHING] * (len(SHARDS) - 2)]
    return [
        f"shard-{number}",
        "Reading" if reads(reply) else shard_text(reply.state),
        str(reply.tick),
        str(reply.commits),
        str(reply.quorum),
        f"{reply.grace_seconds:.2f} s",
        filesize.decimal(reply.bytes_received),
        filesize.decimal(reply.bytes_sent),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


LINE_SECONDS = 5.0
FEW = 3  # learners that are named


class Output(StrEnum):
    """The values of `--output`."""

    TABLE = "table"
    LINES = "lines"
    JSON = "json"


class RunView:
    """A line every few seconds, for logs and pipes; a context manager around the run."""

    def __init__(self, text_of: Callable[[RunSnapshot], str]) -> None:
        self.text_of = text_of
        self.shown_at = time.monotonic()

    def show(self, seen: RunSnapshot, now: float) -> None:
        if now - self.shown_at >= LINE_SECONDS:
            self.shown_at = now
            echo(self.text_of(seen))

    def say(self, text: str) -> None:
        """Print to stderr, so that all lines on stdout have one format."""
        echo(text, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, if anybody takes it: a run goes on without a terminal, a reader or room.

    Also from the handler of a signal, which may have come in the middle of another line.
    """
    with suppress(OSError, RuntimeError):
        typer.echo(text, err=err)


class TableView(RunView):
    """The table of `atoll top`, which stays in its place on the terminal."""

    def __init__(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - only local mode has it

        super().__init__(line)
        self.live = Live(auto_refresh=False)

    def show(self, seen: RunSnapshot, now: float) -> None:
        del now
        with suppress(OSError):  # the terminal may be gone
            self.live.update(picture(seen), refresh=True)

    def say(self, text: str) -> None:
        with suppress(OSError):
            self.live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        with suppress(OSError):
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self.live.stop()


def view_for(output: Output, *, terminal: bool) -> RunView:
    if output is Output.TABLE and terminal:
        return TableView()
    return RunView(json_line if output is Output.JSON else line)


def picture(seen: RunSnapshot) -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415 - only local mode has it
    from rich.text import Text  # noqa: PLC0415

    title = Text(f"{seen.job.name}  ", style="bold").append(reached(seen), style="not bold")
    if seen.status.true_condition("Suspended") is not None:
        return Group(title, Text(machinery(seen)))
    answers, names = [Answer(reply) for reply in seen.replies], seen.job.spec.slots
    rows = table(answers, {}, last=seen.registrar, names=names, machines=seen.machines)
    return Group(title, Text(f"{machinery(seen)}\n"), Text(rows, no_wrap=True))


def line(seen: RunSnapshot) -> str:
    return f"{reached(seen)}  {machinery(seen)}"


def reached(seen: RunSnapshot) -> str:
    progress, length = seen.status.progress, seen.job.spec.steps
    tick = progress.step if progress else seen.step  # may pass the length by a few at the end
    parts = [f"step {min(tick, length or tick)} of {length or '?'}"]
    if progress and ended(seen) is None:
        if (left := progress.estimated_remaining_seconds) is not None:
            parts.append(time_left(left))
        parts.append(f"loss {progress.loss or '-'}")
    if seen.away and seen.status.true_condition("Suspended") is None:
        parts.append(f"{', '.join(seen.away)} does not answer")
    if progress and progress.metrics:
        parts.append(f"held out {progress.metrics[0].value}")
    return "  ".join(parts)


def machinery(seen: RunSnapshot) -> str:
    """Who takes part, and what travels; near the end, that the learners are not missing."""
    columns, rate = seen.status.columns, seen.bytes_per_second
    merged = seen.status.progress.goodput if seen.status.progress else None
    parts = (
        ended(seen) or f"learners {columns.learners if columns else '?'}",
        f"elapsed {duration(seen.elapsed_seconds)}",
        "" if rate is None else f"{rate / 1e6:.2f} MB/s",
        f"{float(merged):.0%} merged" if merged else "",
        starting(seen),
    )
    return "  ".join(filter(None, parts))


def starting(seen: RunSnapshot) -> str:
    """Return the learners whose first process has not joined yet, with the seconds that it runs."""
    joined = {slot.slot for slot in seen.registrar.slots} if seen.registrar else set()
    names = [f"{slot} ({s:.0f} s)" for slot, s in seen.starting.items() if slot not in joined]
    return f"starting: {some_of(names, FEW)}" if names else ""


def ended(seen: RunSnapshot) -> str | None:
    """Return what happens after the last step, or in place of training; None while that goes on."""
    if seen.status.true_condition("Suspended") is not None:
        return "suspended"
    if seen.status.true_condition("Complete") is not None:
        return "exported"
    progressing = seen.status.true_condition("Progressing")
    return "final export" if progressing and progressing.reason == "Exporting" else None


def json_line(seen: RunSnapshot) -> str:
    machines = [dataclasses.asdict(machine) for machine in seen.machines]
    more = {"machines": machines} if machines else {}
    return json.dumps({"time": time.time(), **seen.status.to_object(), **more})
