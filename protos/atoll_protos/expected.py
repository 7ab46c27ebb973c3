"""The learners that a job has at present: whom the registrar asks, and waits for, at a start.

The run file says what is computed and is immutable. This file says who takes part. The operator and
`atoll run` write it again whenever that changes; `atoll run` also when it gives a learner up, since
nobody is to wait for a process that is started no more (`absent`). On a cluster it is mounted into
the shards' pods from a ConfigMap of its own, so that a change of it starts nobody again; a shard
reads it again and again. Two decisions of the registrar need it, both at the beginning of a run
(docs/protocol.md, rules 1 and 2); a registrar without it decides as if it knew of no learner.
"""

import dataclasses
import functools
import json
from dataclasses import dataclass

from atoll_protos.errors import SpecError
from atoll_protos.names import slot_name
from atoll_protos.reading import parse
from atoll_protos.run import Region

START_SECONDS: int = 30
SECONDS_MAX = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What holds for one region (rule 41).

    Certificates of a lower `generation` are refused. A learner of it may report at most
    `tokens_per_step` for a step.
    """

    region: str
    generation: int = 0
    tokens_per_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The regions with their learners, and how long the start of a run waits for all of them.

    The first values are kept back from learners until all have joined, at most `start_seconds`
    after the first of them was heard of. `absent` are slots in these regions whose learners are
    not started again.
    """

    regions: tuple[Region, ...] = ()
    start_seconds: int = START_SECONDS
    absent: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.start_seconds <= SECONDS_MAX:
            problem = f"{self.start_seconds} is out of range"
            raise SpecError("start_seconds", problem, f"use 0..{SECONDS_MAX}")

    @property
    def slots(self) -> frozenset[str]:
        """The slots of the job whose learners can come."""
        return _slots(self.regions, self.absent)

    @property
    def every(self) -> frozenset[str]:
        """All slots of these regions."""
        return _slots(self.regions, ())

    def limit(self, region: str) -> Limit:
        """What holds for a region; nothing particular where the file says nothing."""
        return next((each for each in self.limits if each.region == region), Limit(region=region))

    def to_json(self) -> str:
        """The file's text; `from_json` reads it back to an equal value.

        Without `absent` and `limits` where they are empty.
        """
        given = dataclasses.asdict(self)
        for field in ("absent", "limits"):
            if not given[field]:
                del given[field]
        return json.dumps(given, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Expected":
        """Parse the file; raises SpecError that names the field and the remedy."""
        value: Expected = parse(cls, text, "slots file")
        return value


@functools.lru_cache(maxsize=4)  # a registrar asks at every Join of a start
def _slots(regions: tuple[Region, ...], absent: tuple[str, ...]) -> frozenset[str]:
    every = frozenset(slot_name(r.name, i) for r in regions for i in range(r.learners))
    return every.difference(absent)


NOBODY = Expected()
