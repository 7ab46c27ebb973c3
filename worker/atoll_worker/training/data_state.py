"""What a script keeps with its data cursor: bytes, or a function that returns them.

A shard keeps a data state only with an offer (docs/protocol.md, rule 28). So a function is called
once for each boundary where a slice is captured, and in the first step, because a mistake in it
should not wait for the first capture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from atoll_protos.errors import SpecError
from atoll_protos.names import DATA_STATE_BYTES_MAX

DataState: TypeAlias = bytes | Callable[[], bytes]


@dataclass(slots=True)
class KeptDataState:
    """The data state of the newest step."""

    function: Callable[[], bytes] | None = None  # that returns it, until it was called
    found: bytes | None = None
    tried: bool = False

    def give(self, state: DataState | None) -> None:
        self.function, self.found = None, None
        if callable(state):
            self.function = state
        elif state is not None:
            self.found = checked(state)

    def try_once(self) -> None:
        if self.function is not None and not self.tried:
            self.tried = True
            self.take()

    def take(self) -> bytes | None:
        """Raises SpecError for what is no data state."""
        if self.function is not None:
            self.found, self.function = checked(self.function()), None
        return self.found


def checked(state: object) -> bytes:
    """Raises SpecError for what is no bytes, or too much."""
    if not isinstance(state, bytes | bytearray | memoryview):
        raise SpecError(
            "state",
            f"is of type {type(state).__name__}",
            "give bytes, or a function that returns bytes: pickle.dumps(loader.state_dict())",
        )
    found = bytes(state)
    if len(found) > DATA_STATE_BYTES_MAX:
        raise SpecError(
            "state",
            f"has {len(found)} bytes",
            f"keep at most {DATA_STATE_BYTES_MAX}: where the data goes on, not the data",
        )
    return found
