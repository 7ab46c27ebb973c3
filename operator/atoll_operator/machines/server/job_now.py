"""How the job stands, as its machines hear it, and what the server has heard of them."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.progress.machines import Ends, MachineTraffic, Moved, ShownMachine
from atoll_operator.machines.server.register import Register


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """When a machine has asked last, and whence; `told` is the state of the job that it heard."""

    at: float  # UNIX seconds
    address: str = ""
    round_trip_seconds: float = 0.0  # 0: not known
    told: int = pb.JOB_STATE_UNSPECIFIED


@dataclass(slots=True, kw_only=True)
class JobNow:
    """What the run's passes tell the machines, and whom they have told it; for several threads."""

    state: int = pb.JOB_STATE_UNSPECIFIED
    why: str = ""
    tick: int = 0
    machines: dict[str, Heard] = field(default_factory=dict)
    meetings: dict[str, str] = field(default_factory=dict)  # HOST:PORT of host 0, by slot
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, state: int, tick: int, why: str = "") -> None:
        with self.lock:
            self.state, self.tick, self.why = state, tick, why

    def heard(self, machine: str, heard: Heard) -> tuple[int, int, str]:
        """State, tick and reason for a machine that asks."""
        with self.lock:
            if not heard.round_trip_seconds and (before := self.machines.get(machine)) is not None:
                heard = replace(heard, round_trip_seconds=before.round_trip_seconds)
            self.machines[machine] = replace(heard, told=self.state)
            return self.state, self.tick, self.why

    def untold(self, since: float) -> list[str]:
        """Machines that have asked since then (UNIX seconds), and do not know the present state."""
        with self.lock:
            asked = [(name, x) for name, x in self.machines.items() if x.at > since]
            return [name for name, each in asked if each.told != self.state]

    def unaware(self, names: Iterable[str]) -> list[str]:
        """Machines that have not heard that the job is complete."""
        with self.lock:
            known = {name for name, each in self.machines.items() if each.told == pb.JOB_COMPLETE}
        return [each for each in names if each not in known]

    def remember(self, machines: Iterable[ShownMachine]) -> None:
        """What an earlier server of this folder has heard."""
        with self.lock:
            for each in machines:
                self.machines[each.name] = Heard(
                    at=each.heard_at,
                    address=each.address,
                    round_trip_seconds=each.round_trip_seconds,
                    told=pb.JOB_COMPLETE if each.knows_complete else pb.JOB_STATE_UNSPECIFIED,
                )

    def shown(self, register: Register, traffic: MachineTraffic) -> Sequence[ShownMachine]:
        """The machines of the job, and those that were revoked and have moved bytes."""
        with self.lock:
            heard = dict(self.machines)
        total = traffic.total
        there = [Ends(each.region, each.name) for each in register.machines]
        gone = sorted(total.keys() - set(there))
        slots = {each.name: each.slots for each in register.machines}
        return [
            _shown(ends, slots.get(ends.machine), heard.get(ends.machine), total, traffic)
            for ends in (*there, *gone)
        ]


def _shown(
    ends: Ends,
    slots: tuple[str, ...] | None,
    heard: Heard | None,
    total: dict[Ends, Moved],
    traffic: MachineTraffic,
) -> ShownMachine:
    moved, rates = total.get(ends, Moved()), traffic.rates(ends)
    known = heard or Heard(at=0.0)
    return ShownMachine(
        name=ends.machine,
        region=ends.region,
        slots=slots or (),
        address=known.address,
        round_trip_seconds=known.round_trip_seconds,
        heard_at=known.at,
        knows_complete=known.told == pb.JOB_COMPLETE,
        revoked=slots is None,
        up_bytes=moved.up,
        down_bytes=moved.down,
        up_rate=rates and rates[0],
        down_rate=rates and rates[1],
    )
