"""What is done about pods: lost nodes, owners of slots, new templates."""

import time
from dataclasses import dataclass

import structlog

from atoll_operator.api import status as statuses
from atoll_operator.api.conditions import Kind
from atoll_operator.kube import readings
from atoll_operator.kube.edges.api import LEASES, Api, path
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.memory import Replacement
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import LEARNER_ROLE, learner_set
from atoll_operator.kube.observe import Pod
from atoll_operator.kube.plan import events, rollout, sessions
from atoll_operator.kube.plan import nodes as placement
from atoll_operator.kube.readings import Sight
from atoll_operator.kube.speaker import Speaker
from atoll_protos.exits import ExitCode

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Repair:
    """The order is part of the protocol: see `replace`."""

    api: Api
    syncers: Syncers
    nodes: Nodes
    metrics: Metrics
    speaker: Speaker

    async def replace(self, sight: Sight) -> bool:
        """Delete pods of lost nodes; whether one waits for its controller."""
        waits = False
        for each in sight.placement.replace:
            pod = each.pod
            live = sight.workloads.get(readings.child_name(sight.job, pod))
            excluded = live is not None and live.observed and each.node in live.excluded
            gone = sight.placement.lost.get(each.node) is placement.State.GONE
            if not excluded and not gone:
                waits = True
                continue
            if not await self._still_silent(sight, each.node):
                continue
            if pod.role == LEARNER_ROLE and not await self._retire(sight, pod):
                waits = True
                continue
            if await self.api.delete(path("Pod", sight.namespace, pod.name), pod.uid, at_once=True):
                await self._replaced(sight, each)
        for pod in sight.pods:
            superseded = pod.exit_code == ExitCode.SUPERSEDED and not pod.terminating
            if placement.stranded(pod, sight.placement.lost) or superseded:
                await self.api.delete(path("Pod", sight.namespace, pod.name), pod.uid)
        return waits

    async def _still_silent(self, sight: Sight, node: str) -> bool:
        """The last look before a delete, past all caches."""
        if sight.placement.lost.get(node) is not placement.State.SILENT:
            return True
        lease = await self.api.get(f"{LEASES}/{node}")
        if lease is None:
            return True
        known = self.nodes.leases.leases.get(node)
        return known is not None and lease["spec"].get("renewTime") == known.renewed

    async def _retire(self, sight: Sight, pod: Pod) -> bool:
        """Nobody owns the slot from now on; with the registrar away its incarnations protect."""
        word = sessions.to_retire(pod, sight.registrar)
        address = sight.memory.addresses.get(0, "")
        if word is None or not address:
            return True
        said = await self.syncers.set_owner(address, pod.slot, "", word)
        self.metrics.owners.inc()
        return said == word + 1

    async def _replaced(self, sight: Sight, each: placement.Replace) -> None:
        pod = each.pod
        lease = self.nodes.leases.leases.get(each.node)
        lost_at = lease.changed_at if lease else sight.now
        sight.memory.replacements[pod.name if pod.role == LEARNER_ROLE else pod.role] = Replacement(
            role=pod.role, name=pod.name, old_uid=pod.uid, lost_at=lost_at
        )
        self.metrics.replacements.labels(pod.role).inc()
        self.metrics.deletion_seconds.labels(pod.role).observe(time.monotonic() - lost_at)
        log.warning(
            "replaced", job=sight.job.name, pod=pod.name, node=each.node, reason=each.reason
        )
        message = f"{pod.name} is made anew on another node: {each.reason}"
        await self.speaker.event(
            events.event(sight.raw, "NodeLost", message, sight.wall, warning=True)
        )

    async def name_owners(self, sight: Sight) -> None:
        """The registrar waits for our word on pods newer than its last one (rule 4)."""
        address = sight.memory.addresses.get(0, "")
        replaced = {each.pod.uid for each in sight.placement.replace}
        for pod, word in sessions.to_name(sight.pods, sight.registrar, sight.absent):
            live = await self.api.get(path("Pod", sight.namespace, pod.name))
            if live is None or live["metadata"]["uid"] != pod.uid or pod.uid in replaced:
                continue
            last = word
            if last is None:  # a word that is not the last changes nothing and is told the last
                sight.memory.absent_since[pod.slot] = sight.now  # and wait before the next try
                last = await self.syncers.set_owner(address, pod.slot, pod.uid, 0)
            if last is not None:
                await self.syncers.set_owner(address, pod.slot, pod.uid, last)
                self.metrics.owners.inc()
                log.info("named owner", job=sight.job.name, slot=pod.slot, pod=pod.uid)

    async def restart(self, sight: Sight) -> None:
        """Pods of an old template, region by region."""
        if sight.phase.kind is not Kind.RUNNING or sight.registrar is None:
            return
        job = sight.job
        slots = statuses.training(sight.replies) or []
        own = [pod for pod in sight.pods if pod.role == LEARNER_ROLE]
        training = rollout.counted(slots, own, self.speaker.settings.serves)
        live = {
            r.name: sight.workloads.get(learner_set(job.name, r.name)) for r in job.spec.regions
        }
        wanted = {region: set_.template for region, set_ in live.items() if set_ and set_.observed}
        learners = [
            pod for pod in own
            if pod.region in wanted
            and pod.node not in sight.placement.lost
            and pod.ordinal < next(r.learners for r in job.spec.regions if r.name == pod.region)
        ]  # fmt: skip
        chosen = rollout.next_to_restart(
            [r.name for r in job.spec.regions], learners, wanted, training, job.spec.sync.quorum
        )
        for pod in chosen:
            await self.api.delete(path("Pod", sight.namespace, pod.name), pod.uid)
            log.info("restarting for a new template", job=job.name, pod=pod.name)

    def measure(self, sight: Sight) -> None:
        """Replacements that train or serve again."""
        training = {slot.uid for slot in statuses.training(sight.replies) or ()}
        for key, each in list(sight.memory.replacements.items()):
            if each.role == LEARNER_ROLE:
                new = [p for p in sight.pods if p.name == each.name and p.uid != each.old_uid]
                done = any(pod.uid in training for pod in new)
            else:
                new = [p for p in sight.pods if p.role == each.role and p.uid != each.old_uid]
                done = bool(new) and all(p.ready for p in new)
            if done:
                seconds = time.monotonic() - each.lost_at
                self.metrics.replacement_seconds.labels(each.role).observe(seconds)
                log.info("replacement works", pod=each.name, seconds=round(seconds, 1))
                del sight.memory.replacements[key]
