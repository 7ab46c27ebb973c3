"""The status of a local run and the state of its job, made from what its shards say; pure.

machines.json of a folder of `atoll serve` has its machines and what goes to and fro, for `atoll
top` and for the next start: `up` is from a machine to the shards, `down` the other way.
"""

import dataclasses
import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import (
    Facts,
    Phase,
    PhaseKind,
    conditions_of,
    facts_of_replies,
    some_of,
)
from atoll_operator.api.status.job_status import (
    ENDED,
    SeenJob,
    Status,
    missing,
    starts,
    status_of,
    training,
    without_step,
)
from atoll_operator.api.status.reasons import STORE_LOST
from atoll_operator.local.process_plan import shard_process
from atoll_operator.local.run_files import ends_of_starts
from atoll_protos.documents import parse
from atoll_protos.errors import SpecError

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
    """One machine. A name that is revoked stays, with what it has moved."""

    name: str
    region: str
    slots: tuple[str, ...] = ()
    address: str = ""  # as the server sees it, without a port
    revoked: bool = False
    up_bytes: int = 0  # in all
    down_bytes: int = 0
    up_rate: float | None = None  # bits a second at present; None while unknown
    down_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesFile:
    """What machines.json holds."""

    machines: tuple[ShownMachine, ...] = ()


def moved_by_machines(tapes: Iterable[list[dict[str, Any]]]) -> dict[Ends, Moved]:
    """Over all starts of the shards, as their tapes have it."""
    up, down = Counter[Ends](), Counter[Ends]()
    for tape in tapes:
        for last in ends_of_starts(tape):
            for region, machines in last.get("machines", {}).items():
                for name, moved in machines.items():
                    up[Ends(region, name)] += moved[0]
                    down[Ends(region, name)] += moved[1]
    return {ends: Moved(up[ends], down[ends]) for ends in up.keys() | down.keys()}


class MachineTraffic:
    """What the shards say of it: in all, and at present."""

    def __init__(self, before: Mapping[Ends, Moved] = MappingProxyType({})) -> None:
        """`before`: what processes of shards have moved that have ended before this run began."""
        self._before = dict(before)
        self._said: dict[str, dict[Ends, Moved]] = {}  # by process of a shard: the newest
        self._seen: deque[tuple[float, dict[Ends, Moved]]] = deque()

    def see(self, now: float, replies: Iterable[pb.StatusReply | None]) -> None:
        """`now` is in monotonic seconds."""
        for reply in filter(None, replies):
            links = (link for link in reply.links if link.machine)
            self._said[reply.instance] = {
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
    """Read what a run has seen last; None: it has no machines, or has seen none yet."""
    try:
        text = (out / MACHINES_FILE).read_text(encoding="utf-8")
        return parse(MachinesFile, text, MACHINES_FILE)
    except (OSError, SpecError):
        return None


def to_json(found: MachinesFile) -> str:
    return json.dumps(dataclasses.asdict(found), indent=2) + "\n"


Replies = Sequence[pb.StatusReply | None]


class JobState(Enum):
    """What the shards of a job do."""

    UNKNOWN = auto()  # nothing is known of all shards just now
    TRAINING = auto()
    FINAL = auto()  # every shard has had its last rounds
    COMPLETE = auto()
    FAILED = auto()
    SUSPENDED = auto()  # no learner is to run until it is another one again


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """How a job stands."""

    state: JobState = JobState.UNKNOWN
    why: str = ""
    tick: int = 0
    length: int = 0  # in steps; 0: not known


def job_state(replies: Replies) -> JobState:
    """Say what the shards do, whatever is intended with their job; the registrar completes it."""
    states = [reply.state if reply else None for reply in replies]
    if states[0] == pb.SHARD_COMPLETE:
        return JobState.COMPLETE
    if all(state in ENDED for state in states):
        return JobState.FINAL
    return JobState.TRAINING if all(replies) else JobState.UNKNOWN


def job_now(replies: Replies) -> JobNow:
    """Take the registrar's word, else that of the first that has answered."""
    first, state = next(filter(None, replies)), job_state(replies)
    if state is not JobState.COMPLETE:
        intents = {pb.INTENT_SUSPEND: JobState.SUSPENDED, pb.INTENT_FAIL: JobState.FAILED}
        state = intents.get(first.intent, state)
    return JobNow(state=state, why=first.why, tick=first.tick, length=first.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReports:
    """What is known of processes that have ended, in words with their last ones."""

    given_up: Sequence[str] = ()
    started_again: Mapping[str, str] = field(default_factory=dict)  # by slot, or by process
    # By slot of learners whose processes run for the first time: for how many seconds.
    starting: Mapping[str, float] = field(default_factory=dict)


NO_REPORTS: Final = ProcessReports()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """What the shards said at one moment; `replies` are by shard, None where none came."""

    job: Job
    replies: Replies
    status: Status
    bytes_per_second: float | None  # bulk bytes, both ways; None while unknown
    elapsed_seconds: float = 0.0  # since the shards were asked for the first time
    starting: Mapping[str, float] = field(default_factory=dict)  # as in ProcessReports
    known: Replies = ()  # by shard, the last answer, however old
    machines: Sequence[ShownMachine] = ()  # of `atoll serve`

    @property
    def step(self) -> int:
        """The step of the job as it was known last; 0 before every shard has answered."""
        known = self.known or self.replies
        return min((reply.tick if reply else 0 for reply in known), default=0)

    @property
    def registrar(self) -> pb.StatusReply | None:
        return (self.known or self.replies)[0]

    @property
    def away(self) -> tuple[str, ...]:
        pairs = enumerate(zip(self.known, self.replies, strict=False))
        return tuple(shard_process(n) for n, (known, now) in pairs if known and not now)


def status(
    job: Job,
    replies: Replies,
    asked_at: str,
    ends: ProcessReports = NO_REPORTS,
    still_seconds: float = 0.0,
    unaccepted: str = "",
) -> Status:
    """`asked_at` is in RFC 3339; `still_seconds`: for how long the step has not moved.

    `unaccepted`: why the run does not follow its manifest as it is now.
    """
    found = status_of(SeenJob(job=job, replies=replies, asked_at=asked_at))
    seen = facts(job, replies, ends, still_seconds)
    if unaccepted:
        seen = replace(seen, unaccepted=("NotSupported", unaccepted))
    said = conditions_of(seen)
    return found.model_copy(update={"conditions": list(said)})


def facts(job: Job, replies: Replies, ends: ProcessReports, still_seconds: float) -> Facts:
    """There are no pods, nodes or certificates here."""
    live, away = training(replies), missing(job, replies)
    silent = [shard_process(n) for n, reply in enumerate(replies) if reply is None]
    return Facts(
        **facts_of_replies(replies, job.spec.sync),
        phase=phase(job, replies),
        desired=job.spec.learners,
        live=None if live is None else len(live),
        missing=away,
        starting=tuple(slot for slot in away if slot in ends.starting and _is_fresh(slot, replies)),
        quorum=job.spec.learners_needed,
        exited=tuple(ends.given_up),
        shard_problems=tuple(
            ends.started_again[name] for name in silent if name in ends.started_again
        ),
        losses=tuple(text for slot, text in ends.started_again.items() if slot in away),
        stalled_seconds=still_seconds,
        begun=any(reply is not None and reply.tick > 0 for reply in replies),
    )


def _is_fresh(slot: str, replies: Replies) -> bool:
    """Whether the registrar has seen no step of a learner yet."""
    shown = [status for status in (replies[0].slots if replies[0] else []) if status.slot == slot]
    return all(starts(status) and not status.tokens_here for status in shown)


def failed(status: Status, reason: str, message: str) -> Status:
    why = Phase(kind=PhaseKind.FAILED, reason=reason, message=message)
    found = conditions_of(Facts(phase=why, shard_states=()))
    return status.model_copy(update={"conditions": list(found)})


def suspended(status: Status, why: str, remedy: str) -> Status:
    """`remedy`: the command that continues it."""
    message = f"{why}; {remedy} continues"
    why_stopped = Phase(kind=PhaseKind.SUSPENDED, reason="Suspended", message=message)
    found = conditions_of(Facts(phase=why_stopped, shard_states=()))
    columns, syncer = status.columns, status.syncer
    if columns is not None:
        shards = syncer.shards if syncer else "?"
        texts = {"learners": f"0/{status.learners_desired}", "syncer": f"0/{shards}"}
        columns = columns.model_copy(update=texts)
    if syncer is not None:
        syncer = syncer.model_copy(update={"ready": 0, "epochs": [0] * syncer.shards})
    regions = [
        region.model_copy(update={"live": 0, "lost": None}) for region in status.regions or []
    ]
    stopped = {"learners_live": 0, "columns": columns, "syncer": syncer, "regions": regions}
    return status.model_copy(update={"conditions": list(found), **stopped})


def phase(job: Job, replies: Replies) -> Phase:
    for reply in replies:
        if reply is not None and reply.state == pb.SHARD_FAILED:
            return Phase(kind=PhaseKind.FAILED, reason=STORE_LOST, message=reply.reason)
    registrar = replies[0]
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        message = f"trained to step {registrar.tick}; the model is in export/ of the run folder"
        if idle := without_step(job, registrar):
            message += f"; {some_of(idle)} made no step"
        return Phase(kind=PhaseKind.COMPLETE, reason="Trained", message=message)
    return Phase(kind=PhaseKind.RUNNING, reason="Running", message="")
