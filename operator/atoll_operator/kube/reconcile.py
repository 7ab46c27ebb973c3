"""One pass over one job: observe, plan, apply, report, each entered once.

    observe   what the watches show; ask the shards               -> Observation  (frozen)
    plan      decide everything; no I/O, no clock, no memory       -> Plan         (frozen)
    apply     carry the plan out, in its order                     -> Outcome
    report    write the status and its Events; measure

The reconciler is *level-triggered*. An event says only "look at this job again"; what has changed
is never passed on. A pass compares what is with what should be, and does the difference. So an
event that is lost, doubled or late does no harm, an operator that was away for an hour takes up
where it is, and a pass that fails half-way is simply run again: every effect is idempotent.

When a pass runs. `edges.queue` runs one pass per job at a time, on an event of the job, of its
children, of a node of its pods or of its shards' answers, and after the time that the last pass
asked for (`plan.pauses`): a second while a job runs, some seconds while it trains as it should, a
third of a second while a controller or the registrar is waited for, minutes while nothing runs,
never again for a job that is invalid or managed by another controller until it changes. Passes of
one job are at least 0.3 s apart, however many events come.

When a pass fails. What is known is reported all the same: a status that was planned is written
although an effect failed. While a watch is broken nothing is judged, and a job that could not be
judged for READ_SECONDS_MAX gets conditions that are Unknown and say why; so does one of which the
reading or the plan fails with an exception, whatever it is. A child that is refused does not fail
the pass (`apply`). Any exception ends the pass, is counted
(`atoll_operator_pass_failures_total`) and logged with its traceback by the queue, and the pass is
tried again after 1 to 60 s, doubling with each failure and spread at random, so that a restarted
API server does not get all jobs at once. "Not found" and "conflict" are no failures: a delete
carries a UID and means "be gone", and both answers say that it is.

Where this replica of the operator no longer leads, each write is refused before it is sent
(NotLeaderError, `edges.fence`). That is no failure of the pass: it ends where it is, and whoever
leads then runs its own.

What a pass remembers (`memory`) is a cache and the beginnings of silences. Losing it, as every
restart does, delays an action and changes none. Objects are not remembered but cached, for all
jobs together, and the answer to each write is in the cache when the next pass begins (`cache`).

Why no finalizers. A finalizer would let the operator clean up before a job is deleted. There is
nothing to clean up that the garbage collector does not do by owner references, and a finalizer
blocks `kubectl delete` for as long as the operator is away, and for ever once it is uninstalled.
For the same reason there are no annotations on the user's object and no admission webhooks.

What it owns. The operator applies children by server-side apply under the field manager
`atoll-children` and the status under `atoll-status`, and never writes the spec of a job, a Node
or a taint. A job whose `spec.managedBy` names another controller is not touched at all.
"""

import time
from dataclasses import dataclass, field

import structlog

from atoll_operator.kube.apply import Applier, Outcome
from atoll_operator.kube.cache import Key, manifest
from atoll_operator.kube.edges.fence import NotLeaderError
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.objects import ready_reason
from atoll_operator.kube.observation import Object
from atoll_operator.kube.observe import NotAskedError, NotSeenError, Observer
from atoll_operator.kube.plan.pauses import AGAIN_SECONDS
from atoll_operator.kube.plan.planner import plan
from atoll_operator.kube.report import StatusWriter
from atoll_operator.kube.settings import Settings

UNSEEN_SECONDS = 1.0  # between two passes while a watch is broken
NOT_LEADER_SECONDS = 1.0  # for a leader that renews in time again; another one's queue ends
UNASKED_SECONDS = 3.0  # the shards' answers come earlier, and bring a pass

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Passes over jobs. The queue never runs two passes of one job at a time."""

    settings: Settings
    metrics: Metrics
    observer: Observer
    applier: Applier
    writer: StatusWriter
    memories: dict[Key, Memory] = field(default_factory=dict)
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
        raw, own = self.observer.cache.job(key), self.memories.get(key)
        if raw is not None and own is not None:
            own.state = ready_reason(raw)
        shown = None if own is None else (own.state, own.held)
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
            seen = await self.observer.observe(key, self.memories)
            if seen is None:
                self.memories.pop(key, None)
                return None
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
        outcome = Outcome()
        try:
            outcome = await self.applier.apply(decided, self.memories[key])
        finally:
            if decided.acts:
                self.memories[key].acted_at = time.monotonic()
            if not outcome.refused:  # else the next pass, which comes at once, says it too
                await self.writer.report(decided, self.memories[key])
        self.last_pass_at = time.monotonic()
        if outcome.waits or outcome.refused or self._edited(key, seen.raw):
            return AGAIN_SECONDS
        due = self.writer.recorder.due_seconds(seen.uid)
        pauses = [each for each in (decided.pause_seconds, due) if each is not None]
        return min(pauses, default=None)

    async def _report_blind(self, key: Key, problem: str) -> None:
        """Write that the job cannot be judged, once that has lasted (`Observer.blind`)."""
        blind = self.observer.blind(key, self.memories.get(key), problem)
        if blind is not None:
            decided = plan(blind, self.settings, time.time())
            await self.writer.report(decided, self.memories[key])

    def _edited(self, key: Key, judged: Object) -> bool:
        """Whether the job has been edited since it was read.

        The answer to a write of its status may show an edit before the watch does. The cache then
        has it already, and what the watch shows later is no news that asks for a pass.
        """
        now = self.observer.cache.job(key)
        return now is not None and manifest(now) != manifest(judged)
