"""One pass over one job: observe, plan, apply, report, each entered once.

    observe   look at what the watches show                        -> Shown        (frozen)
    plan      which manifest is in force, what else to look at     -> Inquiry      (frozen)
    observe   read Secrets, take the shards' answers               -> Observation  (frozen)
    plan      decide everything; no I/O, no clock, no memory       -> Plan         (frozen)
    apply     carry the plan out, in its order                     -> ApplyOutcome
    report    write the status and its Events; measure

The reconciler is *level-triggered*: an event says only "look at this job again". So an event that
is lost, doubled or late does no harm, and a pass that fails half-way is run again: every effect is
idempotent. `edges.queue` decides when a pass runs, `plan.planner` when the clock brings the next.

A pass asks the API server nothing (`cache`). While a watch that fills the cache is broken nothing
is judged (NotSeenError), and what cannot be seen any more becomes Unknown when it is
READ_SECONDS_MAX old (`blind`). Answers of shards from before the last effects are not judged either
(NotAskedError, `edges.polls`). While nodes and Leases cannot be watched a pass continues without
them, and no node counts as lost.

When a pass fails, what is known is reported all the same: a planned status is written although an
effect failed, and a job that could not be judged, for a broken watch or for an exception of the
reading or the plan, gets conditions that are Unknown and say why. A child that is refused does not
fail the pass (`apply`).

What a pass thinks about it thinks in one of PLANNERS threads, and the event loop goes on: a large
job holds up neither the Lease nor a probe. Values alone go in and come out.

There are no finalizers, which would block `kubectl delete` while the operator is away
(docs/decisions.md). The operator never writes the spec of a job, a Node or a taint.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from atoll_operator.kube.edges.election import NotLeaderError
from atoll_operator.kube.edges.polls import Polls
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.effects.apply import Applier, ApplyOutcome
from atoll_operator.kube.effects.report import StatusWriter
from atoll_operator.kube.effects.secrets import Secrets
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.cache import Cache, Key, manifest
from atoll_operator.kube.observed.memory import CertificateMemory, JobMemory
from atoll_operator.kube.observed.objects import ready_and_held
from atoll_operator.kube.observed.observation import (
    Certificates,
    Object,
    Observation,
    Shown,
)
from atoll_operator.kube.plan.planner import AGAIN_SECONDS, Inquiry, inquire, plan, sooner
from atoll_operator.kube.settings import Settings

READ_SECONDS_MAX = 12.0  # of age of what a status may still show when a watch is broken


class NotSeenError(Exception):
    """A watch is broken or has not listed yet: what the cache holds may be long past."""


class NotAskedError(Exception):
    """The shards' newest answers are older than the last effects; newer ones are on their way."""


@dataclass(slots=True, kw_only=True)
class ClusterObserver:
    """Looks at one job, once per pass."""

    cache: Cache
    polls: Polls
    nodes: Nodes
    secrets: Secrets

    async def look(self, key: Key, memories: dict[Key, JobMemory]) -> Shown | None:
        """None when the job does not exist; its memory is kept up. Raises NotSeenError."""
        raw, at = self.cache.job(key), time.monotonic()
        if raw is not None and (key not in memories or memories[key].uid != raw["metadata"]["uid"]):
            memories[key] = JobMemory(uid=raw["metadata"]["uid"])
        if problem := self.cache.problem(key[0]):
            raise NotSeenError(problem)
        if raw is None:
            await self.polls.forget(key)
            return None
        return self._shown(key, raw, memories[key], at)

    def blind(self, key: Key, memory: JobMemory | None, problem: str) -> Shown | None:
        """Show the job, with `problem` for all else; None: never seen, or seen a moment ago."""
        raw, at = self.cache.job(key), time.monotonic()
        if memory is None or raw is None or at - memory.read_at < READ_SECONDS_MAX:
            return None
        return replace(self._shown(key, raw, memory, at), unread=problem)

    async def ask(self, key: Key, inquiry: Inquiry, memory: JobMemory) -> Observation:
        """Look at the Secrets and the shards that are asked for. Raises NotAskedError."""
        seen = inquiry.seen
        if seen.job is None:
            if not seen.error:  # it is run elsewhere
                await self.polls.forget(key)
            return seen
        job, at = seen.job, seen.at
        if seen.unread:
            known = memory.read(0, [], at)
            replies = (None,) * job.spec.syncer.shards
            return replace(seen, remembered=replace(known, replies=replies, registrar_address=""))
        memory.addresses = dict(inquiry.addresses)
        certificates = await self._certificates(inquiry, memory)
        if not await self.polls.follow(key, memory, memory.addresses, tls=inquiry.speaks_tls):
            raise NotAskedError
        return replace(
            seen,
            certificates=certificates,
            refusals=self.polls.refusals(key),
            nodes=self.nodes.look(at) if self.nodes.usable(at) else None,
            lease_ages=self.nodes.leases.ages({pod.node for pod in seen.pods}, at),
            remembered=memory.read(job.spec.syncer.shards, seen.pods, at, job.spec.slots),
        )

    async def _certificates(self, inquiry: Inquiry, memory: JobMemory) -> Certificates | None:
        asked = inquiry.secrets
        if asked is None or inquiry.seen.job is None:
            memory.certificates = CertificateMemory()
            return None
        memory.certificates.names |= asked.names
        await self.secrets.look(
            inquiry.seen.job, asked.owner, memory.certificates, waits=asked.waits, used=asked.used
        )
        return memory.certificates.seen

    def _shown(self, key: Key, raw: Object, memory: JobMemory, at: float) -> Shown:
        children = [child for child in self.cache.children(key) if objects.belongs(child, raw)]
        return Shown(
            at=at,
            raw=raw,
            children=tuple(children),  # without those that a former job of its name has left
            failures=self.cache.failures,
            refused=bool(self.polls.refusals(key)),
            denied=self.cache.denied(key),
        )


UNSEEN_SECONDS = 1.0  # between two passes while a watch is broken
NOT_LEADER_SECONDS = 1.0  # for a leader that renews in time again; another one's queue ends
UNASKED_SECONDS = 3.0  # the shards' answers come earlier, and bring a pass
UNDONE_SECONDS = 5.0  # at most, after a status or a delete that was not taken: no event follows

PLANNERS = 2  # each waits for the interpreter up to 5 ms at a time, and so does the event loop

S = TypeVar("S")
T = TypeVar("T")

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Passes over jobs. The queue never runs two passes of one job at a time."""

    settings: Settings
    metrics: Metrics
    observer: ClusterObserver
    applier: Applier
    writer: StatusWriter
    memories: dict[Key, JobMemory] = field(default_factory=dict)
    shown: dict[Key, tuple[str, bool]] = field(default_factory=dict)
    """What the metrics say of each job: the state, and whether replacements are held."""
    last_pass_at: float | None = None  # monotonic: when a pass last succeeded
    planners: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(PLANNERS, thread_name_prefix="plan")
    )

    async def reconcile(self, key: Key) -> float | None:
        """One pass. Returns the seconds until the next one, None when only an event brings it."""
        before = self.memories.get(key)
        try:
            with self.metrics.pass_seconds.time(), self.metrics.failures.count_exceptions():
                again = await self._pass_of_leader(key)
        finally:
            if before is not None and self.memories.get(key) is not before:
                self.writer.recorder.forget(before.uid)  # it is gone, or another one has its name
            self._measure(key)
        return again

    def _measure(self, key: Key) -> None:
        """Count over all jobs; of this one the status has the answer to its write."""
        raw = self.observer.cache.job(key) if key in self.memories else None
        shown = None if raw is None else ready_and_held(raw)
        if shown == self.shown.get(key):
            return
        if shown is None:
            del self.shown[key]
        else:
            self.shown[key] = shown
        self.metrics.held.set(sum(held for _, held in self.shown.values()))
        self.metrics.show_states((key[0], state) for key, (state, _) in self.shown.items())

    async def _pass_of_leader(self, key: Key) -> float | None:
        try:
            return await self._pass(key)
        except NotLeaderError as error:
            log.info("pass ended", namespace=key[0], job=key[1], reason=str(error))
            return NOT_LEADER_SECONDS

    async def _pass(self, key: Key) -> float | None:
        try:
            shown = await self.observer.look(key, self.memories)
            if shown is None:
                self.memories.pop(key, None)
                return None
            asked = await self._think(inquire, shown)
            seen = await self.observer.ask(key, asked, self.memories[key])
            decided = await self._think(plan, seen)
            if seen.job is not None:
                self.memories[key].read_at = seen.at
        except NotSeenError as error:
            await self._report_blind(key, str(error))
            return UNSEEN_SECONDS
        except NotAskedError:
            return UNASKED_SECONDS
        except NotLeaderError:
            raise
        except Exception as error:  # also one of ours: without it the last status would stand
            await self._report_blind(key, f"{type(error).__name__}: {error}")
            raise
        self.memories[key].note_intent(decided.intent, seen.at)
        outcome, written = ApplyOutcome(), True
        try:
            outcome = await self.applier.apply(decided, self.memories[key])
        finally:
            if decided.acts:
                self.memories[key].acted_at = time.monotonic()
            if not outcome.refused:  # else the next pass, which comes at once, says it too
                written = await self.writer.report(decided, self.memories[key])
        self.last_pass_at = time.monotonic()
        if outcome.waits or outcome.refused or self._edited(key, seen.raw):
            return AGAIN_SECONDS
        due = self.writer.recorder.due_seconds(seen.uid)
        undone = not written or self.memories[key].undeleted
        return sooner(decided.pause_seconds, due, UNDONE_SECONDS if undone else None)

    async def _think(self, phase: Callable[[S, Settings, float], T], seen: S) -> T:
        """Run a pure phase for what was seen, at this moment, outside of the loop."""
        loop, now = asyncio.get_running_loop(), time.time()
        return await loop.run_in_executor(self.planners, phase, seen, self.settings, now)

    async def _report_blind(self, key: Key, problem: str) -> None:
        """Write that the job cannot be judged, once that has lasted (`ClusterObserver.blind`)."""
        shown = self.observer.blind(key, self.memories.get(key), problem)
        if shown is not None:
            asked = await self._think(inquire, shown)
            blind = await self.observer.ask(key, asked, self.memories[key])
            decided = await self._think(plan, blind)
            await self.writer.report(decided, self.memories[key])

    def _edited(self, key: Key, judged: Object) -> bool:
        """Whether the job has been edited since it was read.

        An answer to a write of its status may show that first; the watch then asks for no pass.
        """
        now = self.observer.cache.job(key)
        return now is not None and manifest(now) != manifest(judged)
