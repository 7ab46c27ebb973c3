"""The law of rule 13: what became of the tokens trained on a base, told at its replacement."""

from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb

CAPTURES_KEPT: Final = 1024  # on one base; each needs a Call, so more means endless reconnecting


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Tokens since the old base: merged + overlap + late is all of them."""

    merged: int
    overlap: int  # between the capture that counts and the adoption
    late: int  # in no commit


@dataclass(slots=True)
class Offered:
    """Captures offered on the base held: steps -> tokens. The newest is the last."""

    captures: dict[int, int] = field(default_factory=dict)
    newest_is_again: bool = False  # the newest was already offered before

    def add(self, steps: int, tokens: int) -> None:
        """One more offer; the same capture may be offered again in another session."""
        self.newest_is_again = steps in self.captures
        self.captures[steps] = tokens
        if len(self.captures) > CAPTURES_KEPT:
            del self.captures[min(self.captures)]

    def take_back(self) -> None:
        """The newest could not be sent."""
        if self.captures and not self.newest_is_again:
            self.captures.popitem()

    @property
    def newest_tokens(self) -> int | None:
        """Of the newest capture; None when none was offered."""
        return self.captures[max(self.captures)] if self.captures else None


def resolve(
    offered: Offered, *, tokens: int, merged: pb.Merged | None, incarnation: int, base: int
) -> Resolved:
    """A newer version takes the place of `base`, on which `tokens` were trained.

    `merged` names the receiver's own last merged offer, however many versions ago: it tells of
    this base only when it names it, and this incarnation.
    """
    if merged is not None and (merged.incarnation, merged.base) == (incarnation, base):
        captured = offered.captures.get(merged.capture)
        if captured is not None:
            return Resolved(merged=captured, overlap=tokens - captured, late=0)
    newest = offered.newest_tokens
    if newest is None:
        return Resolved(merged=0, overlap=0, late=tokens)
    return Resolved(merged=0, overlap=tokens - newest, late=newest)
