"""The learners that a job has at present, and the checkpoint that a person has asked for.

The executors write this file again whenever that changes, also `atoll run` when it gives a learner
up (`absent`). Shards read it again and again, so a change of it starts nobody again. Rules 1 and 2
need it, to ask and to await learners; a registrar without it knows of no learner.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from atoll_protos.errors import SpecError, require
from atoll_protos.job.run_file import Region
from atoll_protos.job.strict_json import parse
from atoll_protos.names import slot_name

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
