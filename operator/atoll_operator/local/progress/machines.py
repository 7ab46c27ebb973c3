"""The machines of `atoll serve` as they are seen: where they are, and what goes to and fro.

`up` is from a machine to the shards, `down` the other way. The run keeps it in machines.json of its
folder, for `atoll top` and for the next start of the server.
"""

import dataclasses
import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.folder.run_files import ends_of_starts
from atoll_operator.sizing.prices import Prices
from atoll_protos.errors import SpecError
from atoll_protos.job.strict_json import parse

MACHINES_FILE: Final = "machines.json"
RATE_SECONDS: Final = 10.0  # over which a rate is a mean: transfers come in bursts


class Ends(NamedTuple):
    """Whose link it is: that of a machine, in its region."""

    region: str
    machine: str


class Moved(NamedTuple):
    """Bulk bytes."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMachine:
    """One machine. A name that is revoked stays, with what it has moved; 0: not known."""

    name: str
    region: str
    slots: tuple[str, ...] = ()
    address: str = ""  # as the server sees it, without a port
    round_trip_seconds: float = 0.0
    heard_at: float = 0.0  # UNIX seconds
    knows_complete: bool = False  # it has heard that the job is
    revoked: bool = False
    up_bytes: int = 0  # in all
    down_bytes: int = 0
    up_rate: float | None = None  # bits a second at present; None while unknown
    down_rate: float | None = None
    cost: float | None = None  # of all its bytes; None: no price is known


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesFile:
    """machines.json; `home` is the region of the shards."""

    home: str
    machines: tuple[ShownMachine, ...] = ()


def priced(machines: Sequence[ShownMachine], home: str, prices: Prices) -> tuple[ShownMachine, ...]:
    """The same with what their bytes cost; `home` is the region of the shards."""

    def cost(each: ShownMachine) -> float | None:
        return prices.cost(each.region, home, each.up_bytes, each.down_bytes)

    return tuple(dataclasses.replace(each, cost=cost(each)) for each in machines)


def moved_by_machines(tapes: Iterable[list[dict[str, Any]]]) -> dict[Ends, Moved]:
    """Over all starts of the shards, as their tapes have it."""
    up, down = Counter[Ends](), Counter[Ends]()
    for tape in tapes:
        for last in ends_of_starts(tape):
            for region, machines in last.get("machines", {}).items():
                for name, moved in machines.items():
                    up[Ends(region, name)] += moved[0]
                    down[Ends(region, name)] += moved[1]
    return {each: Moved(up[each], down[each]) for each in up.keys() | down.keys()}


class MachineTraffic:
    """What the shards say of it: in all, and at present."""

    def __init__(self, before: Mapping[Ends, Moved] = MappingProxyType({})) -> None:
        """`before`: what processes of shards have moved that have ended before this run began."""
        self._before = dict(before)
        self._said: dict[str, dict[Ends, Moved]] = {}  # by process of a shard: the newest
        self._seen: deque[tuple[float, dict[Ends, Moved]]] = deque()

    def see(self, now: float, replies: Iterable[pb.StatusReply | None]) -> None:
        """`now` is in monotonic seconds."""
        for each in filter(None, replies):
            links = (link for link in each.links if link.machine)
            self._said[each.instance] = {
                Ends(link.region, link.machine): Moved(link.received, link.sent) for link in links
            }
        self._seen.append((now, self.total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_SECONDS:  # noqa: PLR2004
            self._seen.popleft()

    @property
    def total(self) -> dict[Ends, Moved]:
        found = dict(self._before)
        for said in self._said.values():
            for ends, moved in said.items():
                had = found.get(ends, Moved())
                found[ends] = Moved(had.up + moved.up, had.down + moved.down)
        return found

    def rates(self, ends: Ends) -> tuple[float, float] | None:
        """Bits a second up and down, of the last 10 s; None while they are not known."""
        if len(self._seen) < 2:  # noqa: PLR2004
            return None
        (began, before), (now, after) = self._seen[0], self._seen[-1]
        had, has = before.get(ends, Moved()), after.get(ends, Moved())
        seconds = max(1e-9, now - began)
        return 8 * (has.up - had.up) / seconds, 8 * (has.down - had.down) / seconds


def read_machines(out: Path) -> MachinesFile | None:
    """What the run in a folder has seen last; None: it has no machines, or has seen none yet."""
    try:
        text = (out / MACHINES_FILE).read_text(encoding="utf-8")
        found: MachinesFile = parse(MachinesFile, text, MACHINES_FILE)
    except (OSError, SpecError):
        return None
    return found


def to_json(found: MachinesFile) -> str:
    return json.dumps(dataclasses.asdict(found), indent=2) + "\n"
