"""One pass over one job: observe, plan, apply, report, each entered once.

    observe   look at what the watches show                        -> Shown        (frozen)
    plan      which manifest is in force, what else to look at     -> Inquiry      (frozen)
    observe   read Secrets, take the shards' answers               -> Observation  (frozen)
    plan      decide everything; no I/O, no clock, no memory       -> Plan         (frozen)
    apply     carry the plan out, in its order                     -> ApplyOutcome
    report    write the status and its Events; measure

The reconciler is *level-triggered*: an event says only "look at this job again". So an event that
is lost, doubled or late does no harm, and a pass that fails half-way is run again: every effect is
idempotent. `edges.queue` decides when a pass runs, `plan.pauses` when the clock brings the next.

When a pass fails, what is known is reported all the same: a planned status is written although an
effect failed, and a job that could not be judged, for a broken watch or for an exception of the
reading or the plan, gets conditions that are Unknown and say why. A child that is refused does not
fail the pass (`apply`).

There are no finalizers, which would block `kubectl delete` while the operator is away
(docs/decisions.md). The operator never writes the spec of a job, a Node or a taint.
"""

import time
from dataclasses import dataclass, field

import structlog

from atoll_operator.kube.edges.fence import NotLeaderError
from atoll_operator.kube.effects.apply import Applier, ApplyOutcome
from atoll_operator.kube.effects.report import StatusWriter
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observe import ClusterObserver, NotAskedError, NotSeenError
from atoll_operator.kube.observed.cache import Key, manifest
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.observed.objects import ready_and_held
from atoll_operator.kube.observed.observation import Object
from atoll_operator.kube.plan.inquiry import inquire
from atoll_operator.kube.plan.pauses import AGAIN_SECONDS, sooner
from atoll_operator.kube.plan.planner import plan
from atoll_operator.kube.settings import Settings

UNSEEN_SECONDS = 1.0  # between two passes while a watch is broken
NOT_LEADER_SECONDS = 1.0  # for a leader that renews in time again; another one's queue ends
UNASKED_SECONDS = 3.0  # the shards' answers come earlier, and bring a pass
UNDONE_SECONDS = 5.0  # at most, after a status or a delete that was not taken: no event follows

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
        """What is counted over all jobs; of this one the status has the answer to its write."""
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
            asked = inquire(shown, self.settings, time.time())
            seen = await self.observer.ask(key, asked, self.memories[key])
            decided = plan(seen, self.settings, time.time())
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

    async def _report_blind(self, key: Key, problem: str) -> None:
        """Write that the job cannot be judged, once that has lasted (`ClusterObserver.blind`)."""
        shown = self.observer.blind(key, self.memories.get(key), problem)
        if shown is not None:
            now = time.time()
            asked = inquire(shown, self.settings, now)
            blind = await self.observer.ask(key, asked, self.memories[key])
            decided = plan(blind, self.settings, now)
            await self.writer.report(decided, self.memories[key])

    def _edited(self, key: Key, judged: Object) -> bool:
        """Whether the job has been edited since it was read.

        An answer to a write of its status may show that first; the watch then asks for no pass.
        """
        now = self.observer.cache.job(key)
        return now is not None and manifest(now) != manifest(judged)
