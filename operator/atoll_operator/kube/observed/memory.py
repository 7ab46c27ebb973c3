"""What the operator remembers of one job from one pass to the next; all of it can be lost.

What is forgotten only delays an action; what must survive is in the status, in annotations of
children, and at the registrar. All times are seconds of the operator's monotonic clock. The plan
sees only what `read` returns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.job_status import GONE
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observed.observation import (
    BUSY_STATES,
    Certificates,
    ChildRefusal,
    Pod,
    Remembered,
    Replacement,
)
from atoll_protos.exits import TERMINATED
from atoll_protos.names import split_slot
from atoll_protos.network.credentials import Credentials

REPLY_SECONDS_MAX = 12.0  # of age in a status; with the pause between writes it stays below 15 s
LONG_AGO = -1e9
MINUTE_SECONDS = 60.0
UNDELETED_SECONDS = 90.0  # for which a refused delete is said: it is tried again once a minute
DELETED_SECONDS = 24 * 3600.0  # for which the deletion of a pod is remembered
REFUSED_SECONDS = (1.0, 60.0)  # before a refused child is tried again: first, and at most
REVERT_SECONDS = 30.0  # before a child is reverted again

T = TypeVar("T")


def doubled(bounds: tuple[float, float], times: int) -> float:
    """Double the first of two bounds so many times, up to the second."""
    first, most = bounds
    return min(most, first * 2.0 ** min(times, 10))


def _since(known: Mapping[T, float], keys: Iterable[T], now: float) -> dict[T, float]:
    return {key: known.get(key, now) for key in keys}


def _ages(since: Mapping[T, float], now: float) -> dict[T, float]:
    """How long ago; without what was so long ago that nobody knows when."""
    return {key: now - at for key, at in since.items() if at > LONG_AGO}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A shard's last answer, and when it came."""

    message: pb.StatusReply
    at: float


@dataclass(slots=True, kw_only=True)
class CertificateMemory:
    """What was read of a job's certificates, and the operator's own, which no log ever shows."""

    next_at: float = LONG_AGO  # when they are read again
    read_at: float = LONG_AGO
    seen: Certificates | None = None
    names: set[str] = field(default_factory=set)  # of Secrets that there may be
    generations: Mapping[str, int] = field(default_factory=dict)  # as of the last reading
    believed: bytes = b""  # the authorities' certificates, PEM
    own: Mapping[str, Credentials] = field(default_factory=dict, repr=False)  # newest, by region
    worked: dict[str, Credentials] = field(default_factory=dict, repr=False)
    """By region: the last that a shard has taken."""

    @property
    def offered(self) -> tuple[Credentials, ...]:
        """Those with which shards are asked, in the order of trial."""
        newest, proved = next(iter(self.own.values()), None), next(iter(self.worked.values()), None)
        return tuple(
            dict.fromkeys(
                credentials for credentials in (newest, proved) if credentials is not None
            )
        )

    @property
    def used(self) -> tuple[Credentials, ...]:
        return *self.own.values(), *self.worked.values()

    def of_slot(self, slot: str) -> Credentials | None:
        """Those with which a slot's owner is named; None where the job talks in plain text."""
        region = split_slot(slot)[0]
        return self.worked.get(region) or self.own.get(region)

    def note_worked(self, credentials: Credentials | None) -> None:
        if credentials is not None:
            region = next((r for r, each in self.own.items() if each == credentials), None)
            if region is not None:
                self.worked = {region: credentials}


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """What passes remember of one job, until it is deleted or has another UID."""

    uid: str  # of the job's object: one made again under the same name is another job

    read_at: float = LONG_AGO  # when the job, its objects and its shards could last be seen

    # the shards
    addresses: dict[int, str] = field(default_factory=dict)  # host:port by shard; empty: unknown
    replies: dict[int, Reply] = field(default_factory=dict)
    answered_at: dict[int, float] = field(default_factory=dict)  # or first asked at
    asked_at: str = ""  # RFC 3339
    absent_since: dict[str, float] = field(default_factory=dict)  # by slot
    stalled_since: dict[str, float] = field(default_factory=dict)  # by UID of the slot's pod
    idle_since: dict[str, float] = field(default_factory=dict)  # by UID of a head's pod
    left_since: dict[str, float] = field(default_factory=dict)  # by slot, when told to terminate
    wanted_since: dict[str, float] | None = None  # by slot; None: no slots were known yet
    troubles: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By slot: UID of its pod, and why that could not join again when a shard last heard of it."""
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By UID of a host's pod: how often its container has ended, and of these its own crashes."""
    tick: int = -1  # the lowest of all shards
    tick_at: float = 0.0  # when it last moved
    final_at: float | None = None  # when the registrar first said Complete
    intent: pb.StatusRequest = field(default_factory=pb.StatusRequest)  # that shards are told
    suspended_at: float | None = None  # when this operator first saw the job suspended

    certificates: CertificateMemory = field(default_factory=CertificateMemory)

    # what was done
    acted_at: float = LONG_AGO  # when the last effect of a pass was under way
    stormed_at: dict[str, float] = field(default_factory=dict)  # last storm, by region
    replacements: dict[str, Replacement] = field(default_factory=dict)  # by pod name or role
    written_at: list[float] = field(default_factory=list)  # the status, within the last minute
    refused: dict[tuple[str, str], ChildRefusal] = field(default_factory=dict)  # by kind and name
    deleted_at: dict[tuple[str, str], float] = field(default_factory=dict)  # by place and cause
    undeleted: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By UID of an object that the API server did not let go: what it said, and when."""
    conflicts: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of children of which another object was found at the last write."""
    reverted_at: dict[tuple[str, str], float] = field(default_factory=dict)  # by kind and name
    settled: dict[tuple[str, str], tuple[str, frozenset[tuple[str, str]]]] = field(
        default_factory=dict
    )  # by kind and name: hash of what was applied, and what the API server writes in its own way

    def note_intent(self, intent: pb.StatusRequest, now: float) -> None:
        self.intent = intent
        if intent.intent != pb.INTENT_SUSPEND:
            self.suspended_at = None
        elif self.suspended_at is None:
            self.suspended_at = now

    def note_write(self, now: float) -> None:
        self.written_at = [at for at in self.written_at if now - at < MINUTE_SECONDS] + [now]

    def take(self, replies: Sequence[pb.StatusReply | None], now: float, wall: str) -> None:
        """Note the answers of one poll, one per shard; `wall` is when it began, RFC 3339."""
        for shard, reply in enumerate(replies):
            self.answered_at.setdefault(shard, now)
            if reply is not None:
                self.replies[shard] = Reply(message=reply, at=now)
                self.answered_at[shard] = now
                self.asked_at = wall
        known = [reply.tick for reply in replies if reply is not None]
        if len(known) == len(replies) and known and min(known) != self.tick:
            self.tick, self.tick_at = min(known), now
        registrar = replies[0] if replies else None
        if registrar is not None and registrar.state == pb.SHARD_COMPLETE and self.final_at is None:
            self.final_at = now

    def refuse(
        self, key: tuple[str, str], applied: str, message: str, now: float, status: int = 0
    ) -> bool:
        """Note a refusal; whether that is news, which is what no status of the job says yet."""
        known = self.refused.get(key)
        same = known is not None and known.applied == applied
        tries = known.tries + 1 if known is not None and same else 0
        self.refused[key] = ChildRefusal(
            kind=key[0],
            name=key[1],
            applied=applied,
            message=message,
            status=status,
            tries=tries,
            again_at=now + doubled(REFUSED_SECONDS, tries),
        )
        return known is None or not same or known.message != message

    def settle(self, key: tuple[str, str], applied: str, marks: frozenset[tuple[str, str]]) -> None:
        """Note what the API server has written in its own way of a child that it has taken."""
        self.settled.pop(key, None)
        if marks:
            self.settled[key] = (applied, marks)

    def read(
        self, shards: int, pods: Iterable[Pod], now: float, slots: Sequence[str] = ()
    ) -> Remembered:
        """Return what a plan may use, as ages; note who is absent. No `slots`: not known."""
        replies = self._young_replies(shards, now)
        self._note_slots(replies[0] if replies else None, pods, now)
        self._note_wanted(slots, now)
        self._note_ends(pods)
        if replies:
            self._note_troubles(pods, replies)
        for key in [k for k, at in self.deleted_at.items() if now - at >= DELETED_SECONDS]:
            del self.deleted_at[key]
        for uid in [u for u, (_, at) in self.undeleted.items() if now - at >= UNDELETED_SECONDS]:
            del self.undeleted[uid]
        absent = {} if not replies or replies[0] is None else self.absent_since
        return Remembered(
            replies=replies,
            asked_at=self.asked_at,
            registrar_address=self.addresses.get(0, ""),
            silent_seconds=_ages(self.answered_at, now),
            absent_seconds=_ages(absent, now),
            stalled_seconds=_ages(self.stalled_since, now),
            idle_seconds=_ages(self.idle_since, now),
            left_seconds=_ages(self.left_since, now),
            wanted_seconds=_ages(self.wanted_since or {}, now),
            troubles={slot: trouble for slot, (_, trouble) in self.troubles.items()},
            crashes={uid: crashes for uid, (_, crashes) in self.ends.items()},
            storm_seconds=_ages(self.stormed_at, now),
            final_seconds=None if self.final_at is None else now - self.final_at,
            suspended_seconds=0.0 if self.suspended_at is None else now - self.suspended_at,
            still_seconds=now - (self.tick_at or now),
            unwritten_seconds=now - max(self.written_at, default=LONG_AGO),
            writes_a_minute=sum(now - at < MINUTE_SECONDS for at in self.written_at),
            refused=tuple(
                replace(each, wait_seconds=each.again_at - now)
                for _, each in sorted(self.refused.items())
            ),
            undeleted=tuple(sorted(text for text, _ in self.undeleted.values())),
            deleted_seconds=_ages(self.deleted_at, now),
            reverts={key: at + REVERT_SECONDS - now for key, at in self.reverted_at.items()},
            settled={(*key, applied): marks for key, (applied, marks) in self.settled.items()},
        )

    def _young_replies(self, shards: int, now: float) -> tuple[pb.StatusReply | None, ...]:
        """Return what may still be shown: one per shard, None when it is too old."""
        found: list[pb.StatusReply | None] = []
        for shard in range(shards):
            reply = self.replies.get(shard)
            young = reply is not None and now - reply.at <= REPLY_SECONDS_MAX
            found.append(reply.message if reply is not None and young else None)
        return tuple(found)

    def _note_slots(
        self, registrar: pb.StatusReply | None, pods: Iterable[Pod], now: float
    ) -> None:
        """Since when slots are absent or stalled, heads idle, and who was told to go is away.

        A learner that has a node is absent where it is not shown. A head is idle that does not
        train. Who was told to terminate is away until it does more than join. While the registrar
        does not answer none of this is known or forgotten, but what has stalled counts anew.
        """
        slots = registrar.slots if registrar is not None else []
        stalled = [slot.uid for slot in slots if slot.state == pb.SLOT_STALLED]
        self.stalled_since = _since(self.stalled_since, stalled, now)
        if registrar is None:
            return
        here = {pod.slot for pod in pods if pod.role == LEARNER_ROLE and pod.node}
        absent = here - {slot.slot for slot in slots}
        self.absent_since = _since(self.absent_since, absent, now)
        busy = {slot.uid for slot in slots if slot.state in BUSY_STATES}
        idle = {pod.uid for pod in pods if pod.is_head} - busy
        self.idle_since = _since(self.idle_since, idle, now)
        for slot in slots:
            if slot.state == pb.SLOT_LEFT and slot.reason == TERMINATED:
                self.left_since.setdefault(slot.slot, now)
            elif slot.state != pb.SLOT_JOINING:
                self.left_since.pop(slot.slot, None)

    def _note_wanted(self, slots: Sequence[str], now: float) -> None:
        """Since when the job asks for each slot; of those that it did at first nothing is known."""
        if slots:
            known, since = self.wanted_since or {}, LONG_AGO if self.wanted_since is None else now
            self.wanted_since = {slot: known.get(slot, since) for slot in slots}

    def _note_ends(self, pods: Iterable[Pod]) -> None:
        """Count hosts' own crashes: the kubelet counts all ends, and one crash ends all hosts."""
        found = {}
        for pod in (each for each in pods if each.has_own_set):
            known, crashes = self.ends.get(pod.uid, (0, 0))
            ends = pod.restarts + (pod.exit_code is not None and not pod.runs)
            found[pod.uid] = (ends, crashes + (ends > known and pod.crashed))
        self.ends = found

    def _note_troubles(self, pods: Iterable[Pod], replies: Iterable[pb.StatusReply | None]) -> None:
        """Keep what learners say of their credentials; a shard forgets it when it starts again."""
        heard: dict[str, pb.SlotStatus] = {}
        for slot in (slot for reply in replies if reply is not None for slot in reply.slots):
            known = heard.get(slot.slot)
            if slot.uid and (known is None or known.state in GONE):
                heard[slot.slot] = slot
        for name, slot in heard.items():
            if slot.trouble:
                self.troubles[name] = (slot.uid, slot.trouble)
            elif slot.state not in GONE:
                self.troubles.pop(name, None)
        uids = {pod.uid for pod in pods if not pod.ended}
        self.troubles = {n: found for n, found in self.troubles.items() if found[0] in uids}
