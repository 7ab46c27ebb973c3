"""The conditions of a job, under both executors: what each says, why, and what to do; pure.

No condition depends on an earlier one, so a restarted operator says the same as the one before it.
Only `lastTransitionTime` has a memory (`merged`). Each condition asks in this order, and the first
answer wins:

    1. Does anything run?   If the phase is not Running or Finishing, SyncerReady,
                            LearnersAvailable, Progressing and Degraded are False and their reason
                            is the phase, so that a finished job does not look broken.
    2. Can it be seen?      What gives no answer is Unknown (NoAnswer, SyncerSilent). A known
                            trouble comes before this: a pod that cannot be scheduled makes Degraded
                            True and SyncerReady False, even while shards are silent.
    3. What is wrong?       The most specific reason that is known; the message holds the details.
    4. Nothing is wrong.

Near the end the shards stop asking for learners (their states are Final or Complete); then missing
learners are no trouble any more (TrainingOver, Exporting).

Ready and Stalled are summaries for tools that know no other type: kstatus, by which `helm --wait`,
Flux and kpt judge an object. They bring no Events, since another condition reports the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from atoll_operator.api.status.condition_facts import (
    OTHER_MANIFEST,
    SERVING,
    SUSPENDED_ELSEWHERE,
    SYNCER_LOST,
    Facts,
    Phase,
    PhaseKind,
    some_of,
)
from atoll_operator.api.status.job_status import Condition
from atoll_operator.api.status.reasons import (
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
from atoll_protos.job.shown_states import shard_text

MESSAGE_CHARACTERS_MAX: Final = 2000
BEGUN: Final = frozenset(  # reasons of Ready, of a job that has trained
    {"Training", "Degraded", "Exporting", "Evaluating", "LearnersFinished"}
    | {"Waiting", "Stalled", "SyncerSilent", SYNCER_LOST}
)
RUNS: Final = (PhaseKind.RUNNING, PhaseKind.FINISHING)
Said = tuple[str, ...]  # the reason of a condition, and the parts of its message


def conditions_of(facts: Facts) -> tuple[Condition, ...]:
    found = (
        _accepted(facts),
        *(_idle(facts, kind) or _of(kind, *said(facts)) for kind, said in OF_WHAT_RUNS.items()),
        _of("NodeLossHeld", "Storm" if facts.held else "NoStorm", *facts.held),
        _of("SpecDrift", *_drift(facts)),
        _of("Suspended", *_suspended(facts)),
        _over(facts, "Complete", PhaseKind.COMPLETE),
        _over(facts, "Failed", PhaseKind.FAILED),
    )
    ready = _of("Ready", *_ready(facts, {each.type: each for each in found}))
    return (*found, ready, _stalled(facts, refused=ready.reason == "Refused"))


def rejected(reason: str, message: str, *, begun: bool = False) -> tuple[Condition, ...]:
    """All of them for a manifest that cannot be read; `begun`: pods run on, and are not seen."""
    phase = Phase(kind=PhaseKind.REJECTED, reason=reason, message=message)
    unseen = OF_WHAT_RUNS.keys() if begun else ()
    rest = [kind for kind in TYPES[1:] if kind not in SUMMARIES]
    return (
        _of("Accepted", reason, message, status=FALSE),
        *(_of(kind, "NotAccepted", status=UNKNOWN if kind in unseen else FALSE) for kind in rest),
        _of("Ready", "Rejected", message),
        _stalled(Facts(phase=phase, shard_states=())),
    )


def _of(kind: str, reason: str, *words: str, status: str = "") -> Condition:
    message = "; ".join(words)[:MESSAGE_CHARACTERS_MAX]
    status = status or STATUSES[kind, reason]
    return Condition(type=kind, status=status, reason=reason, message=message)


def _accepted(facts: Facts) -> Condition:
    kind, phase = "Accepted", facts.phase
    if phase.kind is PhaseKind.REJECTED:
        return _of(kind, phase.reason, phase.message, status=FALSE)
    if facts.unaccepted:
        until = "until then the job continues with the manifest that was accepted last"
        return _of(kind, *facts.unaccepted, *([] if phase.kind.over else [until]))
    if facts.refused:
        reason = "TemplateRefused" if facts.template_refused else "ChildrenRefused"
        return _of(kind, reason, *facts.refused)
    if not facts.served:
        return _of(kind, "NotServed", "this install serves none of the job's regions")
    if facts.certificates and not facts.trains:
        return _of(kind, facts.certificates_reason, *facts.certificates)
    return _of(kind, "Valid", *facts.warnings)


def _idle(facts: Facts, kind: str) -> Condition | None:
    """Of a job that does not run, or cannot be seen."""
    phase = facts.phase.kind
    if phase in RUNS:
        return _of(kind, "NotRead", facts.unread) if facts.unread else None
    reason = "NotAccepted" if phase is PhaseKind.REJECTED else str(phase)
    return _of(kind, reason, status=FALSE)


def _syncer_ready(facts: Facts) -> Said:
    states = facts.shard_states
    each_state = ", ".join(
        f"shard {i} {'silent' if state is None else shard_text(state)}"
        for i, state in enumerate(states)
    )
    if all(state in SERVING for state in states):
        if facts.reading:
            return "Starting", *facts.reading
        if facts.without_standby:
            return "NoStandby", *facts.without_standby
        note = "storage is Ephemeral: a lost shard is restored from the learners"
        return "Serving", *([note] if facts.ephemeral else facts.larger_claims)
    if facts.shard_problems:
        return "PodsNotReady", *facts.shard_problems
    if None in states:
        return "NoAnswer", each_state, *facts.unreachable
    return "Starting", each_state


def _learners_available(facts: Facts) -> Said:
    if facts.live is None:
        return "SyncerSilent", "shard 0, which counts the learners, does not answer"
    if facts.ended:
        return ("TrainingOver",)
    counted = f"{facts.live} of {facts.desired} in training, quorum {facts.quorum}"
    if facts.starting:
        counted += f"; not yet, because they start: {some_of(facts.starting)}"
    if facts.live >= facts.quorum:
        return "Quorum", counted
    reason = "TooFew" if _is_short(facts) else "LearnersStarting"
    return reason, counted, *facts.exited, *facts.losses


def _starting(facts: Facts) -> str:
    return f"{len(facts.starting)} of {facts.desired} learners start: {some_of(facts.starting)}"


def _is_short(facts: Facts) -> bool:
    return bool(facts.lacking > 0 or facts.exited or facts.losses)


def _progressing(facts: Facts) -> Said:
    if facts.phase.kind is PhaseKind.FINISHING:
        return (facts.phase.reason,)
    if facts.hold is not None and facts.hold.reason == SYNCER_LOST:
        return (SYNCER_LOST,)
    if facts.ended:
        return "Exporting", *facts.troubles
    if facts.live is None:
        return ("SyncerSilent",)
    if not all(state in SERVING for state in facts.shard_states):
        return ("WaitingForSyncer",)
    if facts.live < facts.quorum:
        short = _is_short(facts)
        return ("WaitingForLearners",) if short else ("LearnersStarting", _starting(facts))
    still = max(STALLED_SECONDS, min(STALLED_TICKS * facts.tick_seconds, STALLED_SECONDS_MAX))
    if facts.stalled_seconds > still:
        message = f"the step has not moved for {STALLED_SECONDS:.0f} s or longer"
        return "Stalled", message, "see the learners' logs"
    return "Training", facts.late


def _degraded(facts: Facts) -> Said:
    if facts.hold is not None:
        return facts.hold.reason, facts.hold.message
    certificates = (*facts.certificates, *facts.expiring)
    pods = (*facts.shard_problems, *facts.losses, *certificates)
    for reason, words in (
        ("PodsExited", (*facts.exited, *pods) if facts.exited else ()),
        ("PodsMissing", pods if facts.losses or facts.shard_problems else ()),
        ("SlotHeldElsewhere", facts.held_elsewhere),
        ("StoreTrouble", facts.troubles),
        ("OffersRefused", facts.refused_offers),
        (facts.certificates_reason, certificates if facts.certificates else ()),
        ("CredentialsExpire", facts.expiring),
    ):
        if words:
            return reason, *words
    if facts.live is None:
        return ("SyncerSilent",)
    return _fewer(facts)


def _fewer(facts: Facts) -> Said:
    """Degraded of a job with which nothing is wrong but the number of its learners, perhaps."""
    if facts.lacking > 0 and not facts.ended:
        message = f"{facts.lacking} of {facts.desired} learners are not in training"
        missing = [slot for slot in facts.missing if slot not in facts.starting]
        if missing:
            message += f": {some_of(missing)}"
        return "LearnersMissing", message, *facts.away
    if facts.starting and not facts.ended:
        return "LearnersStarting", _starting(facts), *facts.away
    if facts.capped:
        return "TokensAboveLimit", *facts.capped, *facts.leading
    return ("OneLearnerLeads", *facts.leading) if facts.leading else ("AllWell",)


OF_WHAT_RUNS: Final[dict[str, Callable[[Facts], Said]]] = {
    "SyncerReady": _syncer_ready,
    "LearnersAvailable": _learners_available,
    "Progressing": _progressing,
    "Degraded": _degraded,
}


def _drift(facts: Facts) -> Said:
    if facts.hold is not None and facts.hold.reason == OTHER_MANIFEST:
        return OTHER_MANIFEST, facts.hold.message
    if facts.other_counts:
        return "OtherCounts", *facts.other_counts
    if facts.stale_endpoints:
        return "StaleEndpoints", *facts.stale_endpoints
    if facts.transport and not facts.drift:
        return "TransportDiffers", facts.transport
    return "Differs" if facts.drift else "InStep", *facts.drift


def _suspended(facts: Facts) -> Said:
    if facts.phase.kind is not PhaseKind.SUSPENDED:
        return ("NotSuspended",)
    if facts.phase.reason == SUSPENDED_ELSEWHERE:
        return SUSPENDED_ELSEWHERE, facts.phase.message
    if facts.pods_left:
        return "Suspending", f"{facts.pods_left} pods have not ended yet"
    note = "shards that hold a run keep running, because their storage is Ephemeral"
    return "Suspended", note if facts.ephemeral else ""


def _over(facts: Facts, kind: str, wanted: PhaseKind) -> Condition:
    if facts.phase.kind is wanted:
        return _of(kind, facts.phase.reason, facts.phase.message, status=TRUE)
    return _of(kind, f"Not{kind}")


def _ready(facts: Facts, by_type: Mapping[str, Condition]) -> Said:
    """Whether the job trains or has trained, as its user wants it; else what it waits for.

    A job that trains without some of its learners is Ready; so is one of which the API server
    refuses an object that no pod needs now, such as a larger volume.
    """
    if facts.phase.kind not in RUNS:
        return str(facts.phase.kind), facts.phase.message
    if facts.unread:
        return "NotRead", facts.unread
    if facts.hold is not None and facts.hold.reason == SYNCER_LOST:
        return SYNCER_LOST, facts.hold.message
    accepted, progressing, degraded = (
        by_type[kind] for kind in ("Accepted", "Progressing", "Degraded")
    )
    trains = progressing.status == TRUE
    if trains and accepted.reason == "ChildrenRefused":
        return "Degraded", accepted.message
    if accepted.status == FALSE:
        return "Rejected" if facts.unaccepted else "Refused", accepted.message
    if trains:
        lacks = degraded.status == TRUE and degraded.reason != "LearnersMissing"
        lacks &= progressing.reason == "Training"
        message = degraded.message or progressing.message
        return "Degraded" if lacks else progressing.reason, message
    if progressing.reason == "Stalled":
        return "Stalled", progressing.message
    needed = (by_type["SyncerReady"], by_type["LearnersAvailable"])
    missing = [each.message for each in needed if each.status != TRUE and each.message]
    if not facts.begun:
        return "Starting", *missing
    return "SyncerSilent" if progressing.status == UNKNOWN else "Waiting", *missing


def _stalled(facts: Facts, *, refused: bool = False) -> Condition:
    """Whether a person must act before anything happens, or before an edit comes into force."""
    phase = facts.phase
    if facts.unaccepted and not phase.kind.over:
        return _of("Stalled", str(PhaseKind.REJECTED), ": ".join(facts.unaccepted))
    if phase.kind in (PhaseKind.FAILED, PhaseKind.REJECTED):
        return _of("Stalled", str(phase.kind), f"{phase.reason}: {phase.message}")
    if refused and facts.refused:
        return _of("Stalled", "Refused", *facts.refused)
    return _of("Stalled", "NotStalled")


def has_begun(conditions: Sequence[Condition]) -> bool:
    return any(each.type == "Ready" and each.reason in BEGUN for each in conditions)


def merged(
    old: Sequence[Condition], new: Sequence[Condition], generation: int, now: str
) -> list[Condition]:
    """The new ones with times (RFC 3339): lastTransitionTime moves only when the status does."""
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
        and (each.type in before or each.status == TRUE)
        and before.get(each.type) != each.status
    )
