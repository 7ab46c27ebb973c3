"""The newest loss that is known, without waiting for the device."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from atoll_protos.errors import SpecError
from atoll_worker.training.staging import Scalar


@dataclass(slots=True)
class Losses:
    """Losses in the order in which they were given, of which some are still on the device."""

    newest: float = math.nan  # NaN until the first is known
    unread: deque[Scalar] = field(default_factory=deque)

    def note(self, loss: float | Tensor | None, read: Callable[[Tensor], Scalar]) -> None:
        """Put the reading of a loss in line, and take the newest that the device has finished.

        Raises SpecError for what is not one number.
        """
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise SpecError("loss", f"has shape {tuple(loss.shape)}", "give one number")
            self.unread.append(read(loss))
        elif loss is not None:
            try:
                self.newest = float(loss)
            except (TypeError, ValueError) as error:
                raise SpecError("loss", f"is {loss!r}", "give one number") from error
        while self.unread and self.unread[0].ticket.done():
            self.newest = self.unread.popleft().host.item()
