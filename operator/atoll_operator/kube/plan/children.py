"""A job becomes the objects that it owns; pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_operator.api.runfile import run_file
from atoll_operator.api.spec import KIND, LEARNERS_MAX, Job, Reclaim, RegionSpec, StorageType
from atoll_operator.kube.names import (
    EVALUATOR_ROLE,
    GROUP,
    LEARNER_ROLE,
    RUN_FILE,
    SHARD_PORT,
    SHARD_ROLE,
    VERSION,
    Annotation,
    account_name,
    evaluator_name,
    learner_set,
    shard_name,
)
from atoll_operator.kube.plan import pods
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label
from atoll_protos.run import RunFile

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The job's object."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of the job shall run, and where not. `excluded` and `replaced` go by child's name."""

    learners: bool
    shards: bool
    evaluator: bool
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)  # the annotation's text


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One job's children: what all of them share."""

    job: Job
    owner: Owner
    settings: Settings
    wanted: Wanted

    def objects(self) -> list[Object]:
        """In the order in which they are applied: what pods refer to comes first."""
        job, serves = self.job, self.settings.serves
        regions = [region for region in job.spec.regions if serves(region.name)]
        home = serves(syncer_region(job))
        found = [self._account(LEARNER_ROLE)] if regions else []
        if regions:
            found.append(self._run_config(run_file(job)))
        if home:
            found += [self._account(SHARD_ROLE), self._run_config(shards_file(job))]
            found += [self._budget(f"{job.name}-syncer", {Label.ROLE: SHARD_ROLE})]
            for number in range(job.spec.syncer.shards):
                found += self._shard(number)
            if job.spec.evaluator is not None:
                found += [self._account(EVALUATOR_ROLE), self._evaluator()]
        for region in regions:
            found += self._region(region)
        return [sealed(each) for each in found]

    # ------------------------------------------------------------ parts

    def _labels(self, role: str, **more: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "atoll",
            "app.kubernetes.io/instance": self.owner.name,
            "app.kubernetes.io/component": role,
            "app.kubernetes.io/managed-by": "atoll-operator",
            Label.JOB: self.owner.name,
            Label.ROLE: role,
            **more,
        }

    def _object(
        self, kind: str, api: str, name: str, labels: Mapping[str, str], **body: Any
    ) -> Object:
        owner = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.owner.name,
            "uid": self.owner.uid,
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": self.owner.namespace,
            "labels": dict(labels),
            "annotations": {},
            "ownerReferences": [owner],
        }
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}

    def _account(self, role: str) -> Object:
        name = account_name(self.owner.name, role)
        labels = self._labels(role)
        return self._object(
            "ServiceAccount", "v1", name, labels, automountServiceAccountToken=False
        )

    def _run_config(self, file: RunFile) -> Object:
        labels = self._labels("run")
        data = {RUN_FILE: file.to_json()}
        return self._object("ConfigMap", "v1", config_name(file), labels, data=data, immutable=True)

    def _budget(self, name: str, selector: Mapping[str, str]) -> Object:
        match = {Label.JOB: self.owner.name, **selector}
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": match}}
        labels = self._labels("budget")
        return self._object("PodDisruptionBudget", "policy/v1", name, labels, spec=spec)

    def _frame(self, role: str, region: str, file: RunFile, child: str, **more: Any) -> pods.Frame:
        job = self.job
        hosts = [
            f"{shard_name(job.name, number)}.{self.owner.namespace}.svc:{SHARD_PORT}"
            for number in range(job.spec.syncer.shards)
        ]
        labels = more.pop("labels")
        return pods.Frame(
            role=role,
            labels=labels,
            region=region,
            run_config=config_name(file),
            run_hash=file.hash[:16],
            settings=self.settings,
            endpoints=",".join(job.spec.syncer.endpoints or hosts),
            excluded=self.wanted.excluded.get(child, ()),
            **more,
        )

    def _region(self, region: RegionSpec) -> list[Object]:
        job, name = self.job, learner_set(self.owner.name, region.name)
        labels = self._labels(LEARNER_ROLE, **{Label.REGION: region.name})
        frame = self._frame(
            LEARNER_ROLE, region.name, run_file(job), name, labels=labels,
            overrides=region.pod_overrides,
        )  # fmt: skip
        bare = replace(frame, run_config="", excluded=())  # learner counts restart nobody
        template = pods.learner(job, frame)
        mark(template, pods.learner(job, bare))
        selector = {Label.JOB: self.owner.name, Label.REGION: region.name, Label.ROLE: LEARNER_ROLE}
        workload = self._object(
            "StatefulSet",
            "apps/v1",
            name,
            labels,
            spec={
                "replicas": region.learners * job.spec.learner.hosts if self.wanted.learners else 0,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": "OnDelete"},
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": selector},
                "template": template,
            },
        )
        replaced = self.wanted.replaced.get(name)
        if replaced:
            workload["metadata"]["annotations"][Annotation.REPLACED] = replaced
        service = self._object(
            "Service", "v1", name, labels,
            spec={"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
        )  # fmt: skip
        budget = self._budget(name, {Label.REGION: region.name, Label.ROLE: LEARNER_ROLE})
        return [service, budget, workload]

    def _shard(self, number: int) -> list[Object]:
        job, name = self.job, shard_name(self.owner.name, number)
        labels = self._labels(SHARD_ROLE, **{Label.SHARD: str(number)})
        selector = {
            Label.JOB: self.owner.name, Label.ROLE: SHARD_ROLE, Label.SHARD: str(number)
        }  # fmt: skip
        frame = self._frame(SHARD_ROLE, syncer_region(job), shards_file(job), name, labels=labels)
        template = pods.shard(job, frame, number, self.owner.uid, name)
        bare = pods.shard(job, replace(frame, excluded=()), number, self.owner.uid, name)
        mark(template, bare)
        ports = [{"name": "grpc", "port": SHARD_PORT, "targetPort": SHARD_PORT}]
        found = [
            self._object("Service", "v1", name, labels, spec={"selector": selector, "ports": ports})
        ]
        storage = job.spec.syncer.storage
        if storage.type is StorageType.PERSISTENT_VOLUME_CLAIM:
            found.append(self._claim(name, labels))
        found.append(self._deployment(name, labels, selector, template, self.wanted.shards))
        return found

    def _claim(self, name: str, labels: Mapping[str, str]) -> Object:
        storage = self.job.spec.syncer.storage
        spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage.size}},
        }
        if storage.storage_class_name:
            spec["storageClassName"] = storage.storage_class_name
        claim = self._object("PersistentVolumeClaim", "v1", name, labels, spec=spec)
        if storage.reclaim is Reclaim.RETAIN:
            del claim["metadata"]["ownerReferences"]
        return claim

    def _evaluator(self) -> Object:
        job, name = self.job, evaluator_name(self.owner.name)
        labels = self._labels(EVALUATOR_ROLE)
        frame = self._frame(
            EVALUATOR_ROLE, syncer_region(job), shards_file(job), name, labels=labels
        )
        template = pods.evaluator(job, frame)
        mark(template, pods.evaluator(job, replace(frame, excluded=())))
        selector = {Label.JOB: self.owner.name, Label.ROLE: EVALUATOR_ROLE}
        return self._deployment(name, labels, selector, template, self.wanted.evaluator)

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
            "template": template,
        }
        return self._object("Deployment", "apps/v1", name, labels, spec=spec)


def syncer_region(job: Job) -> str:
    """Where the shards live: as given, else the first region."""
    return job.spec.syncer.region or job.spec.regions[0].name


def shards_file(job: Job) -> RunFile:
    """The run file of shards and evaluator: a region has as many learners as it ever may.

    A shard admits any ordinal of a known region, so that a change of `learners` restarts no shard.
    """
    file = run_file(job)
    regions = tuple(replace(region, learners=LEARNERS_MAX) for region in file.regions)
    return replace(file, regions=regions)


def config_name(file: RunFile) -> str:
    """ConfigMap of a run file: named by its hash, for it never changes."""
    return f"{file.job}-run-{digest(file.to_json())[:10]}"


def digest(value: Any) -> str:
    """sha256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def mark(template: Object, bare: Object) -> None:
    """Note the hash of what counts as the role's template: without counts and lost nodes."""
    template["metadata"]["annotations"][Annotation.TEMPLATE] = digest(bare)[:16]


def sealed(child: Object) -> Object:
    """The object with the hash of what is applied."""
    child["metadata"]["annotations"][Annotation.APPLIED] = digest(child)[:16]
    return child


def key_of(child: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name: a child within its namespace."""
    return child["kind"], child["metadata"]["name"]
