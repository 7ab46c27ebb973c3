"""What a shard has lost, which learners hold it, and which one gives it back (rule 22)."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb

WAIT_SECONDS: Final = 30.0  # for every slot that is alive at the registrar to join
ANSWER_SECONDS: Final = 30.0  # for the first byte of what a learner was asked for
FAILURES_MAX: Final = 3  # damaged or unanswered
ENDS_MAX: Final = 10  # of sessions before the version came: a link may be bad, but not for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An admitted instance that says it holds a version of a slice."""

    session: int
    slot: str
    instance: str
    number: int
    epoch: int  # 0 when it is not known: the learner adopted the version after its Join


@dataclass(slots=True, kw_only=True)
class AskedHolder:
    """A version on its way from a learner to the store. Times are monotonic seconds."""

    holder: Holder
    at: float
    held: pb.Held | None = None  # what came
    storing: bool = False
    merges: int = 0  # in its momentum, which only the store has
    reason: str = ""  # where there is more to say than which version it is


@dataclass(slots=True, kw_only=True)
class Recovery:
    """What is lost, from the moment in which the shard learns of it until all is durable again."""

    began_at: float
    lost: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    alive: frozenset[str] | None = None  # slots at the registrar, as it said after `began_at`
    turned_away: set[str] = field(default_factory=set)  # slots that were told to dial again
    asked: dict[int, AskedHolder] = field(default_factory=dict)  # by slice
    empty: set[str] = field(default_factory=set)  # slots whose learner came, and holds nothing
    could_answer_at: float | None = None  # when the first learner came, or one was asked last
    damaged: set[int] = field(default_factory=set)  # slices whose version before the head is, too
    failed: str = ""  # why no learner can give back what is lost

    def awaited(self, session: int, fragment: int) -> AskedHolder | None:
        """What this session was asked for and has not given yet."""
        asked = self.asked.get(fragment)
        here = asked is not None and asked.holder.session == session and not asked.storing
        return asked if here else None


@dataclass(slots=True, kw_only=True)
class Failures:
    """How often in a row a slot's learner did not give what it had said it holds (rule 22).

    It outlives a recovery: else whoever claims what nobody holds would begin one after the other.
    """

    counts: dict[str, int] = field(default_factory=dict)  # by slot
    ends: dict[str, int] = field(default_factory=dict)  # by slot: sessions that ended meanwhile

    def are_too_many(self, slot: str) -> bool:
        return self.counts.get(slot, 0) >= FAILURES_MAX or self.ends.get(slot, 0) >= ENDS_MAX


def why_wait(recovery: Recovery, joined: Set[str], now: float) -> str:
    """Why no version is chosen yet; empty when it is time (rule 22)."""
    if now - recovery.began_at >= WAIT_SECONDS:
        return ""
    if recovery.alive is None:
        return "waits for the registrar to say which learners are alive"
    missing = sorted((recovery.alive | recovery.turned_away) - joined - recovery.empty)
    if missing:
        return f"waits for {', '.join(missing)}"
    return "" if joined else "waits for a learner"


def choose(holders: Iterable[Holder], failures: Failures) -> Holder | None:
    able = [h for h in holders if not failures.are_too_many(h.slot)]
    return max(able, key=lambda h: (h.number, h.epoch, -h.session), default=None)
