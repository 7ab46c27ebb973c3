"""The entries of a shard's durable log (rule 19): what is not in an entry has not happened.

Tensors lie in objects that entries name. Logs outlive programs: kinds and field names never change,
new fields have defaults, and an older program ignores fields that it does not know.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast, get_args

from atoll_protos import documents
from atoll_protos.names import COUNTER_MAX
from atoll_protos.transfer.arrays import Array, Base

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One learner's part in a commit: which offer of it was merged.

    `capture` is its step count at the offer, `base` the version that the offer is a difference to,
    `cursor` the slot's place in its data, `weight` tokens^2 / steps.
    """

    slot: str
    incarnation: int
    capture: int
    base: int
    steps: int
    tokens: int
    cursor: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The newest offer of a slot that a version holds, and the slot's largest cursor (rule 13)."""

    slot: str
    incarnation: int
    base: int
    capture: int
    cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What tokens have become, each counted for every slice of the shard that it has trained."""

    merged: int = 0
    overlap: int = 0
    late: int = 0

    @property
    def total(self) -> int:
        return self.merged + self.overlap + self.late

    def also(self, other: "Settled") -> "Settled":
        return Settled(
            merged=max(self.merged, other.merged),
            overlap=max(self.overlap, other.overlap),
            late=max(self.late, other.late),
        )

    def plus(self, other: "Settled") -> "Settled":
        return Settled(
            merged=min(self.merged + other.merged, COUNTER_MAX),
            overlap=min(self.overlap + other.overlap, COUNTER_MAX),
            late=min(self.late + other.late, COUNTER_MAX),
        )


NOTHING_SETTLED: Final = Settled()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a slot has trained, in tokens (rule 35), and what they have become (rule 13).

    `incarnation` is the newest that counts; `before` earlier ones have trained, `now` counts of its
    own, and `said` is the same as its reports say, which may be more (rule 41). `parent` of those
    `before` are of the run whose checkpoint this one began with.
    """

    incarnation: int = 0
    before: int = 0
    now: int = 0
    said: int = 0
    settled: Settled = NOTHING_SETTLED  # of `now`
    settled_before: Settled = NOTHING_SETTLED  # of `before`
    parent: int = 0

    @property
    def total(self) -> int:
        return min(self.before + self.now, COUNTER_MAX)

    def also(self, other: "Trained") -> "Trained":
        """Return what both know together. Each may lack some of what the slot has trained."""
        if self.incarnation == other.incarnation:
            return Trained(
                incarnation=self.incarnation,
                before=max(self.before, other.before),
                now=max(self.now, other.now),
                said=max(self.said, other.said),
                settled=self.settled.also(other.settled),
                settled_before=self.settled_before.also(other.settled_before),
                parent=max(self.parent, other.parent),
            )
        older, newer = sorted((self, other), key=lambda each: each.incarnation)
        settled = older.settled_before.plus(older.settled)
        return dataclasses.replace(
            newer,
            before=max(newer.before, older.total),
            settled_before=newer.settled_before.also(settled),
            parent=max(newer.parent, older.parent),
        )

    def merges(self, incarnation: int, tokens: int) -> "Trained":
        """Note that a commit has taken in an offer of this incarnation."""
        known, more = self.also(Trained(incarnation=incarnation)), Settled(merged=tokens)
        if incarnation < known.incarnation:
            return dataclasses.replace(known, settled_before=known.settled_before.plus(more))
        return dataclasses.replace(known, settled=known.settled.plus(more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uptime:
    """Seconds since a learner trained for the first time, and those in which one trained.

    The shard counts what it has seen: not the time in which none of its processes was there.
    """

    seconds: float = 0.0
    training_seconds: float = 0.0

    def also(self, other: "Uptime") -> "Uptime":
        return max(self, other, key=lambda each: each.seconds)


NO_TIME: Final = Uptime()


@dataclass(frozen=True, slots=True, kw_only=True)
class TermBegun:
    """One process takes the shard over, with an epoch above every other (rule 20)."""

    epoch: int
    pod: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The registrar starts a run, or another shard has learned of it (rule 1).

    `carried_on`: an earlier registrar's log is lost, and others held the run (rule 2). `key` is
    the registrar's, by which shards check proofs (rule 5). A run that begins with the checkpoint of
    another one, its `parent`, has what it brings: `tick` and, by slot, places in the data, the
    objects with data states, and what was trained (rule 43).
    """

    run: str
    carried_on: bool = False
    run_hash: str = ""
    key: str = field(default="", repr=False)
    checkpoint: str = ""  # its URL
    parent: str = ""
    tick: int = 0
    cursors: Mapping[str, int] = field(default_factory=dict)
    data_states: Mapping[str, str] = field(default_factory=dict)
    trained: Mapping[str, Trained] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A higher incarnation of a slot; at the registrar also its admission (rules 4, 5).

    `uid` is the pod's, `instance` the process start's; `tokens` earlier instances have trained,
    which have become what is `settled`.
    """

    slot: str
    incarnation: int
    uid: str
    instance: str
    tokens: int = 0
    settled: Settled = NOTHING_SETTLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The pod that owns a slot, by the operator; an empty uid: none (rule 4)."""

    slot: str
    uid: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The registrar marks a shard begun (rule 1)."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """Version 0 of all slices, and the model's tensors, from which the layout follows."""

    tensors: tuple[Mapping[str, Any], ...]  # name, shape, dtype and merge rule of each
    layout_digest: str
    epoch: int
    digests: tuple[str, ...]  # of the bases, by fragment
    objects: tuple[str, ...]  # by fragment
    frozen_digest: str = ""  # at the registrar: of what does not travel and must be equal
    slot: str = ""  # whose learner sent it, and with it the model
    due: tuple[int, ...] = ()  # by fragment: the newest due tick, if they are of a checkpoint
    merges: tuple[int, ...] = ()  # likewise, that the momentum has taken in

    def __post_init__(self) -> None:
        counts = {len(self.digests), len(self.objects)}
        counts |= {len(each) for each in (self.due, self.merges) if each}
        if len(counts) > 1:
            raise ValueError(f"a Seeded of {sorted(counts)} slices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One version of a slice.

    A recovered one has no participants and zero momentum; its `base` is the number under which a
    learner held its value, whose lineage it has (rule 22). `tokens` are those of the whole job as
    far as this shard knew; `trained` has the counts that the log did not have yet.
    """

    slice: int
    number: int  # of the version; counts the commits of the slice
    epoch: int  # of the term that committed it
    digest: str  # sha256 of the base's bytes, hexadecimal
    object: str  # name of the object with master and momentum
    base: int  # number of the version that the offers are differences to
    tick: int  # of the shard's clock at the commit
    due: int  # tick for which the round was due
    reason: str  # why the round closed
    last: bool  # the slice's last round: the version is final
    recovered: bool  # taken back from a learner
    participants: tuple[Participant, ...]
    lineage: tuple[Merged, ...] = ()
    tensors: tuple[Mapping[str, Any], ...] = ()  # of a recovered store's first entry
    layout_digest: str = ""
    data_states: Mapping[str, str] = field(default_factory=dict)
    momentum: float = 0.0
    merges: int = 0
    tokens: int = 0
    trained: Mapping[str, Trained] = field(default_factory=dict)
    uptime: Uptime = NO_TIME

    def __post_init__(self) -> None:
        check_order(self.participants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What slots have trained since the log said so last; the process was told to stop."""

    trained: Mapping[str, Trained]
    uptime: Uptime = NO_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Every slice of this shard has had its last round (rule 27)."""

    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFinal:
    """The registrar knows a shard's part of the export: its file and the file's sha256."""

    shard: int
    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The job is over: Complete or Failed (registrar)."""

    result: str
    reason: str


Entry = (
    TermBegun
    | RunStarted
    | Taken
    | Owned
    | Begun
    | Seeded
    | Committed
    | Counted
    | Ended
    | ShardFinal
    | Closed
)
KINDS: Final[Mapping[str, Any]] = {each.__name__: each for each in get_args(Entry)}


def check_order(participants: Iterable[Participant]) -> None:
    """Raise ValueError: they are not in the order of their slots, or one comes twice (rule 12)."""
    slots = [each.slot for each in participants]
    if slots != sorted(set(slots)):
        raise ValueError(f"a merge of {', '.join(slots)}, which are not in order, each once")


def of_fields(kind: type[T], source: Any) -> T:
    """Return a value of this class from what has fields of the same names, such as a message."""
    of: Any = kind
    hints: dict[str, Any] = documents.hints_of(of)
    found = {name: getattr(source, name) for name in hints}
    for name, hint in hints.items():
        if dataclasses.is_dataclass(hint):
            found[name] = of_fields(cast("type[Any]", hint), found[name])
    return kind(**found)


def to_document(entry: Entry) -> dict[str, Any]:
    return {"kind": type(entry).__name__, **documents.to_document(entry)}


def from_document(document: Mapping[str, Any]) -> Entry:
    entry: Entry = documents.from_document(KINDS[document["kind"]], document)
    return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """`url` names it alone. Mappings are by slot; `data_states` are objects of this shard's store.

    `kept` are the data states themselves.
    """

    url: str
    run: str
    tick: int
    cursors: Mapping[str, int]
    trained: Mapping[str, Trained]
    data_states: Mapping[str, str]
    kept: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTensors:
    """A commit writes to master and momentum, never to `base`, the published value (rule 16)."""

    master: Array  # f32[n]
    momentum: Array  # f32[n]
    base: Base


def round_master(master: Array, base: Base) -> None:
    """Fill a base that is not the sum of differences: the master f32[n] in the base's types."""
    base.exact[:], base.coded[:] = master[: base.form.exact], master[base.form.exact :]
