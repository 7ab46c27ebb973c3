"""A plan of faults: what a user writes, how it is checked, and the faults that are drawn from it.

    seed: 7
    faults:
      - {at: 30s, kill: shard-1}
      - {every: 20s..40s, until: 5m, kill: any}
      - {at: 2m, delay: 80ms, of: [eu-west-0, shard-1], for: 20s}

Times count from the moment when all train. Every entry has a random generator of its own, made of
the seed and its number, so the same plan draws the same faults, and a change of one entry changes
no other.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pydantic
from pydantic import Field

from atoll_operator.api.job import yaml_text
from atoll_operator.api.job.model_base import COUNT_MAX, Model, meant
from atoll_operator.api.job.parsing import first_error
from atoll_protos.errors import SpecError

FAULTS_MAX: Final = 10_000  # of one entry
EVERY_SECONDS_MIN: Final = 1.0
ANY: Final = "any"
ANY_LEARNER: Final = "any learner"
ANY_SHARD: Final = "any shard"
SHARD: Final = re.compile(r"shard-\d+")
SECOND: Final = re.compile(r"shard-\d+-b")  # a process of a shard; the shard's name: who has it
UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
BYTES: Final = {"kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
NUMBER: Final = r"(\d+(?:\.\d+)?) ?"


class FaultWord(StrEnum):
    """The word of a fault, as a plan and chaos.jsonl write it."""

    KILL = "kill"
    PAUSE = "pause"
    SLOW_CPU = "slowCpu"
    CUT = "cut"
    DELAY = "delay"
    RATE = "rate"
    CORRUPT = "corrupt"
    FILL_DISK = "fillDisk"
    LOSE_STORE = "loseStore"
    EMPTY_STORE = "emptyStore"
    FLIP_BYTE = "flipByte"
    TRUNCATE = "truncate"


LINKS: Final = frozenset({FaultWord.CUT, FaultWord.DELAY, FaultWord.RATE, FaultWord.CORRUPT})
DAMAGE: Final = frozenset({FaultWord.EMPTY_STORE, FaultWord.FLIP_BYTE, FaultWord.TRUNCATE})
STORES: Final = DAMAGE | {FaultWord.FILL_DISK, FaultWord.LOSE_STORE}
PROCESSES: Final = frozenset({FaultWord.KILL, FaultWord.PAUSE, FaultWord.SLOW_CPU})
LASTING: Final = frozenset(FaultWord) - DAMAGE - {FaultWord.KILL}


class FaultEntry(Model):
    """One entry of `faults`, as it is written."""

    at: str = ""
    every: str = ""
    until: str = ""
    for_: str = Field(default="", alias="for")
    to: str = ""
    of: list[str] = Field(default=[], min_length=2, max_length=2)
    kill: str = ""
    pause: str = ""
    slow_cpu: str = ""
    cut: list[str] = Field(default=[], min_length=2, max_length=2)
    delay: str = ""
    rate: str = ""
    corrupt: str = ""
    fill_disk: str = ""
    lose_store: str = ""
    empty_store: str = ""
    flip_byte: str = ""
    truncate: str = ""


class WrittenPlan(Model):
    """The plan as it is written."""

    seed: int = Field(default=0, ge=0, le=COUNT_MAX)
    faults: list[FaultEntry] = Field(min_length=1, max_length=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One entry of a checked plan, in seconds; `targets` are one name or word, or two of a link.

    `amount` is the share of the CPU that is left, the delay in seconds, bytes a second, or of how
    many packets one is corrupted. `place` is the entry's path in the plan, which errors name.
    """

    place: str
    word: FaultWord
    targets: tuple[str, ...]
    seconds: float
    amount: float
    first: float
    every: tuple[float, float] | None = None
    until: float = 0.0

    @property
    def target_field(self) -> str:
        return f"{self.place}.{'of' if self.word in LINKS - {FaultWord.CUT} else self.word}"

    def times(self, draw: random.Random) -> list[float]:
        """When it happens, in seconds since all train; raises SpecError if that is too often."""
        if self.every is None:
            return [self.first]
        found = [draw.uniform(*self.every)]
        while found[-1] <= self.until:
            found.append(found[-1] + draw.uniform(*self.every))
            if len(found) > FAULTS_MAX:
                problem = f"these are more than {FAULTS_MAX:,} faults"
                raise SpecError(f"{self.place}.every", problem, "make it longer")
        return found[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A checked plan, as far as that can be said without a job."""

    seed: int
    faults: tuple[PlannedFault, ...]

    def draws(self) -> Iterator[tuple[PlannedFault, random.Random]]:
        """Every entry with the random generator of its own."""
        for number, planned in enumerate(self.faults):
            yield planned, random.Random(f"{self.seed} {number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFault:
    """One fault that is to be made; `shard` is the other end of a link, `target` its learner."""

    at: float
    word: FaultWord
    target: str
    shard: str = ""
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        link = f" - {self.shard}" if self.shard else ""
        return f"{self.word} {self.target}{link}" + (f", {self.seconds:g} s" * bool(self.seconds))


def read(text: str) -> FaultPlan:
    """The plan in a file's text; raises SpecError, which names the field and the remedy."""
    document = yaml_text.document(text, "plan")
    try:
        written = WrittenPlan.model_validate(document)
    except pydantic.ValidationError as error:
        raise first_error(error, "plan", WrittenPlan) from error
    faults = [
        _planned(f"plan.faults[{number}]", each) for number, each in enumerate(written.faults)
    ]
    return FaultPlan(seed=written.seed, faults=tuple(faults))


def drawn(
    plan: FaultPlan,
    slots: Sequence[str],
    shards: Sequence[str],
    bucket: str,
    seconds: Sequence[str] = (),
) -> list[DrawnFault]:
    """The faults of a job with these learners and shards, by time; raises SpecError.

    `bucket` is the URL of the bucket that holds the shards' state, empty if they are in folders;
    `seconds` are the names of the shards' second processes.
    """
    found: list[DrawnFault] = []
    for planned, draw in plan.draws():
        if bucket and planned.word in STORES:
            problem = f"the state of shards is in {bucket}, and only a folder can be damaged"
            raise SpecError(planned.target_field, problem, "remove it, or keep the state in files")
        those = [*shards, *seconds] if planned.word in PROCESSES else shards
        choices = [_choices(planned, each, slots, those) for each in planned.targets]
        for at in planned.times(draw):
            target, shard = [*(draw.choice(each) for each in choices), ""][:2]
            fault = DrawnFault(
                at=at,
                word=planned.word,
                target=target,
                shard=shard,
                seconds=planned.seconds,
                amount=planned.amount,
            )
            found.append(fault)
    return sorted(found, key=lambda fault: fault.at)


def _choices(
    planned: PlannedFault, name: str, slots: Sequence[str], shards: Sequence[str]
) -> Sequence[str]:
    """The names that a word such as `any` stands for, or the name itself."""
    words = {
        ANY: [*slots, *shards] if planned.word not in STORES else shards,
        ANY_LEARNER: slots,
        ANY_SHARD: shards,
    }
    if name in words:
        return words[name]
    known = shards if SHARD.fullmatch(name) or SECOND.fullmatch(name) else slots
    if name not in known:
        remedy = meant(name, [*slots, *shards, *words])
        raise SpecError(planned.target_field, f"this job has no {name}", remedy)
    return [name]


def _planned(place: str, entry: FaultEntry) -> PlannedFault:
    given = {alias: value for alias, value in _given(entry).items() if alias in [*FaultWord]}
    if len(given) != 1:
        names = ", ".join(given) or "no fault"
        raise SpecError(place, f"names {names}", f"give one of {', '.join(FaultWord)}")
    word = FaultWord(next(iter(given)))
    value = given[word]
    _refuse_unused(place, word, entry)
    seconds = _seconds(f"{place}.for", entry.for_) if word in LASTING else 0.0
    first, every, until = _when(place, entry)
    return PlannedFault(
        place=place,
        word=word,
        targets=_targets(place, word, entry, value),
        seconds=seconds,
        amount=_amount(place, word, entry),
        first=first,
        every=every,
        until=until,
    )


def _given(entry: FaultEntry) -> dict[str, Any]:
    return entry.model_dump(by_alias=True, exclude_unset=True)


def _refuse_unused(place: str, word: FaultWord, entry: FaultEntry) -> None:
    """Raise SpecError for a field that means nothing beside this word, or that is missing."""
    wanted = {
        "for": word in LASTING,
        "to": word is FaultWord.SLOW_CPU,
        "of": word in LINKS and word is not FaultWord.CUT,
    }
    examples = {"for": "for: 20s", "to": "to: 30%", "of": "of: [eu-west-0, shard-1]"}
    given = _given(entry)
    for field, needed in wanted.items():
        if needed and field not in given:
            raise SpecError(f"{place}.{field}", "is missing", f"add {examples[field]}")
        if field in given and not needed:
            raise SpecError(f"{place}.{field}", f"means nothing beside {word}", "remove it")


def _when(place: str, entry: FaultEntry) -> tuple[float, tuple[float, float] | None, float]:
    given = _given(entry)
    if ("at" in given) == ("every" in given):
        problem = "has both at and every" if "at" in given else "has no time"
        raise SpecError(place, problem, "give at: 30s, or every: 20s..40s with until: 5m")
    if "at" in given:
        if "until" in given:
            raise SpecError(f"{place}.until", "means nothing beside at", "use every, or remove it")
        return _seconds(f"{place}.at", entry.at, zero=True), None, 0.0
    if "until" not in given:
        raise SpecError(f"{place}.until", "is missing", "add until: 5m, when the last may be")
    field = f"{place}.every"
    low, _, high = entry.every.partition("..")
    every = _seconds(field, low), _seconds(field, high or low)
    until = _seconds(f"{place}.until", entry.until)
    if every[0] > every[1]:
        raise SpecError(field, f"{low} is more than {high}", f"write {high}..{low}")
    if every[0] < EVERY_SECONDS_MIN:
        raise SpecError(field, f"{low} is too short", f"give {EVERY_SECONDS_MIN:.0f}s or more")
    if until < every[0]:
        problem = f"{entry.until} is before the first at {low}"
        raise SpecError(f"{place}.until", problem, "make it later")
    return 0.0, every, until


def _targets(place: str, word: FaultWord, entry: FaultEntry, value: Any) -> tuple[str, ...]:
    if word not in LINKS:
        if word in STORES and value not in (ANY, ANY_SHARD) and not SHARD.fullmatch(value):
            raise SpecError(f"{place}.{word}", f"{value} is no shard", "name one, as shard-1")
        return (value,)
    field, pair = (word, value) if word is FaultWord.CUT else ("of", entry.of)
    learner, shard = pair
    if SHARD.fullmatch(learner) or learner == ANY_SHARD:
        remedy = "name the learner first, as [eu-west-0, shard-1]"
        raise SpecError(f"{place}.{field}[0]", f"{learner} is no learner", remedy)
    if not SHARD.fullmatch(shard) and shard not in (ANY, ANY_SHARD):
        remedy = "name the shard second, as [eu-west-0, shard-1]"
        raise SpecError(f"{place}.{field}[1]", f"{shard} is no shard", remedy)
    return (
        ANY_LEARNER if learner == ANY else learner,
        ANY_SHARD if shard == ANY else shard,
    )


def _amount(place: str, word: FaultWord, entry: FaultEntry) -> float:
    field = f"{place}.{word}"
    if word is FaultWord.SLOW_CPU:
        share = _number(f"{place}.to", entry.to, {"%": 0.01}, "30%")
        if share >= 1:
            raise SpecError(f"{place}.to", f"{entry.to} is no slower", "give less than 100%")
        return share
    if word is FaultWord.DELAY:
        return _seconds(field, entry.delay)
    if word is FaultWord.RATE:
        return _number(field, entry.rate, BYTES, "2MB/s")
    if word is FaultWord.CORRUPT:
        match = re.fullmatch(r"1 of (\d+)", entry.corrupt)
        if match is None or int(match[1]) == 0:
            problem = f"{entry.corrupt!r} is no share of the packets"
            raise SpecError(field, problem, "write it as 1 of 500")
        return float(match[1])
    return 0.0


def _seconds(field: str, text: str, *, zero: bool = False) -> float:
    return _number(field, text, UNITS, "30s", zero=zero)


def _number(
    field: str, text: str, units: dict[str, float], example: str, *, zero: bool = False
) -> float:
    match = re.fullmatch(f"{NUMBER}({'|'.join(units)})", text.strip())
    if match is None:
        raise SpecError(field, f"{text!r} is not understood", f"write it with its unit: {example}")
    value = float(match[1]) * units[match[2]]
    if not value and not zero:
        raise SpecError(field, f"{text} is nothing", f"give more, as {example}")
    return value
