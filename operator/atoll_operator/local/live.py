"""What `atoll run` shows while it goes on: a live table, lines of text, or lines of JSON."""

import errno
import json
import time
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import typer

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.spec import Job
from atoll_operator.local.progress import Snapshot
from atoll_operator.local.told import duration, time_left
from atoll_protos.names import slot_name
from atoll_protos.states import slot_text

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_SECONDS = 5.0
FEW = 3  # learners that are named
COLUMNS = ("learner", "region", "state", "own steps", "tokens/s", "loss", "last adoption")


class Output(StrEnum):
    """The values of `--output`."""

    TABLE = "table"
    LINES = "lines"
    JSON = "json"


class View(Protocol):
    """One way to show a run; used as a context manager around the run."""

    def show(self, seen: Snapshot, now: float) -> None:
        """Show the newest status; `now` is in monotonic seconds."""

    def say(self, text: str) -> None:
        """Show one line about something that has happened."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; what was shown last stays on the screen."""


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, text_of: Callable[[Snapshot], str]) -> None:
        self.text_of = text_of
        self.shown_at = time.monotonic()

    def show(self, seen: Snapshot, now: float) -> None:
        """Print a line when the last one is LINE_SECONDS old."""
        if now - self.shown_at >= LINE_SECONDS:
            self.shown_at = now
            _echo(self.text_of(seen))

    def say(self, text: str) -> None:
        """Print to stderr, so that all lines on stdout have one format."""
        _echo(text, err=True)

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to end."""


def _echo(text: str, *, err: bool = False) -> None:
    """Print a line, unless it goes to a file for which the disk has no room."""
    try:
        typer.echo(text, err=err)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


class Table:
    """A table that stays in its place on the terminal, with one row for each learner."""

    def __init__(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - only local mode has it

        self.live = Live(auto_refresh=False)

    def show(self, seen: Snapshot, now: float) -> None:
        """Draw the table again."""
        del now
        self.live.update(picture(seen), refresh=True)

    def say(self, text: str) -> None:
        """Print above the table."""
        self.live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        """Take the place on the terminal."""
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the table as it is."""
        self.live.stop()


def view_for(output: Output, *, terminal: bool) -> View:
    """The table on a terminal when it is asked for, else lines."""
    if output is Output.TABLE and terminal:
        return Table()
    return Lines(json_line if output is Output.JSON else line)


def picture(seen: Snapshot) -> "RenderableType":
    """The line about the whole job above a table of the learners, for any rich console."""
    from rich.console import Group  # noqa: PLC0415 - only local mode has it
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = RichTable()
    for column in COLUMNS:
        table.add_column(column)
    for row in slot_rows(seen.job, seen.replies[0]):
        table.add_row(*row)
    title = Text(f"{seen.job.name}  ", style="bold").append(reached(seen), style="not bold")
    return Group(title, Text(machinery(seen)), table)


def line(seen: Snapshot) -> str:
    """The whole job in one line."""
    return f"{reached(seen)}  {machinery(seen)}"


def reached(seen: Snapshot) -> str:
    """How far the training is, and how well it goes."""
    progress, length = seen.status.progress, seen.job.spec.steps
    tick = progress.step if progress else 0  # may pass the length by a few in the last round
    parts = [f"step {min(tick, length) if length else tick} of {length or '?'}"]
    if progress and ended(seen) is None:
        left = progress.estimated_remaining_seconds
        parts += [time_left(left)] if left is not None else []
        parts.append(f"loss {progress.loss or '-'}")
    if progress and progress.metrics:
        parts.append(f"held out {progress.metrics[0].value}")
    return "  ".join(parts)


def machinery(seen: Snapshot) -> str:
    """Who takes part, and what travels; near the end, that the learners are not missing."""
    columns, rate = seen.status.columns, seen.bytes_per_second
    learners = f"learners {columns.learners if columns else '?'}"
    parts = (
        ended(seen) or learners,
        f"elapsed {duration(seen.elapsed_seconds)}",
        "" if rate is None else f"{rate / 1e6:.2f} MB/s",
        "" if seen.merged_share is None else f"{seen.merged_share:.0%} merged",
        starting(seen),
    )
    return "  ".join(part for part in parts if part)


def starting(seen: Snapshot) -> str:
    """The learners whose first process has not joined yet, with the seconds that it runs."""
    joined = {slot.slot for slot in seen.replies[0].slots} if seen.replies[0] else set()
    names = [f"{slot} ({s:.0f} s)" for slot, s in seen.starting.items() if slot not in joined]
    if not names:
        return ""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return f"starting: {', '.join(names[:FEW])}{more}"


def ended(seen: Snapshot) -> str | None:
    """What goes on after the last step; None while the training does."""
    if seen.status.true_condition("Complete") is not None:
        return "exported"
    progressing = seen.status.true_condition("Progressing")
    return "final export" if progressing and progressing.reason == "Exporting" else None


def json_line(seen: Snapshot) -> str:
    """The status and the time (Unix seconds), as one line of JSON."""
    return json.dumps({"time": time.time(), **seen.status.to_object()})


def slot_rows(job: Job, registrar: pb.StatusReply | None) -> list[list[str]]:
    """The rows of the live table, in the order of COLUMNS: one for each learner."""
    slots = {slot.slot: slot for slot in registrar.slots} if registrar else {}
    rows = []
    for region in job.spec.regions:
        for ordinal in range(region.learners):
            name = slot_name(region.name, ordinal)
            slot = slots.get(name)
            if slot is None:
                rows.append([name, region.name, "Starting", "", "", "", ""])
            else:
                rows.append([name, region.name, *_numbers(slot)])
    return rows


def _numbers(slot: pb.SlotStatus) -> list[str]:
    if not (slot.t_m and slot.step_seconds):  # its present process has made no step
        return [slot_text(slot.state), "-", "-", "-", "-"]
    rate = slot.tokens / slot.t_m / slot.step_seconds
    return [
        slot_text(slot.state),
        str(slot.t_m),
        f"{rate:,.0f}",
        f"{slot.loss:.3f}",
        f"{slot.seconds_since_adoption:.1f} s ago",
    ]
