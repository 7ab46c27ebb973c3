"""The run file: what all processes of one job must know, as immutable JSON.

`RunFile.hash` covers all that changes the result, and travels in every Join (rule 3). Length and
regions are left out, since both change while the job runs, and so is a quorum of "all" learners.
"auto" fragments are in it as the word; the layout's digest holds their number. Adding a field to
`Sync` changes every hash.

A file without regions is that of a shard on a cluster: it takes every slot, so that nobody starts
again when a region is added. Defaults of `Sync` are the published setting.

`Expected` lists the learners that a job has at present, and the checkpoint that a person has asked
for. The executors write that file again whenever it changes, and shards read it again and again, so
a change starts nobody again. Rules 1 and 2 need it, to ask and to await learners; a registrar
without it knows of no learner.

Both trust their writer, whose manifest has passed `atoll_operator.api.job`. What shards and slots
do has names that people see: SHARD_SERVING is `Serving`, a number of another version `Unknown`.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import documents
from atoll_protos.job.layout import Layout, TensorSpec, build_layout, fragments_that_fit
from atoll_protos.names import slot_name
from atoll_protos.transfer.codecs import Wire

AUTO_FRAGMENTS_MAX: Final = 24  # the published number (2604.21428)


class Merge(StrEnum):
    """How the learners' differences become one (docs/algorithm.md, Merge)."""

    RADIAL_DIRECTIONAL = "RadialDirectional"
    MEAN = "Mean"


class Quorum(StrEnum):
    """The word in place of a number of learners."""

    ALL = "all"  # those that train, however many there are


class GraceLimit(StrEnum):
    """How long a round may wait for more than its quorum (docs/algorithm.md, Grace)."""

    OVERLAP = "Overlap"  # as the overlap hides
    WORK = "Work"  # also as long as waiting keeps more work than it costs


class Fragments(StrEnum):
    """The word in place of a number of fragments."""

    AUTO = "auto"  # the published 24, or as many as the model and the period allow


class Momentum(StrEnum):
    """The word in place of a momentum of the outer optimizer."""

    AUTO = "auto"  # it grows with the merges of a slice (docs/algorithm.md, Outer optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """What is computed (2604.21428; symbols of docs/algorithm.md).

    `fragments` is P, a word until the model is known. `quorum` is K, `overlap` tau in ticks,
    `blend` the share of its own value that a learner keeps on adoption. With `lockstep` learners
    hand over by themselves and `step()` waits at hand-over + overlap (rule 15).
    """

    fragments: int | Fragments = Fragments.AUTO
    period: int = 24
    overlap: int = 2
    quorum: int | Quorum = 1
    grace: bool = True
    grace_safety: float = 0.8
    grace_limit: GraceLimit = GraceLimit.WORK
    merge: Merge = Merge.RADIAL_DIRECTIONAL
    blend: float = 0.0
    norm_limit: float = 10.0  # beyond which an offer is an outlier (rule 12); 0: none is
    outer_learning_rate: float = 0.7
    outer_momentum: float | Momentum = Momentum.AUTO
    wire_up: Wire = Wire.BF16
    wire_down: Wire = Wire.BF16
    lockstep: bool = False
    mean_patterns: tuple[str, ...] = ()

    @property
    def fragment_count(self) -> int:
        """P, where it is a number: as given, or by `with_fragments`."""
        assert not isinstance(self.fragments, Fragments), "the model is not known yet"
        return self.fragments

    def with_fragments(self, count: int) -> "Sync":
        return self if self.fragments == count else _with_fragments(self, count)

    def awaited(self, training: int) -> int:
        """K; in modes that wait min(K, learners Training), at least 1 (rule 10)."""
        if isinstance(self.quorum, Quorum):
            return max(1, training)
        return max(1, min(self.quorum, training)) if self.lockstep else self.quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region of the job and how many learners it has."""

    name: str
    learners: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Where checkpoints go, every how many ticks, how many stay, whether each has its model."""

    url: str
    every: int | None = None  # only those that somebody asks for
    keep: int = 3
    model: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """One job as its processes see it: `steps` is T in ticks; or `tokens`, exactly one of both."""

    job: str
    regions: tuple[Region, ...]
    shards: int = 1
    seed: int = 0
    steps: int | None = None
    tokens: int | None = None
    sync: Sync = Sync()
    evaluator_every: int | None = None  # ticks between two evaluations
    checkpoint: Checkpoints | None = None
    restore_from: str = ""  # the place of a checkpoint with which a new run begins
    uid: str = ""  # of the job whose state it is, on a cluster; empty in a run folder

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot_name(r.name, i) for r in self.regions for i in range(r.learners))

    def has_region(self, name: str) -> bool:
        return not self.regions or any(region.name == name for region in self.regions)

    def layout(self, tensors: Iterable[TensorSpec]) -> Layout:
        """Lay out a model; raises SpecError where it has too few parts."""
        table, fragments = tuple(tensors), self.sync.fragments
        if isinstance(fragments, Fragments):
            most = min(AUTO_FRAGMENTS_MAX, self.sync.period)
            fragments = fragments_that_fit(table, self.shards, most)
        return build_layout(table, fragments, self.shards)

    @property
    def must_equal(self) -> str:
        sync = dataclasses.asdict(self.sync)
        if self.sync.quorum is Quorum.ALL:
            del sync["quorum"]
        equal = {"job": self.job, "seed": self.seed, "shards": self.shards, "sync": sync}
        return json.dumps(equal, sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        return hash_of(self.must_equal)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "RunFile":
        """Raise SpecError."""
        return documents.parse(cls, text, "run file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field that two processes hold in two ways; None where it is absent."""

    field: str  # such as "seed" or "sync.period"
    mine: Any
    theirs: Any


def hash_of(must_equal: str) -> str:
    return hashlib.sha256(must_equal.encode()).hexdigest()


def first_difference(file: RunFile, theirs: str) -> Difference | None:
    """Return the first difference to the `must_equal` of any version. Raises ValueError."""
    mine, other = (documents.flat(documents.mapping(x)) for x in (file.must_equal, theirs))
    for name in mine | other:
        if mine.get(name) != other.get(name):
            return Difference(field=name, mine=mine.get(name), theirs=other.get(name))
    return None


@functools.lru_cache(maxsize=8)
def _with_fragments(sync: Sync, count: int) -> Sync:
    return dataclasses.replace(sync, fragments=count)


START_SECONDS: int = 30
SECONDS_MAX = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What holds for one region (rule 41); certificates of a lower `generation` are refused."""

    region: str
    generation: int = 0
    tokens_per_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMachine:
    """A machine with a certificate of its own, and the slots that it may join as (rule 41)."""

    name: str
    slots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Learners for whom the first values wait, at most `start_seconds` from the first heard of.

    `absent` are slots whose learners are not started again. Certificates of machines that are not
    among `machines` are refused. `checkpoint` is the step of one that somebody has asked for; 0:
    nobody has.
    """

    regions: tuple[Region, ...] = ()
    start_seconds: int = START_SECONDS
    absent: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    machines: tuple[ListedMachine, ...] = ()
    checkpoint: int = 0

    @property
    def slots(self) -> frozenset[str]:
        return _slots(self.regions, self.absent)

    @property
    def every(self) -> frozenset[str]:
        return _slots(self.regions, ())

    @property
    def given(self) -> Mapping[str, frozenset[str]]:
        """By machine: the slots that it may join as."""
        return {machine.name: frozenset(machine.slots) for machine in self.machines}

    def limit(self, region: str) -> Limit:
        return next((each for each in self.limits if each.region == region), Limit(region=region))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Expected":
        """Raise SpecError."""
        return documents.parse(cls, text, "slots file")


@functools.lru_cache(maxsize=4)  # a registrar asks at every Join of a start
def _slots(regions: tuple[Region, ...], absent: tuple[str, ...]) -> frozenset[str]:
    every = frozenset(slot_name(r.name, i) for r in regions for i in range(r.learners))
    return every.difference(absent)


NOBODY = Expected()


UNKNOWN: Final = "Unknown"


def _texts(names: dict[str, int], prefix: str) -> dict[int, str]:
    return {
        number: name.removeprefix(prefix).title() for name, number in names.items() if number != 0
    }


SHARD_TEXTS: Final = _texts(dict(pb.ShardState.items()), "SHARD_")
SLOT_TEXTS: Final = _texts(dict(pb.SlotState.items()), "SLOT_")


def shard_text(state: int) -> str:
    return SHARD_TEXTS.get(state, UNKNOWN)


def slot_text(state: int) -> str:
    return SLOT_TEXTS.get(state, UNKNOWN)
