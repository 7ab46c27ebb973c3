"""The run file: what all processes of one job must know, as immutable JSON.

The operator and `atoll run` derive it from the manifest; learners, shards and evaluators read
nothing else about the job. What differs from one process to the next is in the environment
(`environment`). The file is immutable: a change of the manifest writes another file.

Two processes work together only if their run files agree on all that changes the result.
`RunFile.hash` covers that part: the job's name, the seed, the number of shards and all of
`sync`. It travels in every Join, and a shard refuses a learner with another hash
(docs/protocol.md, rule 3). The length of the job and the regions are left out: a job may be
prolonged, and learners and regions come and go, while it runs. For the same reason a quorum of
"all" learners is a word and not their number, and the word is not part of the hash. Earlier
versions wrote the number in its place, so `accepts` takes a hash with any number for the word.
"auto" fragments are in the hash as the word; how many they are follows from the model, so the
digest of the layout holds the number. Earlier versions had 24 where nothing was given, which is
what "auto" is for every model that they could train, so `accepts` takes one for the other.
Adding a field to `Sync` changes every hash.

A file without regions is that of a shard on a cluster: it takes every slot, so that it need not
be started again when a region is added.

The dataclasses are checked when they are made, so a value that exists is valid. Reading is strict
(`reading`). Defaults and ranges of `Sync` are those of the published setting; a manifest's defaults
come from the operator's presets, which a test compares with these.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from atoll_protos.codecs import Wire
from atoll_protos.errors import require
from atoll_protos.layout import Layout, TensorSpec, build_layout, fragments_that_fit
from atoll_protos.names import REGION_PATTERN, slot_name
from atoll_protos.reading import parse, short

LEARNERS_MAX: Final = 10_000  # of one region
AUTO_FRAGMENTS_MAX: Final = 24  # the published number (2604.21428)
NUMBERED_QUORUM_MAX: Final = 1024  # largest number that `accepts` takes for a quorum of all


class Merge(StrEnum):
    """How the learners' differences become one (docs/algorithm.md, Merge)."""

    RADIAL_DIRECTIONAL = "RadialDirectional"
    MEAN = "Mean"


class Quorum(StrEnum):
    """The word in place of a number of learners."""

    ALL = "all"  # those that train, however many there are


class Fragments(StrEnum):
    """The word in place of a number of fragments."""

    AUTO = "auto"  # the published 24, or as many as the model and the period allow


class Momentum(StrEnum):
    """The word in place of a momentum of the outer optimizer."""

    AUTO = "auto"  # it grows with the merges of a slice (docs/algorithm.md, Outer optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """What is computed (2604.21428; symbols of docs/algorithm.md).

    `fragments` is P, a word until the model is known (`with_fragments`). `quorum` is K, `overlap`
    tau in ticks, `blend` the share of its own value that a learner keeps on adoption (0
    overwrites). With `lockstep` learners hand over by themselves and `step()` waits at hand-over +
    overlap (docs/protocol.md, rule 15); only there the quorum may be all learners.
    """

    fragments: int | Fragments = Fragments.AUTO
    period: int = 24
    overlap: int = 2
    quorum: int | Quorum = 1
    grace: bool = True
    grace_safety: float = 0.8
    merge: Merge = Merge.RADIAL_DIRECTIONAL
    blend: float = 0.0
    outer_learning_rate: float = 0.7
    outer_momentum: float | Momentum = Momentum.AUTO
    wire_up: Wire = Wire.BF16
    wire_down: Wire = Wire.BF16
    lockstep: bool = False
    mean_patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fragments, period = self.fragments, self.period
        if not isinstance(fragments, Fragments):
            require(fragments >= 1, "sync.fragments", f"{fragments} is below 1", "use 1 or more")
            require(
                fragments <= period,
                "sync.fragments",
                f"{fragments} fragments in a period of {period} ticks",
                "use at most sync.period fragments, or auto",
            )
        require(period >= 1, "sync.period", f"{period} is below 1", "use 1 or more")
        require(
            0 <= self.overlap < period,
            "sync.overlap",
            f"{self.overlap} is not within 0..{period - 1}",
            "use less than sync.period",
        )
        require(
            self.overlap > 0 or self.lockstep,
            "sync.lockstep",
            "is false with an overlap of 0",
            "set it, or use a sync.overlap of 1 or more",
        )
        if isinstance(self.quorum, Quorum):
            problem = "is all learners in a mode in which learners do not wait"
            require(self.lockstep, "sync.quorum", problem, "give a number")
        else:
            require(self.quorum >= 1, "sync.quorum", f"{self.quorum} is below 1", "use 1 or more")
        momentum = 0.0 if isinstance(self.outer_momentum, Momentum) else self.outer_momentum
        for name, holds, remedy in (
            ("grace_safety", 0 < self.grace_safety < 1, "use more than 0 and less than 1"),
            ("blend", 0 <= self.blend < 1, "use 0 (overwrite) or more, and less than 1"),
            ("outer_learning_rate", 0 < self.outer_learning_rate < math.inf, "use about 0.7"),
            ("outer_momentum", 0 <= momentum < 1, "use auto, or 0 or more and less than 1"),
        ):
            require(holds, f"sync.{name}", f"{getattr(self, name)} is out of range", remedy)

    @property
    def fragment_count(self) -> int:
        """P. Only where it is a number: as given, or by `with_fragments`."""
        assert not isinstance(self.fragments, Fragments), "the model is not known yet"
        return self.fragments

    def with_fragments(self, count: int) -> "Sync":
        """The same with the number of fragments that the model's layout has."""
        return self if self.fragments == count else _with_fragments(self, count)

    def awaited(self, training: int) -> int:
        """K, which in modes that wait means min(K, learners Training), at least 1 (rule 10)."""
        if isinstance(self.quorum, Quorum):
            return max(1, training)
        return max(1, min(self.quorum, training)) if self.lockstep else self.quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region of the job and how many learners it has."""

    name: str
    learners: int

    def __post_init__(self) -> None:
        require(
            REGION_PATTERN.fullmatch(self.name) is not None,
            "regions.name",
            f"{self.name!r} is not a name",
            "use lower-case letters, digits and inner dashes",
        )
        require(
            0 <= self.learners <= LEARNERS_MAX,
            f"regions.{self.name}.learners",
            f"{self.learners} is out of range",
            f"use 0..{LEARNERS_MAX}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """One job as its processes see it. `steps` is T in ticks; or `tokens`: exactly one.

    Without `regions` any slot may take part.
    """

    job: str
    regions: tuple[Region, ...]
    shards: int = 1
    seed: int = 0
    steps: int | None = None
    tokens: int | None = None
    sync: Sync = Sync()
    evaluator_every: int | None = None  # ticks between two evaluations
    export_every: int | None = None  # ticks between two exports before the last one

    def __post_init__(self) -> None:
        require(bool(self.job), "job", "is empty", "give the job's name")
        names = [region.name for region in self.regions]
        require(len({*names}) == len(names), "regions", "one is named twice", "name each once")
        learners, quorum = sum(region.learners for region in self.regions), self.sync.quorum
        require(
            not names or isinstance(quorum, Quorum) or quorum <= max(1, learners),
            "sync.quorum",
            f"{quorum} of {learners} learners",
            "use at most the number of learners",
        )
        require(self.shards >= 1, "shards", f"{self.shards} is below 1", "use 1 or more")
        require(0 <= self.seed < 1 << 63, "seed", f"{self.seed} is out of range", "use 0..2^63-1")
        require(
            (self.steps is None) != (self.tokens is None),
            "steps",
            "the length is not given once",
            "give exactly one of steps and tokens",
        )
        for name in ("steps", "tokens", "evaluator_every", "export_every"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"{value} is below 1", "use 1 or more")

    @property
    def slots(self) -> tuple[str, ...]:
        """All slots of the job, by region in the file's order."""
        return tuple(slot_name(r.name, i) for r in self.regions for i in range(r.learners))

    def has_region(self, name: str) -> bool:
        """Whether slots of this region may take part."""
        return not self.regions or any(region.name == name for region in self.regions)

    def layout(self, tensors: Iterable[TensorSpec]) -> Layout:
        """The layout of a model under this file: a function of both alone, equal everywhere.

        Raises SpecError when the model has too few parts for the fragments and shards.
        """
        table, fragments = tuple(tensors), self.sync.fragments
        if isinstance(fragments, Fragments):
            most = min(AUTO_FRAGMENTS_MAX, self.sync.period)
            fragments = fragments_that_fit(table, self.shards, most)
        return build_layout(table, fragments, self.shards)

    @property
    def must_equal(self) -> str:
        """What must be equal everywhere, as canonical JSON: not the length, not who takes part."""
        sync = dataclasses.asdict(self.sync)
        if self.sync.quorum is Quorum.ALL:
            del sync["quorum"]
        equal = {"job": self.job, "seed": self.seed, "shards": self.shards, "sync": sync}
        return _canonical(equal).decode()

    @property
    def hash(self) -> str:
        """sha256 of what must be equal everywhere."""
        return hash_of(self.must_equal)

    def accepts(self, run_hash: str) -> bool:
        """Whether a process, or a log, with this run hash belongs to the same run as this file.

        Its own hash does. So does one that differs only in a word in place of what an earlier
        version has written: "all" learners for their number, "auto" fragments for 24. They compute
        the same, and the digest of the layout shows whether the fragments are really as many.
        """
        return run_hash == self.hash or run_hash in _hashes_of_other_versions(self)

    def to_json(self) -> str:
        """The file's text; `from_json` reads it back to an equal value."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "RunFile":
        """Parse the file; raises SpecError that names the field and the remedy."""
        value: RunFile = parse(cls, text, "run file")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of the run file that two processes hold in two ways; None where it is absent."""

    field: str  # such as "seed" or "sync.period"
    mine: Any
    theirs: Any


def hash_of(must_equal: str) -> str:
    """The run hash of a process whose `RunFile.must_equal` is this text."""
    return hashlib.sha256(must_equal.encode()).hexdigest()


def first_difference(file: RunFile, theirs: str) -> Difference | None:
    """What of another process's `must_equal` is not this file's; None: they may work together.

    `theirs` may be of another version of Atoll. Raises ValueError for what is no such text.
    """
    if file.accepts(hash_of(theirs)):
        return None
    mine, other = (_flat(json.loads(text)) for text in (file.must_equal, theirs))
    for name in [*mine, *(each for each in other if each not in mine)]:
        if mine.get(name) != other.get(name):
            return Difference(field=name, mine=mine.get(name), theirs=other.get(name))
    return None


def _flat(document: Any) -> dict[str, Any]:
    """A mapping of mappings as one, with paths for names."""
    if not isinstance(document, dict):
        raise ValueError(f"{short(document)} is not a mapping")
    found = {}
    for name, value in document.items():
        if isinstance(value, dict):
            found.update({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            found[name] = value
    return found


@functools.lru_cache(maxsize=8)
def _hashes_of_other_versions(file: RunFile) -> frozenset[str]:
    """The hashes of a file with a number in place of a word, or a word for its number."""
    sync = file.sync
    quorums: list[int | Quorum] = [sync.quorum]
    if sync.quorum is Quorum.ALL:
        quorums += range(1, NUMBERED_QUORUM_MAX + 1)
    elif sync.lockstep:
        quorums.append(Quorum.ALL)
    counts: list[int | Fragments] = [sync.fragments]
    if sync.fragments == AUTO_FRAGMENTS_MAX:
        counts.append(Fragments.AUTO)
    elif sync.fragments is Fragments.AUTO and sync.period >= AUTO_FRAGMENTS_MAX:
        counts.append(AUTO_FRAGMENTS_MAX)
    others = (
        dataclasses.replace(sync, quorum=quorum, fragments=count)
        for quorum in quorums
        for count in counts
    )
    return frozenset(dataclasses.replace(file, sync=each, regions=()).hash for each in others)


@functools.lru_cache(maxsize=8)
def _with_fragments(sync: Sync, count: int) -> Sync:
    return dataclasses.replace(sync, fragments=count)


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
