"""What a script gives for its curves, until the device has it: losses, and what it logs."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from atoll_protos.errors import SpecError
from atoll_worker.model.staging import Scalar

TAKEN = ("loss", "tokens_per_second")  # the curves of a learner that step() brings
NAMES_MAX, CHARACTERS_MAX = 1000, 200

Number: TypeAlias = float | Scalar
Read: TypeAlias = Callable[[Tensor], Scalar]


@dataclass(slots=True)
class Losses:
    """Losses in the order in which they were given, of which some are still on the device."""

    newest: float = math.nan  # NaN until the first is known
    unread: deque[Number] = field(default_factory=deque)

    def note(self, loss: float | Tensor | None, read: Read) -> None:
        """Put it in line, and take the newest one known. SpecError for what is not one number."""
        if loss is not None:
            self.unread.append(_one("loss", loss, read))
        while self.unread and _is_known(self.unread[0]):
            self.newest = _value(self.unread.popleft())


@dataclass(slots=True)
class Logged:
    """The calls of `log` in their order, of which some tensors are still on the device."""

    unread: deque[dict[str, Number]] = field(default_factory=deque)

    def note(self, values: Mapping[str, float | Tensor], read: Read) -> None:
        """Put one call in line. Raises SpecError for what is not one number under a free name."""
        if len(values) > NAMES_MAX:
            raise SpecError("log", f"has {len(values)} names", f"give at most {NAMES_MAX}")
        numbers = {_name(name): _one(f"log.{name}", each, read) for name, each in values.items()}
        self.unread.append(numbers)

    def known(self) -> Iterator[dict[str, float]]:
        """Take the calls whose tensors the device has given; never waits."""
        while self.unread and all(map(_is_known, self.unread[0].values())):
            values = self.unread.popleft()
            yield {name: _value(each) for name, each in values.items()}


def _is_known(number: Number) -> bool:
    return not isinstance(number, Scalar) or number.ticket.done()


def _value(number: Number) -> float:
    return float(number.host.item()) if isinstance(number, Scalar) else number


def _name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= CHARACTERS_MAX:
        raise SpecError(
            "log", f"has the name {name!r:.80}", f"give 1 to {CHARACTERS_MAX} characters"
        )
    if name in TAKEN:
        raise SpecError(
            f"log.{name}", "is what the steps report", "give step() or follow() the loss and tokens"
        )
    return name


def _one(what: str, value: object, read: Read) -> Number:
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return read(value)
        raise SpecError(what, f"has shape {tuple(value.shape)}", "give one number")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise SpecError(what, f"is {value!r:.80}", "give one number") from error
