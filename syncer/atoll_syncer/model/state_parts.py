"""The parts of a shard's State; model/state says which module of the rules writes each."""

from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.length import Length
from atoll_protos.names import COUNTER_MAX
from atoll_syncer.model.log import Taken, Uptime
from atoll_syncer.model.roster import Certificate, Session, Slot
from atoll_syncer.model.round import Round, Timings
from atoll_syncer.model.training import Training

NEVER: Final = float("-inf")


@dataclass(slots=True, kw_only=True)
class Run:
    """Which run this is, and what others have said about it (rules 1 and 2).

    `fresh`: no process can hold a run of this job yet, or the registrar has minted one. `key` is
    that of a registrar whose log has none; elsewhere it is the registrar's.
    """

    fresh: bool
    new_id: str
    key: str = field(repr=False)
    started_at: float
    hello_sent_at: float = NEVER  # of the last Hello to the registrar
    # run: slots whose learners hold it, as they say, with their highest incarnations
    named: dict[str, dict[str, Taken]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)  # of those, with a version above 0
    shards_seen: set[int] = field(default_factory=set)  # at the registrar: they said Hello
    stored: dict[int, pb.HelloRequest] = field(default_factory=dict)  # of shards that hold a run
    words: dict[str, int] = field(
        default_factory=dict
    )  # slot: its last SetOwner, maybe not durable
    heard: set[str] = field(default_factory=set)
    heard_at: float | None = None
    ticks: dict[int, int] = field(default_factory=dict)  # that other shards have said in Hello
    registrar_incomplete: bool = False  # it has lost entries, as it says itself
    beginning: str = ""  # a run whose checkpoint is being looked at


@dataclass(slots=True, kw_only=True)
class ShardTerm:
    """No session is welcomed and no version committed before its record is `durable` (rule 20)."""

    epoch: int
    durable: bool = False
    raised_by: set[str] = field(default_factory=set)  # slots whose Join has begun a higher one


@dataclass(slots=True, kw_only=True)
class OpenSessions:
    """Who is connected, and what is known of each slot (rules 3 to 7)."""

    open: dict[int, Session] = field(default_factory=dict)
    early: dict[int, tuple[pb.Join, Certificate]] = field(default_factory=dict)  # no run is known
    founders: set[str] = field(default_factory=set)  # slots that were welcomed at tick 0
    refused: set[str] = field(default_factory=set)  # slots whose newest learner cannot take part
    slots: dict[str, Slot] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    pending: dict[str, int] = field(default_factory=dict)  # slot: session; its entry is on its way
    welcomed_in: dict[str, int] = field(default_factory=dict)  # instance: epoch of that term
    evaluation: pb.Evaluation | None = None  # the newest that an observer has sent
    zombies_refused: int = 0
    uptime: Uptime
    looked_at: float  # when the uptime was counted last
    tokens: int  # trained by all slots, each once, over reconnects and restarts (rule 35)

    @property
    def counted(self) -> int:
        """The tokens as messages and entries have them: many slots' counts may fit no field."""
        return min(self.tokens, COUNTER_MAX)

    @property
    def welcomed(self) -> list[int]:
        return [number for number, each in sorted(self.open.items()) if each.welcomed]


@dataclass(slots=True, kw_only=True)
class ShutOut:
    """Since when the grace runs of who is not on the job's list (rule 41)."""

    unlisted: dict[str, float] = field(default_factory=dict)  # slots that were on the list before
    newcomers: dict[str, float] = field(default_factory=dict)  # regions: of their other slots


@dataclass(slots=True, kw_only=True)
class Seed:
    """How the values of this shard begin (rule 1)."""

    models: dict[str, pb.Model] = field(default_factory=dict)  # of open sessions, by layout digest
    marked: bool = False
    registrar_says_unmarked: bool = False
    kept_back: bool = False
    session: int | None = None  # from which version 0 comes
    asked_at: float | None = None  # when the shard first looked whether it comes
    slot: str = ""  # of that session
    frozen_digest: str = ""  # that its Join named
    arrived: set[int] = field(default_factory=set)  # slices of it that are whole
    refused: str = ""  # why the newest model that was laid out could not be taken


@dataclass(slots=True, kw_only=True)
class CompanionTransfer:
    """A companion on its way to the registrar, which asks one learner after the other (rule 36)."""

    session: int | None = None  # that was asked for the whole one
    objects: tuple[str, ...] = ()  # its parts that are stored
    is_logged: bool = False  # its entry is on its way
    changed_asked: set[int] = field(default_factory=set)  # sessions, for what training has changed
    is_changed_logged: bool = False
    awaited_since: float | None = None  # by the export
    given_up: bool = False  # the export waits no longer


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOffers:
    """Why the newest offer of a slot was not taken, and how many in a row were not."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeShare:
    """What a slot gave to the last merge that had it; the share is that of the weight."""

    share: float
    tokens_per_step: float
    over_half: int  # merges of three or more learners in a row in which it had over half


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Attempts to merge, and what they have taught (rules 9 to 15)."""

    open: dict[int, Round] = field(default_factory=dict)  # by slice; merging ones included
    starts: dict[int, int]  # slice: due tick of its last start
    timings: Timings = field(default_factory=Timings)
    finished: set[int] = field(default_factory=set)  # slices that had their last round
    refused: dict[str, RefusedOffers] = field(default_factory=dict)  # until its next good offer
    shares: dict[str, MergeShare] = field(default_factory=dict)  # by slot
    above: dict[str, float] = field(default_factory=dict)  # slot: tokens a step that it may not say
    seen: tuple[frozenset[str], int] | None = None  # who trained, and the tick, at the last look


@dataclass(slots=True, kw_only=True)
class UnreadSlices:
    """What this process has yet to read from the store (rule 45)."""

    unread: set[int]  # slices: their newest version is known from the log, its values are not here


@dataclass(slots=True, kw_only=True)
class DataStates:
    """What learners' scripts keep with the cursors of the history (rule 28)."""

    kept: dict[str, bytes] = field(default_factory=dict)  # by slot


@dataclass(slots=True, kw_only=True)
class Ending:
    """How far the job's end has come here (rule 27). `began_at` is infinite once it is logged.

    `put_off`: it had begun when a longer length was heard, so a last version is so no more.
    """

    length: Length
    put_off: bool = False
    began_at: float | None = None
    part_reported: bool = False  # the registrar has taken this shard's part of the export
    index_requested: bool = False
    complete: bool = False  # the job
