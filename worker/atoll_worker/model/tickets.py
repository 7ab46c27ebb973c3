"""The tickets of work that is put in line, without torch."""

from dataclasses import dataclass
from typing import Protocol


class Ticket(Protocol):
    """Device work that has been put in line; `done` never waits."""

    def done(self) -> bool: ...
    def wait(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Done:
    """The ticket of work that was done before the call returned."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass
