"""What a script reports and logs: numbers, some of which are still on the device."""

import math
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

from torch import Tensor

from atoll_protos.errors import SpecError
from atoll_worker.model.staging import Scalar

TAKEN = ("loss", "tokens_per_second")  # the curves of a learner that step() brings
NAMES_MAX, CHARACTERS_MAX = 1000, 200
FIRST_STEPS: Final = 3  # whose losses are compared with those of others: before any adoption
MOVED_MIN: Final = 1e-4  # of the largest of them
DIGITS_OF_16_BITS: Final = 12  # binary ones, at least those of f16 and bf16

Number: TypeAlias = float | Scalar
Read: TypeAlias = Callable[[Tensor], Scalar]


@dataclass(slots=True)
class Losses:
    """Losses in the order in which they were given, of which some are still on the device."""

    newest: float = math.nan  # NaN until the first is known
    unread: deque[Number] = field(default_factory=deque)
    first: list[float] = field(default_factory=list)
    first_digest: int = 0  # of the first losses (`digest_of`); 0: not known yet, or no proof

    def note(self, loss: float | Tensor | None, read: Read) -> None:
        """Put it in line, and take the newest one known. SpecError for what is not one number."""
        if loss is not None:
            self.unread.append(_one("loss", loss, read))
        while self.unread and _is_known(self.unread[0]):
            self.newest = _value(self.unread.popleft())
            if len(self.first) < FIRST_STEPS:
                self.first.append(self.newest)
                self.first_digest = digest_of(self.first)


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


def digest_of(losses: Sequence[float]) -> int:
    """Of the first losses of a learner: two learners with equal digests train on the same data.

    All learners begin with the same values, so equal data give equal losses, bit for bit. Losses
    may also be equal because they do not depend on the data: the layer in front is zero, the rate
    rises from zero, the script gives a constant. Those hardly move. A loss of 16 bits has too few
    digits to differ. In these cases, and before the last one is known, the digest is 0.
    """
    if len(losses) < FIRST_STEPS or not all(map(math.isfinite, losses)):
        return 0
    moved = max(losses) - min(losses) > MOVED_MIN * max(map(abs, losses))
    if moved and any(math.frexp(loss)[0] * 2**DIGITS_OF_16_BITS % 1 for loss in losses):
        return int.from_bytes(sha256(struct.pack(f"{FIRST_STEPS}d", *losses)).digest()[:8])
    return 0


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
