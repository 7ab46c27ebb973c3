"""Who takes a shard over, and when: for peace; what keeps it safe is the log (rule 20)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from atoll_syncer.model.log import Reign


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life of the reigning process: `count` grows with each.

    `learners` are the instances whose sessions it has; for peace, not for safety (rule 20).
    """

    pod: str
    instance: str
    epoch: int
    count: int
    learners: tuple[str, ...]


class Turn(Enum):
    """What a newcomer does now."""

    REIGN = "reign"
    WAIT = "wait"
    LEAVE = "leave"  # exit 77


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A newcomer's turn, and why."""

    turn: Turn
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a newcomer has seen; times by its own monotonic clock.

    `beat_seen_at` is when it first saw this heartbeat, or, without one, when it began to look.
    `knocks` has the learners' instances that knock here, and since when without a pause.
    """

    pod: str
    reigns: Sequence[Reign]  # all of the log
    beat: Heartbeat | None
    beat_seen_at: float
    knocks: Mapping[str, float]


def decide(view: View, *, patience_seconds: float, now: float) -> Decision:
    """Whether the newcomer begins a reign; it then must append its record to the log it read.

    At once when nobody has reigned or the last record is its own pod's; else when the heartbeat
    has stood still, or learners that it does not name have knocked, for `patience_seconds`.
    A pod whose record was followed by another pod's never reigns again.
    """
    if not view.reigns:
        return Decision(turn=Turn.REIGN, reason="nobody has reigned yet")
    last = view.reigns[-1]
    if last.pod == view.pod:
        return Decision(turn=Turn.REIGN, reason="the last reign was this pod's")
    if any(reign.pod == view.pod for reign in view.reigns):
        return Decision(turn=Turn.LEAVE, reason=f"pod {last.pod} has followed this pod")
    ends = {view.beat_seen_at + patience_seconds: f"no heartbeat of pod {last.pod}"}
    named = frozenset(view.beat.learners if view.beat is not None else ())
    for instance, since in sorted(view.knocks.items()):
        if instance not in named:
            ends.setdefault(since + patience_seconds, f"{instance} cannot reach pod {last.pod}")
    end = min(ends)
    if now >= end:
        reason = f"{ends[end]} for {patience_seconds:g} s"
        return Decision(turn=Turn.REIGN, reason=reason)
    return Decision(turn=Turn.WAIT, reason=f"pod {last.pod} reigns")
