"""The run file: what all processes of one job must know, as immutable JSON.

`RunFile.hash` covers all that changes the result, and travels in every Join (rule 3). Length and
regions are left out, since both change while the job runs, and so is a quorum of "all" learners.
"auto" fragments are in it as the word; the layout's digest holds their number. Adding a field to
`Sync` changes every hash.

A file without regions is that of a shard on a cluster: it takes every slot, so that nobody starts
again when a region is added. Defaults of `Sync` are the published setting.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from atoll_protos import json_text
from atoll_protos.errors import require
from atoll_protos.job.layout import Layout, TensorSpec, build_layout, fragments_that_fit
from atoll_protos.job.strict_json import parse, short
from atoll_protos.names import REGION_PATTERN, slot_name
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire

LEARNERS_MAX: Final = 10_000  # of one region
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

    def __post_init__(self) -> None:
        period, overlap, limit = self.period, self.overlap, self.norm_limit
        fragments = 1 if isinstance(self.fragments, Fragments) else self.fragments
        quorum = 1 if isinstance(self.quorum, Quorum) else self.quorum
        momentum = 0.0 if isinstance(self.outer_momentum, Momentum) else self.outer_momentum
        for name, count in (("fragments", fragments), ("period", period), ("quorum", quorum)):
            require(count >= 1, f"sync.{name}", f"{count} is below 1", "use 1 or more")
        require(
            fragments <= period,
            "sync.fragments",
            f"{fragments} is more than the {period} ticks of a period",
            "use at most sync.period fragments, or auto",
        )
        for name, holds, remedy in (
            ("overlap", 0 <= overlap < period, "use less than sync.period"),
            ("grace_safety", 0 < self.grace_safety < 1, "use more than 0 and less than 1"),
            ("norm_limit", limit == 0 or 1 < limit < math.inf, "use 0, or more than 1"),
            ("blend", 0 <= self.blend < 1, "use 0 (overwrite) or more, and less than 1"),
            ("outer_learning_rate", 0 < self.outer_learning_rate < math.inf, "use about 0.7"),
            ("outer_momentum", 0 <= momentum < 1, "use auto, or 0 or more and less than 1"),
        ):
            problem = f"{getattr(self, name)} is out of range"
            require(holds, f"sync.{name}", problem, remedy)
        remedy = "set it, or use a sync.overlap of 1 or more"
        fits = bool(overlap) or self.lockstep
        require(fits, "sync.lockstep", f"{self.lockstep} with an overlap of 0", remedy)
        problem = f"{self.quorum} is all learners in a mode in which learners do not wait"
        numbered = self.lockstep or self.quorum != Quorum.ALL
        require(numbered, "sync.quorum", problem, "give a number")
        published = self.wire_down in WIRES_DOWN
        problem = f"{self.wire_down} is for what learners send alone"
        require(published, "sync.wire_down", problem, "use int4")

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
class Checkpoints:
    """Where checkpoints go, every how many ticks, how many stay, whether each has its model."""

    url: str
    every: int | None = None  # only those that somebody asks for
    keep: int = 3
    model: bool = True

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            value = getattr(self, name)
            fits = value is None or value >= 1
            require(fits, f"checkpoint.{name}", f"{value} is below 1", "use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Where merges are recorded, and how many of each slice."""

    url: str
    commits: int

    def __post_init__(self) -> None:
        count = self.commits
        require(count >= 1, "recorded.commits", f"{count} is below 1", "use 1 or more")


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
    recorded: Recorded | None = None
    restore_from: str = ""  # the place of a checkpoint with which a new run begins
    uid: str = ""  # of the job whose state it is, on a cluster; empty in a run folder

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
        for name in ("steps", "tokens", "evaluator_every"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"{value} is below 1", "use 1 or more")

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot_name(r.name, i) for r in self.regions for i in range(r.learners))

    def has_region(self, name: str) -> bool:
        return not self.regions or any(region.name == name for region in self.regions)

    def layout(self, tensors: Iterable[TensorSpec]) -> Layout:
        """The layout of a model; raises SpecError where it has too few parts."""
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
        """Raises SpecError."""
        value: RunFile = parse(cls, text, "run file")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field that two processes hold in two ways; None where it is absent."""

    field: str  # such as "seed" or "sync.period"
    mine: Any
    theirs: Any


def hash_of(must_equal: str) -> str:
    return hashlib.sha256(must_equal.encode()).hexdigest()


def first_difference(file: RunFile, theirs: str) -> Difference | None:
    """The first difference to the `must_equal` of any version; None: none. Raises ValueError."""
    mine, other = (_flat(json_text.mapping(text)) for text in (file.must_equal, theirs))
    for name in mine | other:
        if mine.get(name) != other.get(name):
            return Difference(field=name, mine=mine.get(name), theirs=other.get(name))
    return None


def _flat(document: Any) -> dict[str, Any]:
    """A mapping of mappings as one, with paths for names."""
    if not isinstance(document, dict):
        raise ValueError(f"{short(document)} is not a mapping")
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            found[name] = value
    return found


@functools.lru_cache(maxsize=8)
def _with_fragments(sync: Sync, count: int) -> Sync:
    return dataclasses.replace(sync, fragments=count)
