"""The status of a local run, made from what its shards say; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.conditions import decide
from atoll_operator.api.facts import (
    Facts,
    Kind,
    Phase,
    capped,
    late,
    leading,
    refused_offers,
    some_of,
    tick_seconds,
    troubles,
)
from atoll_operator.api.reasons import STORE_LOST
from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status, View, missing, of, training, without_step
from atoll_operator.local.plan import shard_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What is known of processes that have ended, in words with their last ones."""

    given_up: Sequence[str] = ()
    started_again: Mapping[str, str] = field(default_factory=dict)  # by slot, or by process
    # By slot of learners whose processes run for the first time: for how many seconds.
    starting: Mapping[str, float] = field(default_factory=dict)


NO_ENDS: Final = Ends()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the shards said at one moment; `replies` are by shard, None where none came."""

    job: Job
    replies: Sequence[pb.StatusReply | None]
    status: Status
    bytes_per_second: float | None  # bulk bytes, both ways; None while unknown
    elapsed_seconds: float = 0.0  # since the shards were asked for the first time
    starting: Mapping[str, float] = field(default_factory=dict)  # as in Ends
    merged_share: float | None = None  # of the tokens so far; None while nothing is merged


def status(
    job: Job,
    replies: Sequence[pb.StatusReply | None],
    asked_at: str,
    ends: Ends = NO_ENDS,
    still_seconds: float = 0.0,
) -> Status:
    """What `kubectl get -o yaml` would show of this job; `asked_at` is in RFC 3339.

    `still_seconds`: for how long the step has not moved.
    """
    found = of(View(job=job, replies=replies, asked_at=asked_at))
    said = decide(facts(job, replies, ends, still_seconds))
    return found.model_copy(update={"conditions": list(said)})


def facts(
    job: Job,
    replies: Sequence[pb.StatusReply | None],
    ends: Ends = NO_ENDS,
    still_seconds: float = 0.0,
) -> Facts:
    """What the conditions are made from.

    There are no pods and nodes here, one manifest and one machine: nothing is held, unreachable or
    of another cluster, and there are no certificates.
    """
    live, away = training(replies), missing(job, replies)
    silent = [shard_process(n) for n, reply in enumerate(replies) if reply is None]
    return Facts(
        phase=phase(job, replies),
        shard_states=tuple(reply.state if reply else None for reply in replies),
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


def _is_fresh(slot: str, replies: Sequence[pb.StatusReply | None]) -> bool:
    """Whether the registrar has seen nothing of a learner yet but that it joins."""
    shown = [each for each in (replies[0].slots if replies[0] else []) if each.slot == slot]
    return all(each.state == pb.SLOT_JOINING and not each.tokens_here for each in shown)


def failed(status: Status, reason: str, message: str) -> Status:
    """The last status of a job that cannot go on: its counts, and conditions that say why."""
    why = Phase(kind=Kind.FAILED, reason=reason, message=message)
    found = decide(Facts(phase=why, shard_states=()))
    return status.model_copy(update={"conditions": list(found)})


def suspended(status: Status, why: str) -> Status:
    """The last status of a run that stopped before its end: nothing runs, the run is kept."""
    message = f"{why}; atoll run DIR --resume continues"
    why_stopped = Phase(kind=Kind.SUSPENDED, reason="Suspended", message=message)
    found = decide(Facts(phase=why_stopped, shard_states=()))
    columns, syncer = status.columns, status.syncer
    if columns is not None:
        desired, shards = status.learners_desired, syncer.shards if syncer else "?"
        texts = {"learners": f"0/{desired}", "syncer": f"0/{shards}"}
        columns = columns.model_copy(update=texts)
    if syncer is not None:
        silent = {"ready": 0, "epochs": [None] * syncer.shards}
        syncer = syncer.model_copy(update=silent)
    regions = [each.model_copy(update={"live": 0, "lost": None}) for each in status.regions or []]
    return status.model_copy(
        update={
            "conditions": list(found),
            "columns": columns,
            "syncer": syncer,
            "regions": regions,
            "learners_live": 0,
        }
    )


def phase(job: Job, replies: Sequence[pb.StatusReply | None]) -> Phase:
    """Where the job stands, as the shards say."""
    for reply in replies:
        if reply is not None and reply.state == pb.SHARD_FAILED:
            return Phase(kind=Kind.FAILED, reason=STORE_LOST, message=reply.reason)
    registrar = replies[0]
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        message = f"trained to step {registrar.tick}; the model is in export"
        if idle := without_step(job, registrar):
            message += f"; {some_of(idle)} made no step"
        return Phase(kind=Kind.COMPLETE, reason="Trained", message=message)
    return Phase(kind=Kind.RUNNING, reason="Running", message="")
