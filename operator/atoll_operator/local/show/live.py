"""What `atoll run` shows while it runs: a live table, lines of text, or lines of JSON."""

import dataclasses
import json
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Self

import typer

from atoll_operator.api.status.condition_facts import some_of
from atoll_operator.local.progress.local_status import RunSnapshot
from atoll_operator.local.show.status_text import duration, time_left
from atoll_operator.local.show.top_table import Answer, table

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    answers = [Answer(each) for each in seen.replies]
    names = [name for region in seen.job.spec.regions for name in region.slots]
    rows = table(
        answers,
        {},
        last=seen.registrar,
        names=names,
        machines=seen.machines,
        now=time.time(),
    )
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
    parts = (
        ended(seen) or f"learners {columns.learners if columns else '?'}",
        f"elapsed {duration(seen.elapsed_seconds)}",
        "" if rate is None else f"{rate / 1e6:.2f} MB/s",
        "" if seen.merged_share is None else f"{seen.merged_share:.0%} merged",
        starting(seen),
    )
    return "  ".join(filter(None, parts))


def starting(seen: RunSnapshot) -> str:
    """The learners whose first process has not joined yet, with the seconds that it runs."""
    joined = {slot.slot for slot in seen.registrar.slots} if seen.registrar else set()
    names = [f"{slot} ({s:.0f} s)" for slot, s in seen.starting.items() if slot not in joined]
    return f"starting: {some_of(names, FEW)}" if names else ""


def ended(seen: RunSnapshot) -> str | None:
    """What happens after the last step, or in place of training; None while that goes on."""
    if seen.status.true_condition("Suspended") is not None:
        return "suspended"
    if seen.status.true_condition("Complete") is not None:
        return "exported"
    progressing = seen.status.true_condition("Progressing")
    return "final export" if progressing and progressing.reason == "Exporting" else None


def json_line(seen: RunSnapshot) -> str:
    machines = [dataclasses.asdict(each) for each in seen.machines]
    more = {"machines": machines} if machines else {}
    return json.dumps({"time": time.time(), **seen.status.to_object(), **more})
