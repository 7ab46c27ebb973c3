"""What a run shows while it goes on: a live table, or lines."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import typer

from atoll_operator.local import progress

LINE_SECONDS = 5.0
COLUMNS = ("learner", "region", "state", "step", "tokens/s", "loss", "last adoption")


class View(Protocol):
    """One way to show a run."""

    def show(self, seen: progress.Snapshot, now: float) -> None:
        """The newest look."""

    def say(self, text: str) -> None:
        """One thing that has happened."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the screen as it is."""


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, line: Callable[[progress.Snapshot], str]) -> None:
        self.line = line
        self.shown_at = time.monotonic()

    def show(self, seen: progress.Snapshot, now: float) -> None:
        """See View."""
        if now - self.shown_at >= LINE_SECONDS:
            self.shown_at = now
            typer.echo(self.line(seen))

    def say(self, text: str) -> None:
        """See View; on stderr, so that stdout stays lines of one kind."""
        typer.echo(text, err=True)

    def __enter__(self) -> Self:
        """See View."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See View."""


class Table:
    """A table that stays in its place on the terminal."""

    def __init__(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - only local mode has it

        self.live = Live(auto_refresh=False)

    def show(self, seen: progress.Snapshot, now: float) -> None:
        """See View."""
        del now
        from rich.table import Table as RichTable  # noqa: PLC0415

        table = RichTable(title=progress.line(seen), title_justify="left")
        for column in COLUMNS:
            table.add_column(column)
        for row in progress.slot_rows(seen.job, seen.replies[0]):
            table.add_row(*row)
        self.live.update(table, refresh=True)

    def say(self, text: str) -> None:
        """See View; above the table."""
        self.live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        """See View."""
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See View."""
        self.live.stop()


def view_for(*, table: bool, line: Callable[[progress.Snapshot], str]) -> View:
    """The table for a terminal, else lines."""
    return Table() if table else Lines(line)
