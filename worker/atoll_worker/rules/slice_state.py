"""One slice as a learner has it: its base, the work done on it, and what became of the tokens.

When a newer version is adopted, every token that was trained on the old base has had exactly one of
three fates (rule 13): tokens since the old base = merged + overlap + late.

    |--- trained, then captured and offered ---|--- trained while the offer was under way ---|
    adoption of the base                    capture                    adoption of the next version
             merged in a commit, or late                          overlap

The Publish says which capture of this learner was merged last (incarnation, base, capture): it may
have been called twice on one base, or may have missed a version in between.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb

CAPTURES_KEPT: Final = 1024  # on one base; each needs a Call, so more means endless reconnecting


@dataclass(slots=True)
class Offered:
    """The captures offered on the base that is held: capture (a step count) -> tokens."""

    captures: dict[int, int] = field(default_factory=dict)
    repeated: Counter[int] = field(default_factory=Counter)  # how often again, in other sessions

    def add(self, steps: int, tokens: int) -> None:
        """The same capture may be offered again in another session."""
        self.repeated[steps] += steps in self.captures
        self.captures[steps] = tokens
        if len(self.captures) > CAPTURES_KEPT:
            del self.captures[min(self.captures)]

    def take_back(self, steps: int) -> None:
        if self.repeated[steps]:
            self.repeated[steps] -= 1
        else:
            self.captures.pop(steps, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What the capture region of a slice holds: the counters of the boundary it was copied at."""

    boundary: int
    steps: int  # on the base
    tokens: int  # on the base
    position: int
    cursor: int
    data_state: bytes | None  # that belongs to the cursor; None where the script gave none


@dataclass(slots=True, kw_only=True)
class SliceState:
    """One slice. `steps` and `tokens` are counted since the base was adopted."""

    shard: int
    fragment: int
    held: pb.Version | None = None  # the base
    lineage: tuple[pb.SlotMerged, ...] = ()  # which offer of every slot the base contains last
    orphaned: bool = False  # its shard lost this version; the number names another value (rule 22)
    steps: int = 0
    tokens: int = 0
    call: int | None = None  # number of the base that an unanswered Call names
    captured: Captured | None = None
    capturing: bool = False  # a Capture is outstanding
    offered: Offered = field(default_factory=Offered)
    adopting: pb.Publish | None = None  # an Adopt is outstanding
    waiting: pb.Publish | None = None  # the newest that has arrived meanwhile
    awaited_from: int | None = None  # lock-step: position from which step() waits for a Publish

    @property
    def key(self) -> tuple[int, int]:
        return self.shard, self.fragment

    @property
    def number(self) -> int:
        return -1 if self.held is None else self.held.number

    @property
    def order(self) -> tuple[int, int]:
        return (-1, 0) if self.held is None else order(self.held)

    def count(self, tokens: int) -> None:
        self.steps += 1
        self.tokens += tokens

    def adopt(self, publish: pb.Publish) -> None:
        version = publish.version.version
        assert order(version) > self.order, "a version replaces lower ones only"
        self.held, self.adopting, self.orphaned = version, None, False
        self.lineage = tuple(publish.lineage)
        self.steps = self.tokens = 0
        self.call = self.captured = self.awaited_from = None
        self.offered = Offered()


def order(version: pb.Version) -> tuple[int, int]:
    """The number, and the epoch where a loss has made a number twice."""
    return version.number, version.epoch


def outcome(each: SliceState, merged: pb.Merged, incarnation: int) -> dict[str, int]:
    """`merged` is the slot's last merged offer; it decides about its own base and incarnation."""
    captures, tokens = each.offered.captures, each.tokens
    if (merged.incarnation, merged.base) == (incarnation, each.number):
        captured = captures.get(merged.capture)
        if captured is not None:
            return {"merged": captured, "overlap": tokens - captured, "late": 0}
    late = captures[max(captures)] if captures else tokens
    return {"merged": 0, "overlap": tokens - late, "late": late}
