"""A job becomes the objects that it owns: run files, workloads, services, budgets, accounts.

docs/kubernetes.md (What the operator makes of a job) lists them. Those of shards and evaluator, and
the list of learners, are made in the syncer's home alone; the others in every cluster.

Every object has the job as its controlling owner, except a claim with `reclaim: Retain`. Every
object, pod and selector has the job's UID as a label, so that what a former job of the same name
has left is not taken for this job's. Suspending or finishing a job sets replicas to 0.

`Annotation.APPLIED` is the hash of a whole object: a live object that carries it and differs all
the same was changed by somebody else (`drift`). `Annotation.TEMPLATE` is the hash of a role's pod
template without what may change under running pods (the run file's name, excluded nodes): a pod
that carries another one is old, and `rollout` restarts it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from atoll_operator.api.job.learner_fields import RegionPlacement, RegionSpec
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.syncer_fields import Reclaim, TlsMode
from atoll_operator.kube import names
from atoll_operator.kube.observed import notes
from atoll_operator.kube.observed.objects import key_of
from atoll_operator.kube.observed.observation import Object
from atoll_operator.kube.plan.certificates import issuing
from atoll_operator.kube.plan.losses.exclusions import Exclusions
from atoll_operator.kube.plan.manifest import restore
from atoll_operator.kube.plan.manifest.phase import Running
from atoll_operator.kube.plan.owner import INSTANCE, JobOwner
from atoll_operator.kube.plan.workloads import budgets, configs, hosts, pods
from atoll_operator.kube.plan.workloads.exposure import exposed
from atoll_operator.kube.plan.workloads.rendering import (
    Renderings,
    digest,
    inputs,
    same_but_for_length,
)
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label, slot_name

Render = Callable[[pods.RoleContext], Object]  # the pod template of a workload


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChildren:
    """Builds the children of one job."""

    job: Job
    owner: JobOwner
    settings: Settings
    running: Running
    exclusions: Exclusions = field(default_factory=Exclusions)
    renderings: Renderings = field(default_factory=Renderings)
    manifest: Mapping[str, Any] = field(default_factory=dict)  # the spec as it was accepted

    def objects(self) -> list[Object]:
        """All children, in the order in which they are applied: what pods refer to comes first."""
        job, owner, serves = self.job, self.owner, self.settings.serves
        regions = [region for region in job.spec.regions if serves(region.name)]
        home = serves(job.spec.syncer_region)
        found = [configs.accepted_map(owner, self.manifest)] if self.manifest else []
        found += [configs.account(owner, names.LEARNER_ROLE)] if regions else []
        if regions:
            found.append(configs.run_config_map(owner, self._learners_file()))
            found.append(budgets.of_learners(owner, job, serves))
        if home:
            found.append(configs.account(owner, names.SHARD_ROLE))
            found.append(configs.run_config_map(owner, self._shards_file()))
            found.append(configs.slots_map(owner, job, self.renderings.generation))
            found.append(budgets.of_shards(owner, job))
            for number in range(job.spec.syncer.shards):
                found += self._shard(number)
            if job.spec.evaluator is not None:
                found += [configs.account(owner, names.EVALUATOR_ROLE), self._evaluator()]
        for region in regions:
            found += self._region(region)
        needless = self._own_accounts()
        return [with_applied_hash(each) for each in found if key_of(each) not in needless]

    def _own_accounts(self) -> set[tuple[str, str]]:
        """Service accounts that are not made: every template of their role names one itself."""
        spec = self.job.spec
        of_regions = [each.pod_overrides.service_account_name for each in spec.regions]
        given = {
            names.LEARNER_ROLE: all(of_regions) or bool(pods.account_of(spec.learner.template)),
            names.SHARD_ROLE: bool(pods.account_of(spec.syncer.template)),
            names.EVALUATOR_ROLE: bool(spec.evaluator and pods.account_of(spec.evaluator.template)),
        }
        return {
            ("ServiceAccount", names.account_name(self.owner.name, role))
            for role, is_given in given.items()
            if is_given
        }

    @property
    def tls(self) -> bool:
        kept = self.renderings.tls
        return self.job.spec.syncer.tls.mode is TlsMode.REQUIRED if kept is None else kept

    def _learners_file(self) -> str:
        return self.renderings.learners_file or run_file(self.job).to_json()

    def _shards_file(self) -> str:
        """Another length restarts no shard: its file keeps the one with which it was made."""
        if self.renderings.shards_file:
            return self.renderings.shards_file
        new = configs.shards_file(self.job).to_json()
        present = self.renderings.present_shards_file
        return present if present and same_but_for_length(present, new) else new

    def _context(self, role: str, region: str, file: str, **more: Any) -> pods.RoleContext:
        job = self.job
        shared = job.spec.syncer.storage.is_shared
        name_of = names.processes_name if shared else names.shard_name
        shards = [
            f"{name_of(job.name, number)}.{self.owner.namespace}.svc:{names.SHARD_PORT}"
            for number in range(job.spec.syncer.shards)
        ]
        home = self.settings.serves(job.spec.syncer_region)
        return pods.RoleContext(
            role=role,
            region=region,
            run_config=configs.config_name(self.owner.name, file),
            certificate=issuing.secret_of(job, role, region, home=home) if self.tls else "",
            settings=self.renderings.settings(self.settings),
            endpoints=",".join(shards if home else job.spec.syncer.endpoints or shards),
            any_node=any(
                each.name == region and each.placement is RegionPlacement.ANYWHERE
                for each in job.spec.regions
            ),
            **more,
        )

    # Each builder below returns plain objects as the API server takes them. They carry neither
    # defaults that the API server would fill in nor status: server-side apply then owns exactly
    # the fields that are written here, and a user may set any other field of a child.

    def _region(self, region: RegionSpec) -> list[Object]:
        job, of_region = self.job, {Label.REGION: region.name}
        if job.spec.learner.hosts == 1:
            name, render = (
                names.learner_set(self.owner.name, region.name),
                partial(pods.learner, job),
            )
            return self._learners(region, name, of_region, render, region.learners)
        found = []
        for slot in (slot_name(region.name, ordinal) for ordinal in range(region.learners)):
            name, render = (
                names.hosts_set(self.owner.name, slot),
                partial(hosts.learner, job, slot=slot),
            )
            labels = {**of_region, Label.SLOT: slot}
            found += self._learners(region, name, labels, render, job.spec.learner.hosts)
        return found

    def _learners(
        self, region: RegionSpec, name: str, marks: Mapping[str, str], render: Render, count: int
    ) -> list[Object]:
        """A StatefulSet of so many learners, or hosts of one learner, and its Service.

        `marks` tell its pods from those of others. Parallel, because learners do not wait for one
        another to start, and hosts for each other in vain. OnDelete, because the operator decides
        which pods restart for a new template and when (`rollout`). The template's hash has the run
        hash in place of the run file's name, which changes with the number of learners.
        """
        labels = self.owner.labels(names.LEARNER_ROLE, **marks)
        context = self._context(
            names.LEARNER_ROLE, region.name, self._learners_file(), labels=labels,
            overrides=region.pod_overrides,
        )  # fmt: skip
        bare = replace(context, run_config=run_file(self.job).hash)
        template = self._template(name, context, bare, render)
        match = self.owner.selector(names.LEARNER_ROLE, **marks)
        workload = self.owner.child(
            "StatefulSet",
            "apps/v1",
            name,
            {**template["metadata"]["labels"], **labels},  # queues look at the workload's, too
            spec={
                "replicas": count if self.running.learners else 0,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": "OnDelete"},
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": match},
                "template": self._placed(name, template),
            },
        )
        annotations = workload["metadata"]["annotations"]
        if Label.SLOT in marks:
            annotations |= hosts.of_user(template)
        annotations |= self._note(name, template, region.name)
        annotations[names.Annotation.REPLACED] = self.exclusions.replaced.get(name) or notes.NOTHING
        annotations[names.Annotation.SUSPECTS] = self.exclusions.suspects.get(name) or notes.NOTHING
        if ended := self.exclusions.ended.get(name):
            annotations[names.Annotation.ENDED] = ended
        return [self._headless(name, labels, match), workload]

    def _headless(self, name: str, labels: Mapping[str, str], match: Mapping[str, str]) -> Object:
        """A Service by whose name all of these pods are found, whether they are Ready or not."""
        spec = {"clusterIP": "None", "selector": dict(match), "publishNotReadyAddresses": True}
        return self.owner.child("Service", "v1", name, labels, spec=spec)

    def _shard(self, number: int) -> list[Object]:
        """One shard: a Deployment of one pod for each of its processes, behind their Services.

        Recreate, so that in a rollout the old pod has ended before the new one starts. Should two
        run all the same, because the older is cut off, the store refuses its commits. Two
        Deployments and not one of two pods, because the pod that waits is not Ready, and a rollout
        of a Deployment waits for Ready pods. The Service of one name has the pod that is Ready;
        that of all processes has both, so that who dials finds the next one without a probe. It is
        there wherever a second process may come: one that comes or goes restarts no learner.
        """
        job, name = self.job, names.shard_name(self.owner.name, number)
        shard = {Label.SHARD: str(number)}
        labels = self.owner.labels(names.SHARD_ROLE, **shard)
        match = self.owner.selector(names.SHARD_ROLE, **shard)
        claim = names.shard_name(job.claims_of, number)
        port = {"name": "grpc", "port": names.SHARD_PORT, "targetPort": names.SHARD_PORT}
        # HTTP/2 in plain text, in the word that Kubernetes defines for it: gateways and meshes
        # would take the port for HTTP/1 or opaque bytes. Over TLS they must not look inside.
        ports = [{**port, "appProtocol": "https" if self.tls else "kubernetes.io/h2c"}]
        spec = {"selector": match, "ports": ports}
        found = [exposed(self.owner.child("Service", "v1", name, labels, spec=spec), job)]
        if job.spec.syncer.storage.has_claims and claim == name:
            found.append(self._claim(name, labels))
        if job.spec.syncer.storage.is_shared:
            both = names.processes_name(self.owner.name, number)
            found.append(self._headless(both, labels, match))
        return [*found, *(self._process(number, each, claim) for each in names.processes_of(job))]

    def _process(self, number: int, process: str, claim: str) -> Object:
        """The Deployment of a shard's only process, or of one of two."""
        job, name = self.job, names.shard_name(self.owner.name, number, process)
        marks = {Label.SHARD: str(number)} | ({Label.PROCESS: process} if process else {})
        labels = self.owner.labels(names.SHARD_ROLE, **marks)
        context = self._context(
            names.SHARD_ROLE, job.spec.syncer_region, self._shards_file(), labels=labels
        )
        folder = job.restored.folder if job.restored else self.owner.uid
        render = partial(pods.shard, job, number=number, uid=folder, claim=claim)
        template = self._template(name, context, context, render)
        match = self.owner.selector(names.SHARD_ROLE, **marks)
        return self._deployment(name, labels, match, template, self.running.shards)

    def _claim(self, name: str, labels: Mapping[str, str]) -> Object:
        """A shard's storage. Without an owner it outlives the job (`reclaim: Retain`).

        It has no label `app.kubernetes.io/instance`, by which Argo CD tells what an Application of
        that name has made: it would delete a claim that has no owner.
        """
        labels = {name: value for name, value in labels.items() if name != INSTANCE}
        storage = self.job.spec.syncer.storage
        spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage.size}},
        }
        if storage.storage_class_name:
            spec["storageClassName"] = storage.storage_class_name
        claim = self.owner.child("PersistentVolumeClaim", "v1", name, labels, spec=spec)
        claim["metadata"]["annotations"][names.Annotation.STATE] = restore.of_claim(
            self.job, self.owner.uid
        )
        if storage.reclaim is Reclaim.RETAIN:
            del claim["metadata"]["ownerReferences"]
        return claim

    def _evaluator(self) -> Object:
        """The evaluator, which lives where the shards live and reads their shared parameters."""
        job, name = self.job, names.evaluator_name(self.owner.name)
        labels = self.owner.labels(names.EVALUATOR_ROLE)
        context = self._context(
            names.EVALUATOR_ROLE, job.spec.syncer_region, self._shards_file(), labels=labels
        )
        template = self._template(name, context, context, partial(pods.evaluator, job))
        match = self.owner.selector(names.EVALUATOR_ROLE)
        return self._deployment(name, labels, match, template, self.running.evaluator)

    def _deployment(
        self,
        name: str,
        labels: Mapping[str, str],
        selector: Mapping[str, str],
        template: Object,
        wanted: bool,
    ) -> Object:
        spec = {
            "replicas": 1 if wanted else 0,
            "strategy": {"type": "Recreate"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": dict(selector)},
            "template": self._placed(name, template),
        }
        found = self.owner.child("Deployment", "apps/v1", name, labels, spec=spec)
        found["metadata"]["annotations"] |= self._note(name, template)
        return found

    def _template(
        self, name: str, context: pods.RoleContext, bare: pods.RoleContext, render: Render
    ) -> Object:
        """A workload's template without lost nodes: the kept one, or rendered and hashed now."""
        kept = self.renderings.kept.get(name)
        if kept is not None:
            return pods.with_run_config(kept.template, context.run_config)
        template = render(context)
        template["metadata"]["annotations"][names.Annotation.TEMPLATE] = digest(render(bare))[:16]
        return template

    def _note(self, name: str, template: Object, region: str = "") -> dict[str, str]:
        home = self.settings.serves(self.job.spec.syncer_region)
        hashed = self.renderings.inputs.get(name) or inputs(self.job, home=home)[region]
        note = self.renderings.note(name, template, hashed, self.settings)
        return {names.Annotation.RENDERED: note.to_text()}

    def _placed(self, name: str, template: Object) -> Object:
        return pods.excluding(template, self.exclusions.nodes.get(name, ()))


def with_applied_hash(child: Object) -> Object:
    child["metadata"]["annotations"][names.Annotation.APPLIED] = digest(child)[:16]
    return child
