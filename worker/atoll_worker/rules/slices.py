"""One slice as a learner has it: the base held, what was done on it, what is on its way."""

from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.rules.counters import Offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What the capture region holds, and at which boundary it was copied."""

    boundary: int
    steps: int
    tokens: int
    position: int
    cursor: int


@dataclass(slots=True, kw_only=True)
class SliceState:
    """Steps and tokens are counted since the base was adopted."""

    shard: int
    fragment: int
    held: pb.Version | None = None
    lineage: tuple[pb.SlotMerged, ...] = ()  # what the version held has of every slot
    disowned: bool = False  # its number belongs to another value now (rule 22)
    steps: int = 0
    tokens: int = 0
    call: int | None = None  # base number of an unanswered Call
    mark: Mark | None = None
    offered: Offered = field(default_factory=Offered)
    adopting: pb.Publish | None = None  # an Adopt is outstanding
    waiting: pb.Publish | None = None  # the newest that arrived meanwhile
    capturing: bool = False  # a Capture is outstanding
    awaits_at: int | None = None  # lock-step: position at which step() waits for a Publish

    @property
    def key(self) -> tuple[int, int]:
        """(shard, fragment)."""
        return self.shard, self.fragment

    @property
    def number(self) -> int:
        """Of the version held; -1 before the first."""
        return -1 if self.held is None else self.held.number

    @property
    def order(self) -> tuple[int, int]:
        """(number, epoch) of the version held."""
        return (-1, 0) if self.held is None else order(self.held)

    def count(self, tokens: int) -> None:
        """One more step."""
        self.steps += 1
        self.tokens += tokens

    def adopt(self, publish: pb.Publish) -> None:
        """A new base: counters and everything that named the old one start afresh."""
        version = publish.version.version
        assert order(version) > self.order, "rule 21: the number orders versions"
        self.held, self.adopting, self.disowned = version, None, False
        self.lineage = tuple(publish.lineage)
        self.steps = self.tokens = 0
        self.call = self.mark = self.awaits_at = None
        self.offered = Offered()


def order(version: pb.Version) -> tuple[int, int]:
    """What orders versions: the number; after a loss (rule 22) the epoch tells two apart."""
    return version.number, version.epoch
