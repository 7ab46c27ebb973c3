"""One slice as a learner has it: base, counters, captures, and the law of rule 13."""

from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What the capture region holds, and at which boundary it was copied."""

    boundary: int
    steps: int
    tokens: int
    t_m: int
    cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The tokens since the old base, told apart at an adoption (rule 13)."""

    merged: int
    overlap: int
    late: int


@dataclass(slots=True, kw_only=True)
class SliceState:
    """Counted since the base was adopted. `offers` are captures sent on it: steps -> tokens."""

    shard: int
    fragment: int
    held: pb.Version | None = None
    steps: int = 0
    tokens: int = 0
    call: int | None = None  # base number of an unanswered Call
    mark: Mark | None = None
    offers: dict[int, int] = field(default_factory=dict)
    adopting: pb.Publish | None = None
    waiting: pb.Publish | None = None  # arrived while another is being adopted
    capturing: bool = False
    awaits_at: int | None = None  # lock-step: position at which step() waits for a Publish

    @property
    def key(self) -> tuple[int, int]:
        """(shard, fragment)."""
        return self.shard, self.fragment

    @property
    def number(self) -> int:
        """Of the version held; -1 before the first."""
        return -1 if self.held is None else self.held.number

    def resolve(self, merged: pb.Merged | None, incarnation: int) -> Resolved:
        """What became of the tokens since the held base, as a newer version takes its place."""
        if (
            merged is not None
            and (merged.incarnation, merged.base) == (incarnation, self.number)
            and merged.capture in self.offers
        ):
            tokens = self.offers[merged.capture]
            return Resolved(merged=tokens, overlap=self.tokens - tokens, late=0)
        if self.offers:
            late = self.offers[max(self.offers)]
            return Resolved(merged=0, overlap=self.tokens - late, late=late)
        return Resolved(merged=0, overlap=0, late=self.tokens)

    def adopt(self, version: pb.Version) -> None:
        """A new base: counters and everything that named the old one start afresh."""
        assert self.held is None or version.number > self.held.number, "rule 21"
        self.held, self.adopting = version, None
        self.steps = self.tokens = 0
        self.call, self.mark, self.offers, self.awaits_at = None, None, {}, None
