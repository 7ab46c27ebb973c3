"""The run file: what all processes of one job must know, as immutable JSON.

`RunFile.hash` covers all that changes the result, and travels in every Join (rule 3). Length and
regions are left out, since both change while the job runs, and so is a quorum of "all" learners.
"auto" fragments are in it as the word; the layout's digest holds their number. Adding a field to
`Sync` changes every hash.

A file without regions is that of a shard on a cluster: it takes every slot, so that nobody starts
again when a region is added. Defaults of `Sync` are the published setting.

Files of a job as dataclasses, read strictly from JSON.

An unknown, missing, doubled or wrongly typed field raises SpecError with its path and what to do.

The learners that a job has at present, and the checkpoint that a person has asked for.

The executors write this file again whenever that changes, also `atoll run` when it gives a learner
up (`absent`). Shards read it again and again, so a change of it starts nobody again. Rules 1 and 2
need it, to ask and to await learners; a registrar without it knows of no learner.

What shards and slots do, in the words that people see: SHARD_SERVING is `Serving`.

A number that this version does not know is `Unknown`. Code compares the enums of v1/atoll.proto.
"""

import dataclasses
import functools
import hashlib
import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, get_args, get_origin, get_type_hints

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError, require
from atoll_protos.job.layout import Layout, TensorSpec, build_layout, fragments_that_fit
from atoll_protos.names import REGION_PATTERN, slot_name
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire

WORDS: Final = {bool: "true or false", float: "a number", int: "a whole number", str: "a string"}


def parse(kind: Any, text: str, name: str) -> Any:
    """A dataclass from JSON; errors about the whole file call it `name`. Raises SpecError."""
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise SpecError(name, f"is not JSON ({error})", "write it again") from error
    if not isinstance(document, dict):
        raise SpecError(name, f"{short(document)} is not a mapping", "give a mapping")
    return _parse(kind, document, "")


def short(value: Any) -> str:
    return reprlib.repr(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        require(name not in mapping, name, "is given twice", "give it once")
        mapping[name] = value
    return mapping


def _parse(kind: Any, value: Any, path: str) -> Any:
    """`value`, at `path`, as `kind`: a dataclass, enum, tuple, optional or plain type."""
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, path)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise SpecError(path, f"{short(value)} is not a list", "give a list")
        return tuple(
            _parse(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(value)
        )
    options = get_args(kind)
    if options:  # T | None, or int | the words in its place
        if value is None and type(None) in options:
            return None
        words = options[-1]
        word = issubclass(words, StrEnum) and value in list(words)
        return _parse(words if word else options[0], value, path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise SpecError(path, f"{short(value)} is unknown", f"use one of {', '.join(kind)}")
        return kind(value)
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if type(value) is not kind:
        raise SpecError(path, f"{short(value)} is not {WORDS[kind]}", f"give {WORDS[kind]}")
    return value


def _parse_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise SpecError(path, f"{short(value)} is not a mapping", "give a mapping")
    hints = get_type_hints(kind)
    prefix = f"{path}." if path else ""
    for name in value:
        if name not in hints:
            raise SpecError(prefix + name, "is unknown", f"remove it; known: {', '.join(hints)}")
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING
        if required and field.name not in value:
            raise SpecError(prefix + field.name, "is missing", "give it")
    return kind(**{name: _parse(hints[name], item, prefix + name) for name, item in value.items()})


def loads(text: str | bytes | bytearray) -> Any:
    """Any value. Raises ValueError, also for lists in lists without an end."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def mapping(text: str | bytes | bytearray) -> dict[str, Any]:
    """A mapping. Raises ValueError for anything else."""
    found = loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a mapping")
    return found


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
    mine, other = (_flat(mapping(text)) for text in (file.must_equal, theirs))
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
    nobody has. Raises SpecError.
    """

    regions: tuple[Region, ...] = ()
    start_seconds: int = START_SECONDS
    absent: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    machines: tuple[ListedMachine, ...] = ()
    checkpoint: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.start_seconds <= SECONDS_MAX:
            problem = f"{self.start_seconds} is out of range"
            raise SpecError("start_seconds", problem, f"use 0..{SECONDS_MAX}")
        known = set[str]()
        for number, each in enumerate(self.machines):
            field = f"machines[{number}].name"
            require(each.name not in known, field, f"{each.name} is there twice", "name it once")
            known.add(each.name)

    @property
    def slots(self) -> frozenset[str]:
        return _slots(self.regions, self.absent)

    @property
    def every(self) -> frozenset[str]:
        return _slots(self.regions, ())

    @property
    def given(self) -> Mapping[str, frozenset[str]]:
        """By machine: the slots that it may join as."""
        return {each.name: frozenset(each.slots) for each in self.machines}

    def limit(self, region: str) -> Limit:
        return next((each for each in self.limits if each.region == region), Limit(region=region))

    def to_json(self) -> str:
        """The file's text, without the later fields where they say nothing."""
        given = dataclasses.asdict(self)
        for field in ("absent", "limits", "machines", "checkpoint"):
            if not given[field]:
                del given[field]
        return json.dumps(given, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Expected":
        """Raises SpecError."""
        value: Expected = parse(cls, text, "slots file")
        return value


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
