"""What the conditions of a job are decided from, under both executors; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.sync_fields import SyncSpec
from atoll_protos.job.run_file import GraceLimit

# Shards that ask nothing more of learners, and shards that do their work.
ENDED: Final = frozenset({pb.SHARD_FINAL, pb.SHARD_COMPLETE})
GONE: Final = frozenset({pb.SLOT_LOST, pb.SLOT_LEFT})  # without a session: nothing new is heard
SERVING: Final = frozenset({pb.SHARD_SERVING, *ENDED})
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
    without_standby: tuple[str, ...] = ()  # shards that serve, and whose other pod could not, why
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


def tick_seconds(replies: Sequence[pb.StatusReply | None]) -> float:
    """What a step of the job took of late on the slowest shard; 0: nobody knows."""
    rates = [reply.ticks_per_second for reply in replies if reply is not None]
    return max((1 / rate for rate in rates if rate > 0), default=0.0)


def troubles(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    return tuple(
        f"shard {reply.shard}: {reply.reason}"
        for reply in replies
        if reply is not None and reply.reason and reply.state in SERVING
    )


def reading(replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """The shards that serve before all of their values are read back."""
    return tuple(
        f"shard {reply.shard} reads its values back, slices left: {reply.unread}"
        for reply in replies
        if reply is not None and reads(reply)
    )


def reads(reply: pb.StatusReply) -> bool:
    return reply.state in SERVING and reply.unread > 0


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
    """That too much work is late or overwritten; empty also before some periods are over."""
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
    """That values come back so late that most work is overwritten meanwhile (rule 13)."""
    counts = [reply.counts for reply in replies if reply]
    trained = sum(each.trained for each in counts)
    share = sum(each.overlap for each in counts) / trained if trained else 0.0
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


def some_of(names: Sequence[str], most: int = NAMES_MAX) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
