"""The status of a local run, made from what its shards say; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.condition_facts import (
    Facts,
    Phase,
    PhaseKind,
    capped,
    late,
    leading,
    reading,
    refused_offers,
    some_of,
    tick_seconds,
    troubles,
)
from atoll_operator.api.status.conditions import conditions_of
from atoll_operator.api.status.job_status import Status
from atoll_operator.api.status.reasons import STORE_LOST
from atoll_operator.api.status.seen_status import (
    SeenJob,
    missing,
    starts,
    status_of,
    training,
    without_step,
)
from atoll_operator.local.planning.process_plan import shard_process
from atoll_operator.local.progress.machines import ShownMachine

Replies = Sequence[pb.StatusReply | None]


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
    merged_share: float | None = None  # of the tokens so far; None while nothing is merged
    known: Replies = ()  # by shard, the last answer, however old
    machines: Sequence[ShownMachine] = ()  # of `atoll serve`

    @property
    def step(self) -> int:
        """The step of the job as it was known last; 0 before every shard has answered."""
        known = self.known or self.replies
        return min((each.tick if each else 0 for each in known), default=0)

    @property
    def registrar(self) -> pb.StatusReply | None:
        return (self.known or self.replies)[0]

    @property
    def serving(self) -> frozenset[str]:
        """The instances of the processes that have the shards, as far as that is known."""
        return frozenset(each.instance for each in self.known or self.replies if each)

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
        phase=phase(job, replies),
        shard_states=tuple(reply.state if reply else None for reply in replies),
        reading=reading(replies),
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
        troubles=troubles(replies),
        refused_offers=refused_offers(replies),
        late=late(replies, job.spec.sync),
        leading=leading(replies),
        capped=capped(replies),
        stalled_seconds=still_seconds,
        tick_seconds=tick_seconds(replies),
        begun=any(reply is not None and reply.tick > 0 for reply in replies),
    )


def _is_fresh(slot: str, replies: Replies) -> bool:
    """Whether the registrar has seen no step of a learner yet."""
    shown = [each for each in (replies[0].slots if replies[0] else []) if each.slot == slot]
    return all(starts(each) and not each.tokens_here for each in shown)


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
    regions = [each.model_copy(update={"live": 0, "lost": None}) for each in status.regions or []]
    stopped = {"learners_live": 0, "columns": columns, "syncer": syncer, "regions": regions}
    return status.model_copy(update={"conditions": list(found), **stopped})


def phase(job: Job, replies: Replies) -> Phase:
    for reply in replies:
        if reply is not None and reply.state == pb.SHARD_FAILED:
            return Phase(kind=PhaseKind.FAILED, reason=STORE_LOST, message=reply.reason)
    registrar = replies[0]
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        message = f"trained to step {registrar.tick}; the model is in export"
        if idle := without_step(job, registrar):
            message += f"; {some_of(idle)} made no step"
        return Phase(kind=PhaseKind.COMPLETE, reason="Trained", message=message)
    return Phase(kind=PhaseKind.RUNNING, reason="Running", message="")
