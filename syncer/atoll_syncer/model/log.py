"""The entries of a shard's durable log, and the history that they add up to (rule 19).

The log is the only durable truth of a shard. Everything that outlives a process is one of the
entries below, in an order that never changes; an entry that exists counts, and what is not in an
entry has not happened. Tensors lie in objects, and an entry names them.

`History.apply` takes entries one by one, after a start as well as while the shard runs, so both
ways give the same history. It asserts what must hold of every log: epochs, incarnations and
version numbers only grow, a shard is seeded once, and a version follows its head.

A file of the log is the document of one entry, with its `kind` and the fields of its class.
Logs outlive programs: kinds and field names never change, new fields have defaults, and an older
program ignores fields that it does not know.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


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
class TermBegun:
    """One process takes the shard over, with an epoch above every other (rule 20)."""

    epoch: int
    pod: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The registrar starts a run, or another shard has learned of it (rule 1).

    `carried_on`: an earlier registrar's log is lost, and others held the run (rule 2). `run_hash`
    is that of the run file; logs of earlier versions do not name it.
    """

    run: str
    carried_on: bool = False
    run_hash: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One version of a slice.

    A recovered one has no participants and zero momentum; its `base` is the number under which a
    learner held its value, whose lineage it has (rule 22).
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
    "Committed": Committed,
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
    entry: Entry = kind(**fields)
    return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest version of a slice."""

    number: int
    epoch: int
    digest: str
    object: str
    last: bool = False


@dataclass(slots=True, kw_only=True)
class History:
    """What the entries of one log add up to; `apply` takes the next one.

    Dictionaries are by slot, by slice (`heads`, `previous`, `due`) or by shard (`begun`,
    `finals`).
    """

    run: str = ""
    run_hash: str = ""  # of the run file under which the run started; empty in older logs
    epoch: int = 0  # of the newest term
    instance: str = ""  # the process that has it
    taken: dict[str, Taken] = field(default_factory=dict)
    superseded: dict[str, list[str]] = field(default_factory=dict)  # slot: earlier instances
    superseded_uids: dict[str, set[str]] = field(default_factory=dict)  # slot: of earlier pods
    owned: dict[str, Owned] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    tensors: tuple[Mapping[str, Any], ...] = ()
    layout_digest: str = ""
    heads: dict[int, Head] = field(default_factory=dict)  # by slice: the newest version
    previous: dict[int, Head] = field(default_factory=dict)  # by slice: the version before it
    merged: dict[tuple[int, str], Merged] = field(default_factory=dict)  # by slice and slot
    tokens: dict[str, int] = field(default_factory=dict)  # slot: of its earlier instances
    cursors: dict[str, int] = field(default_factory=dict)  # slot: largest place in its data
    named: dict[str, int] = field(default_factory=dict)  # slot: highest incarnation in a version
    due: dict[int, int] = field(default_factory=dict)  # by slice: due tick of its newest version
    tick: int = 0  # the largest in any entry
    commits: int = 0
    recovered: int = 0  # of the commits, versions taken back from learners
    incomplete: bool = False  # earlier entries are lost: it does not name all that they said
    ended: bool = False
    finals: dict[int, ShardFinal] = field(default_factory=dict)
    closed: Closed | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "History":
        """The history of a whole log."""
        history = cls()
        for entry in entries:
            history.apply(entry)
        return history

    def apply(self, entry: Entry) -> None:
        """Take the log's next entry."""
        match entry:
            case TermBegun():
                assert entry.epoch > self.epoch, "epochs only grow"
                # A second term of one process: a learner had seen a term that is not in this log.
                self.incomplete |= entry.instance == self.instance
                self.epoch, self.instance = entry.epoch, entry.instance
            case RunStarted():
                self.run, self.run_hash = entry.run, entry.run_hash
                self.incomplete |= entry.carried_on
            case Taken():
                self._take(entry)
            case Owned():
                self.owned[entry.slot] = entry
            case Begun():
                self.begun.add(entry.shard)
            case Seeded():
                self._seed(entry)
            case Committed():
                self._commit(entry)
            case Ended():
                self.ended = True
                self.tick = max(self.tick, entry.tick)
            case ShardFinal():
                self.finals[entry.shard] = entry
            case Closed():
                self.closed = entry

    def live_objects(self) -> set[str]:
        """Objects of the newest two versions of each slice; others may be collected."""
        return {head.object for heads in (self.heads, self.previous) for head in heads.values()}

    def _take(self, entry: Taken) -> None:
        """The instance that had the slot is superseded for good."""
        before = self.taken.get(entry.slot)
        assert before is None or entry.incarnation > before.incarnation, "incarnations only grow"
        if before is not None:
            self.superseded.setdefault(entry.slot, []).append(before.instance)
            uids = self.superseded_uids.setdefault(entry.slot, set())
            if before.uid:
                uids.add(before.uid)
            uids.discard(entry.uid)  # the same pod, or an operator's word has lifted the refusal
        self.taken[entry.slot] = entry
        self.tokens[entry.slot] = max(self.tokens.get(entry.slot, 0), entry.tokens)

    def _seed(self, entry: Seeded) -> None:
        """Every slice has version 0, and the layout is known."""
        assert not self.heads, "a shard is seeded once"
        self.tensors, self.layout_digest = entry.tensors, entry.layout_digest
        for number, (digest, name) in enumerate(zip(entry.digests, entry.objects, strict=True)):
            self.heads[number] = Head(number=0, epoch=entry.epoch, digest=digest, object=name)
            self.due[number] = 0

    def _commit(self, entry: Committed) -> None:
        """The version becomes the head, and its offers the newest merged ones of their slots."""
        head = self.heads.get(entry.slice)
        assert head is None or entry.number > head.number, "versions only grow"
        assert entry.recovered or (head is not None and entry.number == head.number + 1)
        if entry.tensors:
            self.tensors, self.layout_digest = entry.tensors, entry.layout_digest
        if head is not None:
            self.previous[entry.slice] = head
        self.heads[entry.slice] = Head(
            number=entry.number,
            epoch=entry.epoch,
            digest=entry.digest,
            object=entry.object,
            last=entry.last,
        )
        self.tick = max(self.tick, entry.tick)
        self.due[entry.slice] = max(self.due.get(entry.slice, 0), entry.due)
        self.commits += 1
        self.recovered += entry.recovered
        self.incomplete |= entry.recovered
        if entry.recovered:  # what another value held is not in this one
            self.merged = {k: each for k, each in self.merged.items() if k[0] != entry.slice}
        for each in entry.lineage:
            self._merge(entry.slice, each)
        for part in entry.participants:
            merged = Merged(
                slot=part.slot,
                incarnation=part.incarnation,
                base=part.base,
                capture=part.capture,
                cursor=part.cursor,
            )
            self._merge(entry.slice, merged)

    def lineage(self, fragment: int) -> list[Merged]:
        """What the head of a slice holds of every slot; cursors are the largest of any slice."""
        return [
            dataclasses.replace(each, cursor=self.cursors[slot])
            for (of, slot), each in sorted(self.merged.items())
            if of == fragment
        ]

    def _merge(self, fragment: int, each: Merged) -> None:
        self.merged[fragment, each.slot] = each
        self.named[each.slot] = max(self.named.get(each.slot, 0), each.incarnation)
        self.cursors[each.slot] = max(self.cursors.get(each.slot, 0), each.cursor)
