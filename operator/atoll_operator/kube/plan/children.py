"""A job becomes the objects that it owns: run files, workloads, services, budgets, accounts.

docs/kubernetes.md (What the operator makes of a job) lists them. Those of shards and evaluator, and
the list of learners, are made in the syncer's home alone; the others in every cluster.

Every object has the job as its controlling owner, except a claim with `reclaim: Retain`. Every
object, pod and selector has the job's UID as a label, so that what a former job of the same name
has left is not taken for this job's. Suspending or finishing a job sets replicas to 0.

`Annotation.APPLIED` is the hash of a whole object: a live object that carries it and differs all
the same was changed by somebody else (`applied`). `Annotation.TEMPLATE` is the hash of a role's pod
template without what may change under running pods (the run file's name, excluded nodes): a pod
that carries another one is old, and restarts (`restarts`).

The learners that the quorum can spare are divided among the regions in turn, and each cluster has
the shares of those that it serves: so clusters that drain or roll at the same time, without a word
of each other, stay above the quorum together.

Other clusters reach all shards at one node, which stays the one that was shown before as long as it
is Ready: what a person has copied stays right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from atoll_operator.api.job.fields import Reclaim, RegionPlacement, RegionSpec, ServiceType, TlsMode
from atoll_operator.api.job.process_inputs import expected, length, run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.kube import names
from atoll_operator.kube.names import (
    INSTANCE,
    LEARNER_ROLE,
    SHARD_PORT,
    SHARD_ROLE,
    JobOwner,
    learners_budget_name,
    shard_name,
    shards_budget_name,
)
from atoll_operator.kube.observed.objects import NOTHING, excluded_nodes, key_of
from atoll_operator.kube.observed.observation import Node, Object, Raw
from atoll_operator.kube.plan import accepted, certificates, pods
from atoll_operator.kube.plan.accepted import Renderings, digest, same_but_for_length
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.replacements import Exclusions
from atoll_operator.kube.settings import Settings
from atoll_protos.job.run_file import RunFile
from atoll_protos.names import Label, slot_name
from atoll_protos.network.addresses import joined


def account(owner: JobOwner, role: str) -> Object:
    """Make a role's account without rights, to give a cloud's identity to shards alone."""
    name = names.account_name(owner.name, role)
    labels = owner.labels(role)
    return owner.child("ServiceAccount", "v1", name, labels, automountServiceAccountToken=False)


def run_config_map(owner: JobOwner, text: str) -> Object:
    """Make a run file to mount; immutable, so that a running pod never sees another one."""
    labels, name = owner.labels("run"), config_name(owner.name, text)
    data = {names.RUN_FILE: text}
    return owner.child("ConfigMap", "v1", name, labels, data=data, immutable=True)


def slots_map(owner: JobOwner, job: Job, generation: int) -> Object:
    """Write for shards what a running job may change: its learners, its length, a checkpoint.

    It changes in place, so neither change restarts a shard. It is applied before the learners'
    StatefulSets, so no learner runs that it lacks. `generation` is the job's, which tells shards
    which of two lengths is newer.
    """
    name, labels = names.slots_name(job.name), owner.labels("run")
    listed = expected(job, owner.generations, owner.checkpoint, owner.machines)
    data = {
        names.SLOTS_FILE: listed.to_json(),
        names.LENGTH_FILE: length(job, generation).to_json(),
    }
    return owner.child("ConfigMap", "v1", name, labels, data=data)


def accepted_map(owner: JobOwner, manifest: Mapping[str, Any], rendered: str) -> Object:
    """Record the manifest in force (`accepted`), and for what templates are rendered."""
    data = {accepted.SPEC: accepted.spec_text(manifest), names.RENDERED: rendered}
    labels = owner.labels("manifest")
    return owner.child("ConfigMap", "v1", names.accepted_name(owner.name), labels, data=data)


def shards_file(job: Job) -> RunFile:
    """Make the run file without regions: no edit of them restarts a shard; it takes any slot."""
    return replace(run_file(job), regions=())


def config_name(job: str, text: str) -> str:
    """Put the hash of the file in the name because the ConfigMap is immutable."""
    return f"{job}-run-{digest(text)[:10]}"


def share(job: Job, serves: Callable[[str], bool]) -> int:
    """How many of the learners that the quorum can spare are those of the regions served here."""
    spec = job.spec
    turns = sorted(
        (ordinal, place, region.name)
        for place, region in enumerate(spec.regions)
        for ordinal in range(region.learners)
    )
    return sum(serves(region) for _, _, region in turns[: spec.learners - spec.quorum])


def of_learners(owner: JobOwner, job: Job, serves: Callable[[str], bool]) -> Object:
    """Let a drain take this cluster's share of what the quorum can spare, and at least one.

    A budget that forbids every eviction blocks drains for ever. A learner that loses one host is
    lost as a whole, so its other hosts may go with it: a drain of a rack whose hosts find no other
    place would otherwise wait for ever for the first. So all hosts of the spare learners may go at
    a time, and in the worst case, which no budget tells apart, one host of so many learners.
    """
    spec = job.spec
    spare = max(1, share(job, serves)) * spec.learner.hosts
    match = owner.selector(LEARNER_ROLE)
    return _budget(owner, learners_budget_name(job.name), match, unavailable=spare)


def of_shards(owner: JobOwner, job: Job) -> Object:
    """One shard at a time."""
    return _budget(owner, shards_budget_name(job.name), owner.selector(SHARD_ROLE), unavailable=1)


def _budget(owner: JobOwner, name: str, match: Mapping[str, str], *, unavailable: int) -> Object:
    spec = {
        "maxUnavailable": unavailable,
        # A pod that crashes protects nothing: a drain may evict it, whatever the budget says.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": dict(match)},
    }
    labels = owner.labels("budget")
    return owner.child("PodDisruptionBudget", "policy/v1", name, labels, spec=spec)


def exposed(service: Object, job: Job) -> Object:
    expose = job.spec.syncer.expose
    metadata, spec = service["metadata"], service["spec"]
    if expose.annotations:
        metadata = {**metadata, "annotations": {**metadata["annotations"], **expose.annotations}}
    if expose.type is not ServiceType.CLUSTER_IP:
        spec = {**spec, "type": str(expose.type)}
    return {**service, "metadata": metadata, "spec": spec}


def endpoints(
    job: Job,
    children: Iterable[Raw],
    nodes: Mapping[str, Node] | None,
    region: str,
    shown: Sequence[str | None],
) -> list[str] | None:
    """host:port by shard for other clusters; None: there are none, or not all are known yet.

    `region` is that of the nodes, empty: any. `shown` is what was shown before.
    """
    kind = job.spec.syncer.expose.type
    if kind is ServiceType.CLUSTER_IP:
        return None
    services = {
        child["metadata"]["name"]: child for child in children if child["kind"] == "Service"
    }
    own = [services.get(shard_name(job.name, n)) for n in range(job.spec.syncer.shards)]
    if kind is ServiceType.LOAD_BALANCER:
        return _all([_of_load_balancer(each) if each else None for each in own])
    if nodes is None:
        return _all(shown)
    host = _host(nodes, region, shown)
    return _all([_of_node(each, host) if each and host else None for each in own])


def stale(
    job: Job, nodes: Mapping[str, Node] | None, shown: Sequence[str | None]
) -> tuple[str, ...]:
    """Which of spec.syncer.endpoints lead to this cluster, and to no shard of the job any more.

    A job that is made again has other NodePorts. Nothing is known of another host, as a gateway.
    """
    hosts = {node.address for node in (nodes or {}).values()}
    hosts |= {each.rpartition(":")[0].strip("[]") for each in shown if each}
    found = []
    for number, (given, now) in enumerate(zip(job.spec.syncer.endpoints, shown, strict=False)):
        host, _, port = given.rpartition(":")
        if now and host.strip("[]") in hosts and port != now.rpartition(":")[2]:
            found.append(
                f"spec.syncer.endpoints[{number}] is {given}, and the shard is at {now}: other"
                " clusters do not reach it"
            )
    return tuple(found)


def _all(found: Sequence[str | None]) -> list[str] | None:
    known = [each for each in found if each]
    return known if known and len(known) == len(found) else None


def _of_load_balancer(service: Raw) -> str | None:
    status = service.get("status") or {}
    for ingress in (status.get("loadBalancer") or {}).get("ingress") or []:
        host = ingress.get("hostname") or ingress.get("ip")
        if host:
            return joined(str(host), SHARD_PORT)
    return None


def _of_node(service: Raw, host: str) -> str | None:
    for port in (service.get("spec") or {}).get("ports") or []:
        if port.get("port") == SHARD_PORT and port.get("nodePort"):
            return joined(host, int(port["nodePort"]))
    return None


def _host(nodes: Mapping[str, Node], region: str, shown: Sequence[str | None]) -> str:
    """Return the node's address to show; empty: no node is Ready."""
    fit = [
        nodes[name].address
        for name in sorted(nodes)
        if nodes[name].ready and nodes[name].address and region in ("", nodes[name].region)
    ]
    before = {each.rpartition(":")[0].strip("[]") for each in shown if each}
    return next((each for each in fit if each in before), fit[0] if fit else "")


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
        rendered = self.renderings.record(self.settings, tls=self.tls)
        found = [accepted_map(owner, self.manifest, rendered)] if home or regions else []
        found += [account(owner, names.LEARNER_ROLE)] if regions else []
        if regions:
            found.append(run_config_map(owner, self._learners_file()))
            found.append(of_learners(owner, job, serves))
        if home:
            found.append(account(owner, names.SHARD_ROLE))
            found.append(run_config_map(owner, self._shards_file()))
            found.append(slots_map(owner, job, self.renderings.generation))
            found.append(of_shards(owner, job))
            for number in range(job.spec.syncer.shards):
                found += self._shard(number)
            if job.spec.evaluator is not None:
                found += [account(owner, names.EVALUATOR_ROLE), self._evaluator()]
        for region in regions:
            found += self._region(region)
        needless = self._own_accounts()
        return [with_applied_hash(child) for child in found if key_of(child) not in needless]

    def _own_accounts(self) -> set[tuple[str, str]]:
        """Service accounts that are not made: every template of their role names one itself."""
        spec = self.job.spec
        of_regions = [region.pod_overrides.service_account_name for region in spec.regions]
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
        new = shards_file(self.job).to_json()
        present = self.renderings.present_shards_file
        return present if present and same_but_for_length(present, new) else new

    def _context(self, role: str, region: str, file: str, **more: Any) -> pods.RoleContext:
        job = self.job
        shards = [
            f"{names.shard_name(job.name, number)}.{self.owner.namespace}.svc:{names.SHARD_PORT}"
            for number in range(job.spec.syncer.shards)
        ]
        home = self.settings.serves(job.spec.syncer_region)
        return pods.RoleContext(
            role=role,
            region=region,
            run_config=config_name(self.owner.name, file),
            certificate=certificates.secret_of(job, role, region, home=home) if self.tls else "",
            settings=self.renderings.settings(self.settings),
            endpoints=",".join(shards if home else job.spec.syncer.endpoints or shards),
            any_node=any(
                entry.name == region and entry.placement is RegionPlacement.ANYWHERE
                for entry in job.spec.regions
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
                partial(pods.hosts_learner, job, slot=slot),
            )
            labels = {**of_region, Label.SLOT: slot}
            found += self._learners(region, name, labels, render, job.spec.learner.hosts)
        return found

    def _learners(
        self, region: RegionSpec, name: str, marks: Mapping[str, str], render: Render, count: int
    ) -> list[Object]:
        """Make a StatefulSet of so many learners, or hosts of one learner, and its Service.

        `marks` tell its pods from those of others. Parallel, because learners do not wait for one
        another to start, and hosts for each other in vain. OnDelete, because the operator decides
        which pods restart for a new template and when (`restarts`). The template's hash has the run
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
            annotations |= pods.of_user(template)
        annotations |= self._note(template)
        annotations[names.Annotation.REPLACED] = self.exclusions.replaced.get(name) or NOTHING
        annotations[names.Annotation.SUSPECTS] = self.exclusions.suspects.get(name) or NOTHING
        if ended := self.exclusions.ended.get(name):
            annotations[names.Annotation.ENDED] = ended
        return [self._headless(name, labels, match), workload]

    def _headless(self, name: str, labels: Mapping[str, str], match: Mapping[str, str]) -> Object:
        """Make a Service by whose name these pods are found, Ready or not."""
        spec = {"clusterIP": "None", "selector": dict(match), "publishNotReadyAddresses": True}
        return self.owner.child("Service", "v1", name, labels, spec=spec)

    def _shard(self, number: int) -> list[Object]:
        """One shard: a Deployment of one pod, behind a Service.

        Recreate, so that in a rollout the old pod has ended before the new one starts. Should two
        run all the same, because the older is cut off, the store refuses its commits.
        """
        job, name = self.job, names.shard_name(self.owner.name, number)
        shard = {Label.SHARD: str(number)}
        labels = self.owner.labels(names.SHARD_ROLE, **shard)
        match = self.owner.selector(names.SHARD_ROLE, **shard)
        claim = names.shard_name(self.owner.name, number)
        port = {"name": "grpc", "port": names.SHARD_PORT, "targetPort": names.SHARD_PORT}
        # HTTP/2 in plain text, in the word that Kubernetes defines for it: gateways and meshes
        # would take the port for HTTP/1 or opaque bytes. Over TLS they must not look inside.
        ports = [{**port, "appProtocol": "https" if self.tls else "kubernetes.io/h2c"}]
        spec = {"selector": match, "ports": ports}
        found = [exposed(self.owner.child("Service", "v1", name, labels, spec=spec), job)]
        if job.spec.syncer.storage.has_claims:
            found.append(self._claim(name, labels))
        context = self._context(
            names.SHARD_ROLE, job.spec.syncer_region, self._shards_file(), labels=labels
        )
        render = partial(pods.shard, job, number=number, uid=self.owner.uid, claim=claim)
        template = self._template(name, context, context, render)
        return [*found, self._deployment(name, labels, match, template, self.running.shards)]

    def _claim(self, name: str, labels: Mapping[str, str]) -> Object:
        """Make a shard's storage. Without an owner it outlives the job (`reclaim: Retain`).

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
        if storage.reclaim is Reclaim.RETAIN:
            del claim["metadata"]["ownerReferences"]
        return claim

    def _evaluator(self) -> Object:
        """Make the evaluator, which lives with the shards and reads their shared parameters."""
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
        found["metadata"]["annotations"] |= self._note(template)
        return found

    def _template(
        self, name: str, context: pods.RoleContext, bare: pods.RoleContext, render: Render
    ) -> Object:
        """Make a workload's template without lost nodes; a live one of another version stays."""
        template = render(context)
        hashed = digest(template if bare is context else render(bare))[:16]
        live = self.renderings.live.get(name)
        if live is not None and live.hash != hashed:
            return pods.with_run_config(live.without_additions(template), context.run_config)
        template["metadata"]["annotations"][names.Annotation.TEMPLATE] = hashed
        return template

    def _note(self, template: Object) -> dict[str, str]:
        hashed = template["metadata"]["annotations"][names.Annotation.TEMPLATE]
        return {names.Annotation.RENDERED: self.renderings.note(hashed)}

    def _placed(self, name: str, template: Object) -> Object:
        return pods.excluding(template, self.exclusions.nodes.get(name, ()))


def with_applied_hash(child: Object) -> Object:
    """Note the hash; a template counts by what it was rendered for, as it may be a live one.

    Its hash stands in Annotation.RENDERED; nodes and the run file are what it may have besides.
    """
    content, spec = child, child.get("spec") or {}
    if template := spec.get("template"):
        told = [excluded_nodes(template), pods.run_config_of(template)]
        content = {**child, "spec": {**spec, "template": told}}
    child["metadata"]["annotations"][names.Annotation.APPLIED] = digest(content)[:16]
    return child
