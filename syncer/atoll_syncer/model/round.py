"""One attempt to merge one slice, and the decision to close it (rules 10 to 12, 27).

A round is open until `decide` says close, and merging from then until its version is durable.
`decide` is a function of the round, the slots whose offers may still come, K and the time. A
round with fewer than K offers never closes, however long it takes: a deadline set by the
survivors alone would never let a slow link in.
"""

from collections.abc import Set
from dataclasses import dataclass, field

from atoll_syncer.model.log import Participant


@dataclass(slots=True, kw_only=True)
class Round:
    """A round that is open, or closed and being merged. Times are monotonic seconds."""

    slice: int
    due: int  # tick
    base: int  # number of the version that offers are differences to
    opened_at: float
    called: dict[str, float] = field(default_factory=dict)  # slot: when
    complete: dict[str, Participant] = field(default_factory=dict)  # slot: its newest offer
    complete_at: dict[str, float] = field(default_factory=dict)  # slot: when its first one was
    data_states: dict[str, bytes] = field(default_factory=dict)  # slot: of its offer in `complete`
    quorum_at: float | None = None  # when the K-th offer was complete
    grace_seconds: float = 0.0  # counted from `quorum_at`
    last: bool = False
    deadline: float | None = None  # of a last round
    closed_at: float | None = None  # None while it is open
    reason: str = ""  # why it closed
    momentum: float = 0.0  # of its outer step, once it is closed
    not_finite: set[str] = field(default_factory=set)  # slots whose offers could not be merged
    refused: set[str] = field(default_factory=set)  # slots without which the round does
    waits_for: list[str] = field(default_factory=list)  # some slots, as they were at the last look

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The complete offers in slot order: a replay gives the same bits (rule 12)."""
        return tuple(self.complete[slot] for slot in sorted(self.complete))

    def add(self, offer: Participant, now: float, data_state: bytes | None = None) -> None:
        """A complete offer, with the data state of its cursor."""
        complete_at = self.complete_at.get(offer.slot, now)
        self.remove(offer.slot)
        self.complete[offer.slot], self.complete_at[offer.slot] = offer, complete_at
        if data_state is not None:
            self.data_states[offer.slot] = data_state

    def note_quorum(self, quorum: int, grace_seconds: float, now: float) -> None:
        """The K-th offer starts the grace; K may also fall, when a learner is lost."""
        if self.quorum_at is None and len(self.complete) >= quorum:
            self.quorum_at, self.grace_seconds = now, grace_seconds

    def is_over(self, now: float) -> bool:
        """Whether the time has come from which no missing offer holds it open."""
        if self.last:
            return self.deadline is not None and now >= self.deadline
        return self.quorum_at is not None and now >= self.quorum_at + self.grace_seconds

    def remove(self, slot: str) -> Participant | None:
        """Forget the offer of a slot; returns it."""
        self.complete_at.pop(slot, None)
        self.data_states.pop(slot, None)
        return self.complete.pop(slot, None)

    def count_grace_again(self, quorum: int) -> None:
        """An offer was removed: the grace counts from the K-th of those that stay."""
        if self.quorum_at is not None and len(self.complete_at) >= quorum:
            self.quorum_at = max(self.quorum_at, sorted(self.complete_at.values())[quorum - 1])


@dataclass(frozen=True, slots=True)
class RoundDecision:
    """Whether a round closes now, and why."""

    close: bool
    reason: str


def decide(round_: Round, *, awaited: Set[str], quorum: int, now: float) -> RoundDecision:
    """Rule 11: all awaited are complete, or K are and the grace has passed since the K-th.

    `awaited` are those whose offers may still come and count: called, Training, not TooSlow.
    A last round closes with what is complete, once no offer is awaited or at its deadline.
    """
    missing = sorted(awaited - round_.complete.keys())
    if round_.last:
        if not missing:
            return RoundDecision(True, "last round: all complete")
        assert round_.deadline is not None, "a last round has a deadline"
        if now >= round_.deadline:
            return RoundDecision(True, f"last round: deadline, without {', '.join(missing)}")
        return RoundDecision(False, f"last round waits for {', '.join(missing)}")
    if len(round_.complete) < quorum:
        return RoundDecision(False, f"{len(round_.complete)} of {quorum} for the quorum")
    if not missing:
        return RoundDecision(True, "all complete")
    assert round_.quorum_at is not None, "the K-th offer was noted"
    if now >= round_.quorum_at + round_.grace_seconds:
        return RoundDecision(True, f"grace over, without {', '.join(missing)}")
    return RoundDecision(False, f"grace, waits for {', '.join(missing)}")


def weight(steps: int, tokens: int) -> float:
    """w = tokens^2 / steps: quantity times quality (2604.21428; docs/algorithm.md)."""
    return tokens * tokens / steps
