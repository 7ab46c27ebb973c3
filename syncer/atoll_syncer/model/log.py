"""The entries of a shard's durable log (rule 19).

The log is the only durable truth of a shard. Everything that outlives a process is one of the
entries below, in an order that never changes; an entry that exists counts, and what is not in an
entry has not happened. Tensors lie in objects, and an entry names them.

A file of the log is the document of one entry, with its `kind` and the fields of its class.
Logs outlive programs: kinds and field names never change, new fields have defaults, and an older
program ignores fields that it does not know.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atoll_protos.names import COUNTER_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One learner's part in a commit: which offer of it was merged.

    `capture` is the learner's step count at which the offer was taken, `base` the version number
    that it is a difference to, `cursor` the slot's place in its data, `weight` tokens^2 / steps.
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
    """The newest offer of a slot that a version holds, and the slot's largest cursor.

    A Publish names it to its receiver, which counts by it what was merged (rule 13).
    """

    slot: str
    incarnation: int
    base: int
    capture: int
    cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a slot has trained, in tokens (rule 35).

    `incarnation` is the newest one that counts, `before` what earlier ones have trained, `now` what
    counts of its own, `said` the same as its reports say, which may be more (rule 41).
    """

    incarnation: int = 0
    before: int = 0
    now: int = 0
    said: int = 0

    @property
    def total(self) -> int:
        """Tokens over all incarnations."""
        return min(self.before + self.now, COUNTER_MAX)

    def also(self, other: "Trained") -> "Trained":
        """What both know together. Each may lack some of what the slot has trained."""
        if self.incarnation == other.incarnation:
            before, now = max(self.before, other.before), max(self.now, other.now)
            said = max(self.said, other.said)
            return Trained(incarnation=self.incarnation, before=before, now=now, said=said)
        older, newer = sorted((self, other), key=lambda each: each.incarnation)
        return dataclasses.replace(newer, before=max(newer.before, older.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class TermBegun:
    """One process takes the shard over, with an epoch above every other (rule 20)."""

    epoch: int
    pod: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The registrar starts a run, or another shard has learned of it (rule 1).

    `carried_on`: an earlier registrar's log is lost, and others held the run (rule 2). `run_hash`
    is that of the run file; logs of earlier versions do not name it. `key` is the registrar's, by
    which shards check proofs of incarnations (rule 5).
    """

    run: str
    carried_on: bool = False
    run_hash: str = ""
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A higher incarnation of a slot; at the registrar also its admission (rules 4, 5).

    `uid` is the pod's, `instance` names the start of the process. `tokens` were trained by the
    slot's earlier instances, as far as this shard had reports.
    """

    slot: str
    incarnation: int
    uid: str
    instance: str
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The operator's word number `word`: the pod that owns a slot; an empty uid: none (rule 4)."""

    slot: str
    uid: str
    word: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """What an export needs beside the values that travel is stored (rule 36; registrar).

    `changed`: only what training has changed of it, as it is at the end.
    """

    objects: tuple[str, ...]  # the parts, in order
    byte_count: int
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One version of a slice.

    A recovered one has no participants and zero momentum; its `base` is the number under which a
    learner held its value, whose lineage it has (rule 22). `data_states` names, by slot, the object
    that holds the data state of a participant's cursor (rule 28). `momentum` is that of the outer
    step, and `merges` how many merges the momentum in the object has taken in. `tokens` are those
    that all learners of the job had trained, as far as this shard had reports, and `trained` has
    the counts, by slot, that the log did not have yet; after a loss, what the learner knew.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What slots have trained since the log said so last; the process was told to stop."""

    trained: Mapping[str, Trained]


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
    | Companion
    | Committed
    | Counted
    | Ended
    | ShardFinal
    | Closed
)
KINDS: Final[Mapping[str, Any]] = {
    "Reign": TermBegun,
    "RunStarted": RunStarted,
    "Taken": Taken,
    "Owned": Owned,
    "Begun": Begun,
    "Seeded": Seeded,
    "Companion": Companion,
    "Committed": Committed,
    "Counted": Counted,
    "Ended": Ended,
    "ShardFinal": ShardFinal,
    "Closed": Closed,
}  # the `kind` in the log's files: a name here never changes
KIND_NAMES: Final[Mapping[Any, str]] = {entry: name for name, entry in KINDS.items()}


def to_document(entry: Entry) -> dict[str, Any]:
    """The entry as plain JSON values, with its kind."""
    return {"kind": KIND_NAMES[type(entry)], **dataclasses.asdict(entry)}


def from_document(document: Mapping[str, Any]) -> Entry:
    """The entry that `to_document` described; raises KeyError or TypeError for anything else.

    Fields that this version does not know are ignored, so that an older one can read the log.
    """
    kind = KINDS[document["kind"]]
    names = {f.name for f in dataclasses.fields(kind)}
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in document.items()
        if name in names
    }
    if "participants" in fields:
        fields["participants"] = tuple(Participant(**p) for p in fields["participants"])
    if "lineage" in fields:
        fields["lineage"] = tuple(Merged(**each) for each in fields["lineage"])
    if "trained" in fields:
        counts = document["trained"].items()
        fields["trained"] = {slot: Trained(**each) for slot, each in counts}
    entry: Entry = kind(**fields)
    return entry
