"""What the entries of a shard's log add up to (rule 19).

After entries that are damaged or gone (`lose`), `apply_after_loss` accepts that some of what an
entry follows is not known (rule 22). What they may have held is in two sets, which a slice leaves
with its next version:

- `suspect` are the slices of which a newer version may be lost. A learner may hold it.
- `torn` are those of them whose head is known while a version before it is not. Then it is not
  known which offers that head holds, and a learner that holds the head knows it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atoll_syncer.model.log import (
    NO_TIME,
    Begun,
    Closed,
    Committed,
    Counted,
    Ended,
    Entry,
    Merged,
    Owned,
    RunStarted,
    Seeded,
    ShardFinal,
    Taken,
    TermBegun,
    Trained,
    Uptime,
    of_fields,
)

NONE_TRAINED: Final = Trained()
ENTRIES_OF_A_TRAINED_LOG: Final = 3  # at least: Seeded, Begun, Committed


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadVersion:
    """A version of a slice. Its momentum has taken in `merges` merges.

    `tokens` are those that its own merge has taken in.
    """

    number: int
    epoch: int
    digest: str
    object: str
    last: bool = False
    merges: int = 0
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class History:
    """Dictionaries are by slot, by slice (`heads`, `previous...`, `due`) or by shard.

    A new field needs a default: snapshots outlive programs too (`documents`).
    """

    run: str = ""
    run_hash: str = ""  # of the run file under which the run started
    key: str = field(default="", repr=False)  # by which proofs of incarnations are checked
    checkpoint: str = ""  # URL of that with which the run began; empty: with a seed
    first_tick: int = 0  # at which it began
    epoch: int = 0  # of the newest term
    pod: str = ""  # that has it
    instance: str = ""  # the process that has it
    taken: dict[str, Taken] = field(default_factory=dict)
    superseded: dict[str, list[str]] = field(default_factory=dict)  # slot: earlier instances
    superseded_uids: dict[str, set[str]] = field(default_factory=dict)  # slot: of earlier pods
    owned: dict[str, Owned] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    tensors: tuple[Mapping[str, Any], ...] = ()
    layout_digest: str = ""
    model_from: str = ""  # slot whose learner brought it; empty: not known
    frozen_digest: str = ""  # of what must be equal beside it; empty: not known
    heads: dict[int, HeadVersion] = field(default_factory=dict)  # by slice: the newest version
    previous: dict[int, HeadVersion] = field(default_factory=dict)  # the version before it
    merged: dict[int, dict[str, Merged]] = field(default_factory=dict)  # by slice, by slot
    previous_merged: dict[int, dict[str, Merged]] = field(default_factory=dict)  # of `previous`
    trained: dict[str, Trained] = field(default_factory=dict)  # by slot
    cursors: dict[str, int] = field(default_factory=dict)  # slot: largest place in its data
    data_states: dict[str, str] = field(default_factory=dict)  # slot: object with its cursor's
    named: dict[str, int] = field(default_factory=dict)  # slot: highest incarnation in a version
    due: dict[int, int] = field(default_factory=dict)  # by slice: due tick of its newest version
    tick: int = 0  # the largest in any entry
    commits: int = 0
    merges: int = 0  # of the commits, those with offers
    merged_offers: int = 0  # in all of them
    uptime: Uptime = NO_TIME
    incomplete: bool = False  # earlier entries are lost: it does not name all that they said
    lost_entries: int = 0  # since the record of the newest term; each may have been a record
    lost_before_seed: int = 0  # entries that are lost while no version 0 is known
    suspect: set[int] = field(default_factory=set)  # slices; see the module
    torn: set[int] = field(default_factory=set)  # slices; see the module
    ended: bool = False
    finals: dict[int, ShardFinal] = field(default_factory=dict)
    closed: Closed | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "History":
        history = cls()
        for entry in entries:
            history.apply(entry)
        return history

    def copy(self) -> "History":
        copied = dataclasses.replace(self)
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, dict):
                kept = {k: v.copy() if hasattr(v, "copy") else v for k, v in value.items()}
                setattr(copied, each.name, kept)
            elif isinstance(value, set):
                setattr(copied, each.name, set(value))
        return copied

    def apply(self, entry: Entry) -> None:
        objection = self.objection(entry)
        assert not objection, objection
        self._apply(entry)

    def lose(self, count: int) -> None:
        """So many entries of the log are damaged or gone; the next one follows after them."""
        self.incomplete = True
        self.lost_entries += count
        if not self.heads:
            self.lost_before_seed += count
        self.suspect = set(self.heads)

    def apply_after_loss(self, entry: Entry, run: str, epoch: int) -> str:
        """Take one that was written under `run` and `epoch`; why it cannot be taken, if so."""
        self.run = self.run or run
        if not isinstance(entry, TermBegun):
            self.epoch = max(self.epoch, epoch)
        objection = self.objection(entry, after_loss=True)
        if objection:
            return objection
        torn = set(self.torn)
        if isinstance(entry, Committed) and entry.recovered:
            torn.discard(entry.slice)  # it names all offers that it holds
        elif isinstance(entry, Committed):
            head = self.heads.get(entry.slice)
            if head is None or entry.number > head.number + 1:
                torn.add(entry.slice)
        self._apply(entry)
        self.suspect, self.torn = set(self.heads), torn
        return ""

    def objection(self, entry: Entry, *, after_loss: bool = False) -> str:
        """Why this entry cannot be the next; with `after_loss` what it follows may be lost."""
        match entry:
            case TermBegun() if entry.epoch <= self.epoch:
                return f"epoch {entry.epoch} after {self.epoch}: epochs only grow"
            case Taken() if entry.slot in self.taken:
                highest = self.taken[entry.slot].incarnation
                if entry.incarnation <= highest:
                    return f"incarnation {entry.incarnation} after {highest}: they only grow"
            case Seeded() if self.heads:
                return "a shard is seeded once"
            case Committed():
                head = self.heads.get(entry.slice)
                if head is not None and entry.number <= head.number:
                    return f"version {entry.number} after {head.number}: versions only grow"
                if after_loss:
                    known = self.tensors or entry.tensors
                    return "" if known else "the entry with the model's layout is lost"
                if not entry.recovered and (head is None or entry.number != head.number + 1):
                    return f"version {entry.number} of slice {entry.slice} follows no version"
        return ""

    def _apply(self, entry: Entry) -> None:
        match entry:
            case TermBegun():
                self.incomplete |= entry.instance == self.instance  # a learner knew a lost term
                self.epoch, self.pod, self.instance = entry.epoch, entry.pod, entry.instance
                self.lost_entries = 0
            case RunStarted():
                self.run, self.run_hash, self.key = entry.run, entry.run_hash, entry.key
                self.incomplete |= entry.carried_on
                self._begin_with(entry)
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
            case Counted():
                self.uptime = self.uptime.also(entry.uptime)
                self._count(entry.trained)
            case Ended():
                self.ended = True
                self.tick = max(self.tick, entry.tick)
            case ShardFinal():
                self.finals[entry.shard] = entry
            case Closed():
                self.closed = entry

    @property
    def may_have_begun(self) -> bool:
        """Whether lost entries may have named version 0, a mark "begun" and a later version."""
        return self.lost_before_seed >= ENTRIES_OF_A_TRAINED_LOG

    def live_objects(self) -> set[str]:
        """Those of two versions of each slice and of data states; others may go."""
        versions = {each.object for of in (self.heads, self.previous) for each in of.values()}
        return versions.union(self.data_states.values())

    def _take(self, entry: Taken) -> None:
        before = self.taken.get(entry.slot)
        if before is not None:
            self.superseded.setdefault(entry.slot, []).append(before.instance)
            uids = self.superseded_uids.setdefault(entry.slot, set())
            if before.uid:
                uids.add(before.uid)
            uids.discard(entry.uid)  # the same pod, or an operator's word has lifted the refusal
        self.taken[entry.slot] = entry
        said = Trained(
            incarnation=entry.incarnation, before=entry.tokens, settled_before=entry.settled
        )
        self._count({entry.slot: said})

    def _begin_with(self, entry: RunStarted) -> None:
        """Take what a checkpoint has (rule 43)."""
        self.checkpoint, self.first_tick = entry.checkpoint, entry.tick
        self.tick = max(self.tick, entry.tick)
        self.cursors |= entry.cursors
        self.data_states |= entry.data_states
        self._count(entry.trained)

    def _seed(self, entry: Seeded) -> None:
        self.tensors, self.layout_digest = entry.tensors, entry.layout_digest
        self.frozen_digest, self.model_from = entry.frozen_digest, entry.slot
        self.lost_before_seed = 0
        for number, (digest, name) in enumerate(zip(entry.digests, entry.objects, strict=True)):
            self.heads[number] = HeadVersion(
                number=0,
                epoch=entry.epoch,
                digest=digest,
                object=name,
                merges=entry.merges[number] if entry.merges else 0,
            )
            self.due[number] = entry.due[number] if entry.due else 0

    def _commit(self, entry: Committed) -> None:
        head = self.heads.get(entry.slice)
        if entry.tensors:
            self.tensors, self.layout_digest = entry.tensors, entry.layout_digest
        if head is not None:
            self.previous[entry.slice] = head
            self.previous_merged[entry.slice] = dict(self.merged.get(entry.slice, {}))
        self.heads[entry.slice] = HeadVersion(
            number=entry.number,
            epoch=entry.epoch,
            digest=entry.digest,
            object=entry.object,
            last=entry.last,
            merges=entry.merges,
            tokens=sum(each.tokens for each in entry.participants),
        )
        self.tick = max(self.tick, entry.tick)
        self.due[entry.slice] = max(self.due.get(entry.slice, 0), entry.due)
        self.suspect.discard(entry.slice)
        self.torn.discard(entry.slice)
        self._count(entry.trained)
        self.commits += 1
        self.incomplete |= entry.recovered
        if entry.recovered:  # what another value held is not in this one
            self.merged.pop(entry.slice, None)
        for each in entry.lineage:
            self._merge(entry.slice, each)
        for part in entry.participants:
            state = entry.data_states.get(part.slot, "")
            self._merge(entry.slice, of_fields(Merged, part), state)
            trained = self.trained.get(part.slot, NONE_TRAINED)
            self.trained[part.slot] = trained.merges(part.incarnation, part.tokens)
        self.uptime = self.uptime.also(entry.uptime)
        self.merges += bool(entry.participants)
        self.merged_offers += len(entry.participants)

    def _count(self, trained: Mapping[str, Trained]) -> None:
        """Count an entry, which may have less than an earlier one that overtook it."""
        for slot, each in trained.items():
            self.trained[slot] = self.trained.get(slot, NONE_TRAINED).also(each)
            self._name(slot, each.incarnation)

    def _name(self, slot: str, incarnation: int) -> None:
        self.named[slot] = max(self.named.get(slot, 0), incarnation)

    def lineage(self, fragment: int) -> list[Merged]:
        """Return what a slice's head holds of every slot; cursors are the largest of any slice."""
        return [
            dataclasses.replace(each, cursor=self.cursors[slot])
            for slot, each in sorted(self.merged.get(fragment, {}).items())
        ]

    def _merge(self, fragment: int, each: Merged, data_state: str = "") -> None:
        """`data_state` is the object that holds the one of this cursor; empty: there is none."""
        self.merged.setdefault(fragment, {})[each.slot] = each
        self._name(each.slot, each.incarnation)
        if each.cursor <= self.cursors.get(each.slot, -1):
            return
        self.cursors[each.slot] = each.cursor
        self.data_states.pop(each.slot, None)  # it belongs to a smaller cursor
        if data_state:
            self.data_states[each.slot] = data_state
