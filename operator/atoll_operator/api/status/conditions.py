"""The conditions of a job, under both executors: what each says, why, and what to do; pure.

No condition depends on an earlier one, so a restarted operator says the same as the one before it.
Only `lastTransitionTime` has a memory (`merged`). Each condition asks in this order, and the first
answer wins:

    1. Does anything run?   If the phase is not Running or Finishing, SyncerReady, Progressing and
                            Degraded are False and their reason is the phase, so that a finished job
                            does not look broken.
    2. Can it be seen?      What gives no answer is Unknown (NoAnswer, SyncerSilent). A known
                            trouble comes before this: a pod that cannot be scheduled makes Degraded
                            True and SyncerReady False, even while shards are silent.
    3. What is wrong?       The most specific reason that is known; the message holds the details.
    4. Nothing is wrong.

Near the end the shards stop asking for learners (their states are Final or Complete); then missing
learners are no trouble any more (Exporting).

Ready and Stalled are summaries for tools that know no other type: kstatus, by which `helm --wait`,
Flux and kpt judge an object. They bring no Events, since another condition reports the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.sync_fields import SyncSpec
from atoll_operator.api.status.job_status import ENDED, SERVING, Condition, reads
from atoll_operator.api.status.reasons import (
    FALSE,
    NODE_LOSS_HELD,
    STALLED_SECONDS,
    STALLED_SECONDS_MAX,
    STALLED_TICKS,
    STATUSES,
    SUMMARIES,
    TRUE,
    TYPES,
    UNKNOWN,
)
from atoll_protos.job.run_file import GraceLimit, shard_text

MESSAGE_CHARACTERS_MAX: Final = 2000
LEADING_MERGES: Final = 10  # in a row, of three or more learners, before it is reported
NAMES_MAX: Final = 8  # that a message lists
LATE_SHARE_MAX: Final = 0.1  # of trained tokens, without a warning
OVERWRITTEN_SHARE_MAX: Final = 0.5  # of trained tokens, as above
LATE_PERIODS_MIN: Final = 5  # before anything is said of either
STARTING_SECONDS_MAX: Final = 600.0  # of a learner; as progressDeadlineSeconds of a Deployment


class PhaseKind(StrEnum):
    """What the operator does with a job."""

    REJECTED = "Rejected"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    FINISHING = "Finishing"  # the model is exported; the evaluator measures it once more
    COMPLETE = "Complete"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        return self in (PhaseKind.COMPLETE, PhaseKind.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kind, with the reason and message of its condition."""

    kind: PhaseKind
    reason: str
    message: str


SUSPENDED_ELSEWHERE: Final = "SuspendedElsewhere"  # by the cluster where the syncer runs
# Why the learners of a cluster without the syncer wait while the job runs.
SYNCER_SILENT: Final = "SyncerSilent"  # from the beginning
SYNCER_LOST: Final = "SyncerLost"
OTHER_MANIFEST: Final = "OtherManifest"
HOME_FAILED: Final = "HomeFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why this cluster's learners wait, with the message of the condition Degraded."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the conditions are made from. `live` is None when the registrar cannot be asked."""

    phase: Phase
    shard_states: tuple[pb.ShardState | None, ...]  # None: no answer
    reading: tuple[str, ...] = ()  # shards that read their values back, in words
    shard_problems: tuple[str, ...] = ()
    desired: int = 0
    live: int | None = None
    missing: tuple[str, ...] = ()  # slots that are not in training, as far as that is known
    starting: tuple[str, ...] = ()  # those of `missing` that start, and are not lost
    quorum: int = 1
    away: tuple[str, ...] = ()  # where to look for learners of other clusters, in words
    held_elsewhere: tuple[str, ...] = ()  # pods whose slot a process elsewhere has, in words
    losses: tuple[str, ...] = ()  # pods of learners that are not as they should be, in words
    exited: tuple[str, ...] = ()  # pods that have ended for good, in words
    held: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    other_counts: tuple[str, ...] = ()  # than those of the cluster where the syncer runs
    stale_endpoints: tuple[str, ...] = ()  # in the manifest of the syncer's cluster, in words
    transport: str = ""  # that the run talks in another way than the manifest asks for
    certificates: tuple[str, ...] = ()  # that no pod can start without, in words
    certificates_reason: str = "CertificatesMissing"  # of Accepted, or of Degraded
    expiring: tuple[str, ...] = ()  # credentials that are or will be out of date, in words
    stalled_seconds: float = 0.0
    tick_seconds: float = 0.0  # that a step takes, as far as it is known (`tick_seconds`)
    unreachable: tuple[str, ...] = ()  # silent shards whose pods are Ready: what to do
    ephemeral: bool = False
    larger_claims: tuple[str, ...] = ()  # than the manifest asks for, in words
    pods_left: int = 0
    refused: tuple[str, ...] = ()  # objects that the API server refuses, in words
    template_refused: bool = False  # one of them is made from a pod template
    unread: str = ""  # why the job's objects cannot be read; empty: they can
    troubles: tuple[str, ...] = ()  # what shards try again, such as a full volume, in words
    late: str = ""  # that much work is late or overwritten, and what to do
    leading: tuple[str, ...] = ()  # learners with over half of many merges, in words
    capped: tuple[str, ...] = ()  # those that say more tokens of a step than they may, in words
    same_data: str = ""  # that learners train on the same data, and what to do
    refused_offers: tuple[str, ...] = ()  # of learners that train, why nothing of them is merged
    warnings: tuple[str, ...] = ()  # by the numbers of the manifest itself, in words
    unaccepted: tuple[str, str] | None = None  # why another manifest than the present one is used
    begun: bool = False  # the job has trained since it was started or resumed
    hold: Hold | None = None  # the learners of this cluster wait
    served: bool = True  # this install makes something of the job

    @property
    def lacking(self) -> int:
        return 0 if self.live is None else self.desired - self.live - len(self.starting)

    @property
    def trains(self) -> bool:
        return bool(self.live)

    @property
    def ended(self) -> bool:
        return all(state in ENDED for state in self.shard_states)


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
    message = "; ".join(filter(None, words))[:MESSAGE_CHARACTERS_MAX]
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
        note = "storage is Ephemeral: a lost shard is restored from the learners"
        return "Serving", *([note] if facts.ephemeral else facts.larger_claims)
    if facts.shard_problems:
        return "PodsNotReady", *facts.shard_problems
    if None in states:
        return "NoAnswer", each_state, *facts.unreachable
    return "Starting", each_state


def _counted(facts: Facts) -> str:
    counted = f"{facts.live} of {facts.desired} in training, quorum {facts.quorum}"
    if facts.starting:
        counted += f"; not yet, because they start: {some_of(facts.starting)}"
    return counted


def _starting(facts: Facts) -> str:
    return f"{len(facts.starting)} of {facts.desired} learners start: {some_of(facts.starting)}"


def _progressing(facts: Facts) -> Said:
    if facts.phase.kind is PhaseKind.FINISHING:
        return (facts.phase.reason,)
    if facts.hold is not None and facts.hold.reason == SYNCER_LOST:
        return (SYNCER_LOST,)
    if facts.ended:
        return "Exporting", *facts.troubles, *facts.drift
    if facts.live is None:
        return "SyncerSilent", "shard 0, which counts the learners, does not answer"
    counted, short = (_counted(facts), *facts.drift), (*facts.exited, *facts.losses)
    if not all(state in SERVING for state in facts.shard_states):
        return "WaitingForSyncer", *counted
    if facts.live < facts.quorum:
        reason = "WaitingForLearners" if facts.lacking > 0 or short else "LearnersStarting"
        return reason, *counted, *short
    still = max(STALLED_SECONDS, min(STALLED_TICKS * facts.tick_seconds, STALLED_SECONDS_MAX))
    if facts.stalled_seconds > still:
        message = f"the step has not moved for {STALLED_SECONDS:.0f} s or longer"
        return "Stalled", message, "see the learners' logs", *counted
    return "LengthDiffers" if facts.drift else "Training", *counted, facts.late


def _degraded(facts: Facts) -> Said:
    """Return the first trouble; the message ends with where the run is not as asked for."""
    reason, *words = _trouble(facts)
    if reason == OTHER_MANIFEST:
        return reason, *words  # alone: while no shard answers the next pass reads it here
    asides = {
        "OtherCounts": facts.other_counts,
        "StaleEndpoints": facts.stale_endpoints,
        "TransportDiffers": (facts.transport,) if facts.transport else (),
    }
    others = [name for name, said in asides.items() if said]
    by_counts = (reason, *others[:1]) == ("LearnersMissing", "OtherCounts")
    if others and (by_counts or STATUSES["Degraded", reason] != TRUE):
        reason = others[0]
    return reason, *words, *(each for said in asides.values() for each in said)


def _trouble(facts: Facts) -> Said:
    if facts.hold is not None:
        return facts.hold.reason, facts.hold.message
    certificates = (*facts.certificates, *facts.expiring)
    pods = (*facts.shard_problems, *facts.losses, *certificates)
    for reason, words in (
        (NODE_LOSS_HELD, (*facts.held, *facts.exited, *pods) if facts.held else ()),
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
    if facts.same_data:
        return "SameData", facts.same_data
    if facts.capped:
        return "TokensAboveLimit", *facts.capped, *facts.leading
    return ("OneLearnerLeads", *facts.leading) if facts.leading else ("AllWell",)


OF_WHAT_RUNS: Final[dict[str, Callable[[Facts], Said]]] = {
    "SyncerReady": _syncer_ready,
    "Progressing": _progressing,
    "Degraded": _degraded,
}


def _suspended(facts: Facts) -> Said:
    if facts.phase.kind is not PhaseKind.SUSPENDED:
        return ("NotSuspended",)
    if facts.phase.reason == SUSPENDED_ELSEWHERE:
        return SUSPENDED_ELSEWHERE, facts.phase.message
    if facts.pods_left:
        return "Suspending", f"{facts.pods_left} pods have not ended yet"
    note = "shards that hold a run keep running, because their storage is Ephemeral"
    return "Suspended", note if facts.ephemeral else "", facts.transport


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
        if progressing.reason not in ("Training", "LengthDiffers"):
            return progressing.reason, degraded.message or progressing.message
        words = (degraded.message,) if degraded.message else (*facts.drift, facts.late)
        return "Degraded" if lacks else "Training", *words
    if progressing.reason == "Stalled":
        return "Stalled", progressing.message
    needed = (by_type["SyncerReady"], progressing)
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
    return any(condition.type == "Ready" and condition.reason in BEGUN for condition in conditions)


def merged(
    old: Sequence[Condition], new: Sequence[Condition], generation: int, now: str
) -> list[Condition]:
    """Give the new ones times (RFC 3339): lastTransitionTime moves only when the status does."""
    before = {condition.type: condition for condition in old}
    found = []
    for condition in new:
        known = before.get(condition.type)
        since = known.last_transition_time if known and known.status == condition.status else None
        times = {"observed_generation": generation, "last_transition_time": since or now}
        found.append(condition.model_copy(update=times))
    return found


def transitions(old: Sequence[Condition], new: Sequence[Condition]) -> tuple[Condition, ...]:
    """Those whose status has changed; a first False is not worth an Event, nor is a summary."""
    before = {condition.type: condition.status for condition in old}
    return tuple(
        condition
        for condition in new
        if condition.type not in SUMMARIES
        and (condition.type in before or condition.status == TRUE)
        and before.get(condition.type) != condition.status
    )


# ---------------------------------------------------------------- facts, from what shards reply


def facts_of_replies(replies: Sequence[pb.StatusReply | None], sync: SyncSpec) -> dict[str, Any]:
    """Return the fields of `Facts` that follow from what shards reply alone."""
    return {
        "shard_states": tuple(reply.state if reply else None for reply in replies),
        "reading": reading(replies),
        "tick_seconds": tick_seconds(replies),
        "troubles": troubles(replies),
        "same_data": same_data(replies),
        "refused_offers": refused_offers(replies),
        "late": late(replies, sync),
        "leading": leading(replies),
        "capped": capped(replies),
    }


def tick_seconds(replies: Sequence[pb.StatusReply | None]) -> float:
    """Return what a step took of late on the slowest shard; 0: nobody knows."""
    rates = [reply.ticks_per_second for reply in replies if reply is not None]
    return max((1 / rate for rate in rates if rate > 0), default=0.0)


def troubles(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    return tuple(
        f"shard {reply.shard}: {reply.reason}"
        for reply in replies
        if reply is not None and reply.reason and reply.state in SERVING
    )


def reading(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """Return the shards that serve before all of their values are read back."""
    return tuple(
        f"shard {reply.shard} reads its values back, slices left: {reply.unread}"
        for reply in replies
        if reply is not None and reads(reply)
    )


def refused_offers(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """Why nothing is merged of learners that train, such as one that has diverged."""
    found = {
        slot.slot: f"{slot.slot}: {slot.reason}"
        for reply in reversed(replies)
        if reply is not None and reply.state in SERVING
        for slot in reply.slots
        if slot.reason and slot.state == pb.SLOT_TRAINING
    }
    return tuple(found[slot] for slot in sorted(found))


def late(replies: Sequence[pb.StatusReply | None], sync: SyncSpec) -> str:
    """Say that too much work is late or overwritten; empty also before some periods are over."""
    registrar = replies[0] if replies else None
    if registrar is None or registrar.tick < LATE_PERIODS_MIN * sync.period:
        return ""
    worst = sorted(registrar.slots, key=lambda slot: (-slot.late_share, slot.slot))
    late = [f"{s.slot} {s.late_share:.0%}" for s in worst if s.late_share > LATE_SHARE_MAX]
    said = late_work(registrar.late_share, sync)
    if not said:
        return overwritten_work(replies, sync)
    return f"{said} ({some_of(late)})" if late else said


def overwritten_work(replies: Sequence[pb.StatusReply | None], sync: SyncSpec) -> str:
    """Say that values come back so late that most work is overwritten meanwhile (rule 13)."""
    counts = [reply.counts for reply in replies if reply]
    trained = sum(count.trained for count in counts)
    share = sum(count.overlap for count in counts) / trained if trained else 0.0
    if share <= OVERWRITTEN_SHARE_MAX:
        return ""
    return (
        f"{share:.0%} of the trained tokens were overwritten while a merge was on its way: raise"
        f" spec.sync.period (now {sync.period}), or give the shards more CPU"
    )


def late_work(share: float, sync: SyncSpec) -> str:
    if share <= LATE_SHARE_MAX:
        return ""
    quorum = "all" if sync.quorum is None else sync.quorum
    wait = f"raise spec.sync.quorum (now {quorum}) so that merges wait for more learners"
    if sync.grace.enabled and sync.grace.limit is GraceLimit.OVERLAP:
        wait = f"set spec.sync.grace.limit to {GraceLimit.WORK} so that merges wait for slow links"
    return (
        f"{share:.0%} of the trained tokens came too late for a merge: raise spec.sync.overlap"
        f" (now {sync.overlap}) so that values are there in time, or {wait}"
    )


def leading(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """Learners that decide what a shard merges, with what they say of a step beside the others."""
    found = {}
    for reply in replies:
        slots = [s for s in reply.slots if s.state == pb.SLOT_TRAINING] if reply else []
        for slot in (each for each in slots if each.merges_over_half >= LEADING_MERGES):
            others = sorted(s.merge_tokens_per_step for s in slots if s.slot != slot.slot)
            beside = f"{others[0]:,.0f} to {others[-1]:,.0f}" if others else "nothing"
            found[slot.slot] = (
                f"{slot.slot} has {slot.merge_share:.0%} of the weight of the last merge, and over"
                f" half of the last {slot.merges_over_half} of a shard:"
                f" {slot.merge_tokens_per_step:,.0f} tokens a step, the others {beside}"
            )
    return tuple(found[slot] for slot in sorted(found))


def capped(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """Learners that say more tokens of a step than regions[].tokensPerStep allows."""
    found = {
        s.slot: f"{s.slot} says {s.above_tokens_per_step:,.0f} tokens a step, and"
        f" {s.merge_tokens_per_step:,.0f} are counted"
        for reply in replies
        for s in (reply.slots if reply else ())
        if s.above_tokens_per_step and s.state == pb.SLOT_TRAINING
    }
    return tuple(found[slot] for slot in sorted(found))


def same_data(replies: Sequence[pb.StatusReply | None]) -> str:
    """Say that learners began with the same losses, and what to do; empty: none have."""
    slots = replies[0].slots if replies and replies[0] else ()
    times = Counter(slot.first_losses for slot in slots if slot.first_losses)
    same = sorted(slot.slot for slot in slots if times[slot.first_losses] > 1)
    said = (
        f"{some_of(same)} had equal losses in their first steps, so they train on the same data:"
        " choose each batch by job.index of `job = atoll.job()` and by learner.cursor"
    )
    return said if same else ""


def some_of(names: Sequence[str], most: int = NAMES_MAX) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
