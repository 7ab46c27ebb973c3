"""The conditions of a job, under both executors: what each says, why, and what to do; pure.

Theory of operation: how conditions are decided
-----------------------------------------------
`decide(facts)` returns one condition of each type, in the order of `TYPES`, from the first pass
over a job on. It is a function of `Facts` alone; no condition depends on an earlier one, so a
restarted operator says the same as the one before it. Only `lastTransitionTime` has a memory
(`merged`).

The facts come from three sources, in falling order of authority:

    phase           Rejected, Running, Suspended, Finishing, Complete or Failed: what the executor
                    does with the job (kube.plan.phase or local.progress)
    shards          their states and the registrar's list of slots; None where there is no answer
    pods and nodes  pods that wait, lost nodes, storms; empty under `atoll run`

Each condition asks in this order, and the first answer wins:

    1. Does anything run?   If the phase is not Running or Finishing, SyncerReady,
                            LearnersAvailable, Progressing and Degraded are False and their reason
                            is the phase, so that a finished job does not look broken.
    2. Can it be seen?      If what the condition is about gives no answer, it is Unknown (NoAnswer,
                            SyncerSilent). The last value is never repeated. A known trouble comes
                            before this: a pod that cannot be scheduled makes Degraded True and
                            SyncerReady False, even while shards are silent.
    3. What is wrong?       The most specific reason that is known; the message holds the details.
    4. Nothing is wrong.

Progressing walks from the cause to the effect, so that its reason names the first thing that is
missing: the shards (WaitingForSyncer), then learners (WaitingForLearners), then movement of the
step (Stalled). Near the end the shards stop asking for learners (their states are Final or
Complete); then missing learners are no trouble any more (TrainingOver, Exporting).

NodeLossHeld and SpecDrift do not depend on the phase. Accepted, Suspended, Complete and Failed
restate the phase; Complete and Failed stay once they are True.

Ready and Stalled are summaries for tools that know no other type (`_ready`, `_stalled`): kstatus,
by which `helm --wait`, Flux and kpt judge an object, takes Ready as "what was asked for is there"
and Stalled as "it has failed". The reason of Ready is the column State of `kubectl get`. They
bring no Events, since another condition has told the same.

`reasons.py` is the one table of what a condition can say. A condition takes its status from there,
so a reason without an entry, and hence without a remedy, cannot be used. A new condition takes its
entries in that table, a function here, and the facts that it needs.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from atoll_operator.api.facts import (
    OTHER_MANIFEST,
    SERVING,
    SUSPENDED_ELSEWHERE,
    SYNCER_LOST,
    Facts,
    Kind,
    Phase,
    some_of,
)
from atoll_operator.api.reasons import (
    FALSE,
    STALLED_SECONDS,
    STALLED_SECONDS_MAX,
    STALLED_TICKS,
    STATUSES,
    SUMMARIES,
    TRUE,
    TYPES,
    UNKNOWN,
)
from atoll_operator.api.shown import Condition
from atoll_protos.states import shard_text

MESSAGE_CHARACTERS_MAX: Final = 2000
BEGUN: Final = frozenset(  # status and reason of Ready, of a job that has trained
    {(TRUE, "Training"), (TRUE, "Degraded"), (TRUE, "Exporting"), (TRUE, "Evaluating")}
    | {(TRUE, "LearnersFinished")}
    | {(FALSE, "Waiting"), (FALSE, "Stalled"), (UNKNOWN, "SyncerSilent"), (FALSE, SYNCER_LOST)}
)
OF_WHAT_RUNS: Final = frozenset({"SyncerReady", "LearnersAvailable", "Progressing", "Degraded"})


def decide(facts: Facts) -> tuple[Condition, ...]:
    """One of each type, in the order of TYPES."""
    found = (
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
    by_type = {each.type: each for each in found}
    ready = _ready(facts, by_type)
    return (*found, ready, _stalled(facts, refused=ready.reason == "Refused"))


def rejected(reason: str, message: str, *, begun: bool = False) -> tuple[Condition, ...]:
    """All of them for a manifest that cannot be read.

    `begun`: pods of an earlier manifest run on, and cannot be seen.
    """
    phase = Phase(kind=Kind.REJECTED, reason=reason, message=message)
    rest = (
        Condition(
            type=kind,
            status=UNKNOWN if begun and kind in OF_WHAT_RUNS else FALSE,
            reason="NotAccepted",
        )
        for kind in TYPES[1:]
        if kind not in SUMMARIES
    )
    return (
        Condition(type="Accepted", status=FALSE, reason=reason, message=message),
        *rest,
        _of("Ready", "Rejected", message),
        _stalled(Facts(phase=phase, shard_states=())),
    )


def _of(kind: str, reason: str, message: str = "") -> Condition:
    """A condition of the table; its status stands there."""
    status = STATUSES[kind, reason]
    return Condition(
        type=kind, status=status, reason=reason, message=message[:MESSAGE_CHARACTERS_MAX]
    )


def _accepted(facts: Facts) -> Condition:
    if facts.phase.kind is Kind.REJECTED:
        return Condition(
            type="Accepted", status=FALSE, reason=facts.phase.reason, message=facts.phase.message
        )
    if facts.unaccepted:
        reason, message = facts.unaccepted
        if not facts.phase.kind.over:
            message += "; until then the job continues with the manifest that was accepted last"
        return _of("Accepted", reason, message)
    if facts.refused:
        reason = "TemplateRefused" if facts.template_refused else "ChildrenRefused"
        return _of("Accepted", reason, "; ".join(facts.refused))
    if not facts.served:
        return _of("Accepted", "NotServed", "this install serves none of the job's regions")
    if facts.certificates and not facts.trains:
        return _of("Accepted", facts.certificates_reason, "; ".join(facts.certificates))
    return _of("Accepted", "Valid")


def _idle(facts: Facts, kind: str) -> Condition | None:
    """Of a job that does not run, or that cannot be seen: the phase or the failure to read it."""
    phase = facts.phase.kind
    if phase is Kind.RUNNING or phase is Kind.FINISHING:
        return _of(kind, "NotRead", facts.unread) if facts.unread else None
    reason = "NotAccepted" if phase is Kind.REJECTED else str(phase)
    return Condition(type=kind, status=FALSE, reason=reason)


def _syncer_ready(facts: Facts) -> Condition:
    kind = "SyncerReady"
    idle = _idle(facts, kind)
    if idle is not None:
        return idle
    states = facts.shard_states
    each_state = ", ".join(
        f"shard {i} {'silent' if state is None else shard_text(state)}"
        for i, state in enumerate(states)
    )
    if all(state in SERVING for state in states):
        note = "storage is Ephemeral: a lost shard is restored from the learners"
        return _of(kind, "Serving", note if facts.ephemeral else "; ".join(facts.larger_claims))
    if facts.shard_problems:
        return _of(kind, "PodsNotReady", "; ".join(facts.shard_problems))
    if any(state is None for state in states):
        return _of(kind, "NoAnswer", "; ".join((each_state, *facts.unreachable)))
    return _of(kind, "Starting", each_state)


def _learners_available(facts: Facts) -> Condition:
    kind = "LearnersAvailable"
    idle = _idle(facts, kind)
    if idle is not None:
        return idle
    if facts.live is None:
        return _of(kind, "SyncerSilent", "shard 0, which counts the learners, does not answer")
    if facts.ended:
        return _of(kind, "TrainingOver")
    counted = f"{facts.live} of {facts.desired} in training, quorum {facts.quorum}"
    if facts.starting:
        counted += f"; not yet, because they start: {some_of(facts.starting)}"
    if facts.live >= facts.quorum:
        return _of(kind, "Quorum", counted)
    reason = "TooFew" if _is_short(facts) else "LearnersStarting"
    return _of(kind, reason, "; ".join((counted, *facts.exited, *facts.losses)))


def _starting(facts: Facts) -> str:
    return f"{len(facts.starting)} of {facts.desired} learners start: {some_of(facts.starting)}"


def _is_short(facts: Facts) -> bool:
    """Whether learners are missing that do not come by themselves, as far as is known."""
    return bool(facts.lacking > 0 or facts.exited or facts.losses)


def _progressing(facts: Facts) -> Condition:
    kind = "Progressing"
    idle = _idle(facts, kind)
    if idle is not None:
        return idle
    if facts.phase.kind is Kind.FINISHING:
        return _of(kind, facts.phase.reason)
    if facts.hold is not None and facts.hold.reason == SYNCER_LOST:
        return _of(kind, SYNCER_LOST)
    if facts.ended:
        return _of(kind, "Exporting", "; ".join(facts.troubles))
    if facts.live is None:
        return _of(kind, "SyncerSilent")
    if not all(state in SERVING for state in facts.shard_states):
        return _of(kind, "WaitingForSyncer")
    if facts.live < facts.quorum:
        if not _is_short(facts):
            return _of(kind, "LearnersStarting", _starting(facts))
        return _of(kind, "WaitingForLearners")
    still = max(STALLED_SECONDS, min(STALLED_TICKS * facts.tick_seconds, STALLED_SECONDS_MAX))
    if facts.stalled_seconds > still:
        message = f"the step has not moved for {STALLED_SECONDS:.0f} s or longer"
        return _of(kind, "Stalled", f"{message}; see the learners' logs")
    return _of(kind, "Training", facts.late)


def _degraded(facts: Facts) -> Condition:
    kind = "Degraded"
    idle = _idle(facts, kind)
    if idle is not None:
        return idle
    if facts.hold is not None:
        return _of(kind, facts.hold.reason, facts.hold.message)
    certificates = (*facts.certificates, *facts.expiring)
    if facts.exited:
        every = (*facts.exited, *facts.shard_problems, *facts.losses, *certificates)
        return _of(kind, "PodsExited", "; ".join(every))
    if facts.losses or facts.shard_problems:
        every = (*facts.shard_problems, *facts.losses, *certificates)
        return _of(kind, "PodsMissing", "; ".join(every))
    for reason, words in (
        ("SlotHeldElsewhere", facts.held_elsewhere),
        ("StoreTrouble", facts.troubles),
        ("OffersRefused", facts.refused_offers),
        (facts.certificates_reason, certificates if facts.certificates else ()),
        ("CredentialsExpire", facts.expiring),
    ):
        if words:
            return _of(kind, reason, "; ".join(words))
    if facts.live is None:
        return _of(kind, "SyncerSilent")
    return _fewer(facts)


def _fewer(facts: Facts) -> Condition:
    """Degraded of a job with which nothing is wrong but the number of its learners, perhaps."""
    kind = "Degraded"
    if facts.lacking > 0 and not facts.ended:
        message = f"{facts.lacking} of {facts.desired} learners are not in training"
        missing = [slot for slot in facts.missing if slot not in facts.starting]
        if missing:
            message += f": {some_of(missing)}"
        return _of(kind, "LearnersMissing", "; ".join((message, *facts.away)))
    if facts.starting and not facts.ended:
        return _of(kind, "LearnersStarting", "; ".join((_starting(facts), *facts.away)))
    if facts.capped:
        return _of(kind, "TokensAboveLimit", "; ".join((*facts.capped, *facts.leading)))
    if facts.leading:
        return _of(kind, "OneLearnerLeads", "; ".join(facts.leading))
    return _of(kind, "AllWell")


def _held(facts: Facts) -> Condition:
    return _of("NodeLossHeld", "Storm" if facts.held else "NoStorm", "; ".join(facts.held))


def _drift(facts: Facts) -> Condition:
    if facts.hold is not None and facts.hold.reason == OTHER_MANIFEST:
        return _of("SpecDrift", OTHER_MANIFEST, facts.hold.message)
    if facts.other_counts:
        return _of("SpecDrift", "OtherCounts", "; ".join(facts.other_counts))
    if facts.stale_endpoints:
        return _of("SpecDrift", "StaleEndpoints", "; ".join(facts.stale_endpoints))
    if facts.transport and not facts.drift:
        return _of("SpecDrift", "TransportDiffers", facts.transport)
    return _of("SpecDrift", "Differs" if facts.drift else "InStep", "; ".join(facts.drift))


def _suspended(facts: Facts) -> Condition:
    kind = "Suspended"
    if facts.phase.kind is not Kind.SUSPENDED:
        return _of(kind, "NotSuspended")
    if facts.phase.reason == SUSPENDED_ELSEWHERE:
        return _of(kind, SUSPENDED_ELSEWHERE, facts.phase.message)
    if facts.pods_left:
        return _of(kind, "Suspending", f"{facts.pods_left} pods have not ended yet")
    note = "shards that hold a run keep running, because their storage is Ephemeral"
    return _of(kind, "Suspended", note if facts.ephemeral else "")


def _over(facts: Facts, kind: str, phase: Kind) -> Condition:
    if facts.phase.kind is phase:
        return Condition(
            type=kind, status=TRUE, reason=facts.phase.reason, message=facts.phase.message
        )
    return _of(kind, f"Not{kind}")


def _ready(facts: Facts, by_type: Mapping[str, Condition]) -> Condition:
    """Whether the job is as its user wants it: it trains, or has trained. Else what it waits for.

    A job that trains without some of its learners is Ready: that is what it is made for. So is one
    of which the API server refuses an object that no pod needs now, such as a larger volume.
    """
    phase, kind = facts.phase, "Ready"
    if phase.kind not in (Kind.RUNNING, Kind.FINISHING):
        return _of(kind, str(phase.kind), phase.message)
    if facts.unread:
        return _of(kind, "NotRead", facts.unread)
    if facts.hold is not None and facts.hold.reason == SYNCER_LOST:
        return _of(kind, SYNCER_LOST, facts.hold.message)
    accepted, progressing, degraded = (
        by_type[each] for each in ("Accepted", "Progressing", "Degraded")
    )
    trains = progressing.status == TRUE
    if trains and accepted.reason == "ChildrenRefused":
        return _of(kind, "Degraded", accepted.message)
    if accepted.status == FALSE:
        reason = "Rejected" if facts.unaccepted else "Refused"
        return _of(kind, reason, accepted.message)
    if trains:
        lacks = degraded.status == TRUE and degraded.reason != "LearnersMissing"
        lacks &= progressing.reason == "Training"
        message = degraded.message or progressing.message
        return _of(kind, "Degraded" if lacks else progressing.reason, message)
    if progressing.reason == "Stalled":
        return _of(kind, "Stalled", progressing.message)
    missing = [
        each.message
        for each in (by_type["SyncerReady"], by_type["LearnersAvailable"])
        if each.status != TRUE and each.message
    ]
    if not facts.begun:
        return _of(kind, "Starting", "; ".join(missing))
    if progressing.status == UNKNOWN:
        return _of(kind, "SyncerSilent", "; ".join(missing))
    return _of(kind, "Waiting", "; ".join(missing))


def _stalled(facts: Facts, *, refused: bool = False) -> Condition:
    """Whether a person must act before anything happens, or before an edit comes into force.

    `refused`: the API server refuses objects without which the job is not as it is wanted.
    """
    phase = facts.phase
    if facts.unaccepted and not phase.kind.over:
        return _of("Stalled", str(Kind.REJECTED), ": ".join(facts.unaccepted))
    if phase.kind in (Kind.FAILED, Kind.REJECTED):
        return _of("Stalled", str(phase.kind), f"{phase.reason}: {phase.message}")
    if refused and facts.refused:
        return _of("Stalled", "Refused", "; ".join(facts.refused))
    return _of("Stalled", "NotStalled")


def has_begun(conditions: Sequence[Condition]) -> bool:
    """Whether a status with these conditions shows a job that has trained since its last start."""
    return any(each.type == "Ready" and (each.status, each.reason) in BEGUN for each in conditions)


def merged(
    old: Sequence[Condition], new: Sequence[Condition], generation: int, now: str
) -> list[Condition]:
    """The new ones with times: lastTransitionTime moves only when the status does.

    `old` are the conditions that the object has, `now` is in RFC 3339.
    """
    before = {each.type: each for each in old}
    found = []
    for each in new:
        known = before.get(each.type)
        since = known.last_transition_time if known and known.status == each.status else None
        times = {"observed_generation": generation, "last_transition_time": since or now}
        found.append(each.model_copy(update=times))
    return found


def transitions(old: Sequence[Condition], new: Sequence[Condition]) -> tuple[Condition, ...]:
    """Those whose status has changed; a first False is not worth an Event, nor is a summary."""
    before = {each.type: each.status for each in old}
    return tuple(
        each
        for each in new
        if each.type not in SUMMARIES
        and before.get(each.type) != each.status
        and not (each.type not in before and each.status != TRUE)
    )
