"""The ten conditions, of both executors, all present from the first pass; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.states import shard_text

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
TYPES: Final = (
    "Accepted", "SyncerReady", "LearnersAvailable", "Progressing", "Degraded",
    "NodeLossHeld", "SpecDrift", "Suspended", "Complete", "Failed",
)  # fmt: skip
WARNINGS: Final = frozenset({"Degraded", "NodeLossHeld", "SpecDrift", "Failed"})
ENDED: Final = frozenset(
    {pb.SHARD_FINAL, pb.SHARD_COMPLETE}
)  # shards that ask nothing more of learners
SERVING: Final = frozenset({pb.SHARD_SERVING, *ENDED})
STALLED_SECONDS: Final = 120.0
STORE_LOST: Final = "StoreLost"


class Kind(StrEnum):
    """What the operator does with a job."""

    REJECTED = "Rejected"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    FINISHING = "Finishing"  # the model is exported; the evaluator has its last word
    COMPLETE = "Complete"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        """Nothing runs any more."""
        return self in (Kind.COMPLETE, Kind.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """With the reason and message of its condition."""

    kind: Kind
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition without its times."""

    type: str
    status: str
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the conditions are made from. `live` is None when the registrar cannot be asked."""

    phase: Phase
    shard_states: tuple[pb.ShardState | None, ...]  # as Status says; None: no answer
    shard_problems: tuple[str, ...] = ()
    desired: int = 0
    live: int | None = None
    quorum: int = 1
    losses: tuple[str, ...] = ()  # what is not as it should be, in words
    held: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    stalled_seconds: float = 0.0
    ephemeral: bool = False
    pods_left: int = 0
    troubles: tuple[str, ...] = ()  # with storage, which shards try again, in words

    @property
    def ended(self) -> bool:
        """Every shard has had its last rounds."""
        return all(state in ENDED for state in self.shard_states)


def troubles(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """What shards that serve try again."""
    return tuple(
        f"shard {reply.shard}: {reply.reason}"
        for reply in replies
        if reply is not None and reply.reason and reply.state in SERVING
    )


def decide(facts: Facts) -> tuple[Condition, ...]:
    """One of each type."""
    return (
        _accepted(facts),
        _syncer_ready(facts),
        _learners_available(facts),
        _progressing(facts),
        _degraded(facts),
        _held(facts),
        _drift(facts),
        _suspended(facts),
        _over(facts, "Complete", Kind.COMPLETE),
        _over(facts, "Failed", Kind.FAILED),
    )


def rejected(reason: str, message: str) -> tuple[Condition, ...]:
    """All ten for a manifest that cannot be read."""
    rest = (Condition(type=kind, status=FALSE, reason="NotAccepted") for kind in TYPES[1:])
    return (Condition(type="Accepted", status=FALSE, reason=reason, message=message), *rest)


def _accepted(facts: Facts) -> Condition:
    if facts.phase.kind is Kind.REJECTED:
        return Condition(
            type="Accepted", status=FALSE, reason=facts.phase.reason, message=facts.phase.message
        )
    return Condition(type="Accepted", status=TRUE, reason="Valid")


def _idle(facts: Facts, kind: str) -> Condition | None:
    """What does not run is not judged."""
    phase = facts.phase.kind
    if phase is Kind.RUNNING or phase is Kind.FINISHING:
        return None
    reason = "NotAccepted" if phase is Kind.REJECTED else str(phase)
    return Condition(type=kind, status=FALSE, reason=reason)


def _syncer_ready(facts: Facts) -> Condition:
    idle = _idle(facts, "SyncerReady")
    if idle is not None:
        return idle
    states = facts.shard_states
    problems = "; ".join(facts.shard_problems)
    told = ", ".join(
        f"shard {i} {'silent' if state is None else shard_text(state)}"
        for i, state in enumerate(states)
    )
    if all(state in SERVING for state in states):
        note = ""
        if facts.ephemeral:
            note = "storage is Ephemeral: a lost shard is restored from the learners"
        return Condition(type="SyncerReady", status=TRUE, reason="Serving", message=note)
    if problems:
        return Condition(type="SyncerReady", status=FALSE, reason="PodsNotReady", message=problems)
    if any(state is None for state in states):
        return Condition(type="SyncerReady", status=UNKNOWN, reason="NoAnswer", message=told)
    return Condition(type="SyncerReady", status=FALSE, reason="Starting", message=told)


def _learners_available(facts: Facts) -> Condition:
    kind = "LearnersAvailable"
    idle = _idle(facts, kind)
    if idle is not None:
        return idle
    if facts.live is None:
        return Condition(
            type=kind, status=UNKNOWN, reason="SyncerSilent", message="the registrar is silent"
        )
    if facts.ended:
        return Condition(type=kind, status=TRUE, reason="TrainingOver")
    said = f"{facts.live} of {facts.desired} in training, quorum {facts.quorum}"
    if facts.live >= facts.quorum:
        return Condition(type=kind, status=TRUE, reason="Quorum", message=said)
    why = "; ".join((said, *facts.losses))
    return Condition(type=kind, status=FALSE, reason="TooFew", message=why[:2000])


def _progressing(facts: Facts) -> Condition:
    kind = "Progressing"
    idle = _idle(facts, kind)
    if idle is not None:
        return idle
    if facts.phase.kind is Kind.FINISHING:
        return Condition(type=kind, status=TRUE, reason=facts.phase.reason)
    if facts.ended:
        return Condition(
            type=kind, status=TRUE, reason="Exporting", message="; ".join(facts.troubles)
        )
    if facts.live is None:
        return Condition(type=kind, status=UNKNOWN, reason="SyncerSilent")
    if not all(state in SERVING for state in facts.shard_states):
        return Condition(type=kind, status=FALSE, reason="WaitingForSyncer")
    if facts.live < facts.quorum:
        return Condition(type=kind, status=FALSE, reason="WaitingForLearners")
    if facts.stalled_seconds > STALLED_SECONDS:
        said = f"the step has not moved for {facts.stalled_seconds:.0f} s; see the learners' logs"
        return Condition(type=kind, status=FALSE, reason="Stalled", message=said)
    return Condition(type=kind, status=TRUE, reason="Training")


def _degraded(facts: Facts) -> Condition:
    idle = _idle(facts, "Degraded")
    if idle is not None:
        return idle
    if facts.losses or facts.shard_problems:
        said = "; ".join((*facts.shard_problems, *facts.losses))
        return Condition(type="Degraded", status=TRUE, reason="PodsMissing", message=said[:2000])
    if facts.troubles:
        said = "; ".join(facts.troubles)
        return Condition(type="Degraded", status=TRUE, reason="StoreTrouble", message=said[:2000])
    if facts.live is None:
        return Condition(type="Degraded", status=UNKNOWN, reason="SyncerSilent")
    if facts.live < facts.desired and not facts.ended:
        said = f"{facts.desired - facts.live} of {facts.desired} learners are not in training yet"
        return Condition(type="Degraded", status=TRUE, reason="LearnersMissing", message=said)
    return Condition(type="Degraded", status=FALSE, reason="AllWell")


def _held(facts: Facts) -> Condition:
    if facts.held:
        return Condition(
            type="NodeLossHeld", status=TRUE, reason="Storm", message="; ".join(facts.held)
        )
    return Condition(type="NodeLossHeld", status=FALSE, reason="NoStorm")


def _drift(facts: Facts) -> Condition:
    if facts.drift:
        return Condition(
            type="SpecDrift", status=TRUE, reason="Differs", message="; ".join(facts.drift)
        )
    return Condition(type="SpecDrift", status=FALSE, reason="InStep")


def _suspended(facts: Facts) -> Condition:
    if facts.phase.kind is not Kind.SUSPENDED:
        return Condition(type="Suspended", status=FALSE, reason="NotSuspended")
    if facts.pods_left:
        said = f"{facts.pods_left} pods are still to end"
        return Condition(type="Suspended", status=FALSE, reason="Suspending", message=said)
    note = ""
    if facts.ephemeral:
        note = "shards that hold a run stay: their storage is Ephemeral"
    return Condition(type="Suspended", status=TRUE, reason="Suspended", message=note)


def _over(facts: Facts, kind: str, phase: Kind) -> Condition:
    if facts.phase.kind is phase:
        return Condition(
            type=kind, status=TRUE, reason=facts.phase.reason, message=facts.phase.message
        )
    return Condition(type=kind, status=FALSE, reason=f"Not{kind}")


def merged(
    old: Sequence[Mapping[str, Any]], new: Sequence[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """With times: lastTransitionTime moves only when the status does."""
    before = {each["type"]: each for each in old}
    found = []
    for each in new:
        known = before.get(each.type, {})
        same = known.get("status") == each.status
        found.append(
            {
                "type": each.type,
                "status": each.status,
                "observedGeneration": generation,
                "lastTransitionTime": known.get("lastTransitionTime", now) if same else now,
                "reason": each.reason,
                "message": each.message,
            }
        )
    return found


def transitions(
    old: Sequence[Mapping[str, Any]], new: Sequence[Condition]
) -> tuple[Condition, ...]:
    """Those whose status has changed; a first False is no news."""
    before = {each["type"]: each["status"] for each in old}
    return tuple(
        each
        for each in new
        if before.get(each.type) != each.status
        and not (each.type not in before and each.status != TRUE)
    )
