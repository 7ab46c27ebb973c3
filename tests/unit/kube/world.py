"""A world of one job in memory: an API server, shards, nodes, and the passes of the operator."""

import asyncio
import copy
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import (
    KINDS,
    LEASES,
    NODES,
    ApiError,
    ConflictError,
    ObjectNotFoundError,
    path,
)
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observed.cache import Cache, Sight
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import ShardRefusal
from atoll_operator.kube.serve import reconciler
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label
from unit.kube.cluster_values import MANIFEST, SETTINGS

KEY = ("demo", "tiny")


class Server:
    """Objects by path; notes every write."""

    def __init__(self, job: dict[str, Any] | None) -> None:
        self.job, self.children = job, {}  # type: ignore[var-annotated]
        self.log: list[str] = []
        self.refuses: dict[str, str] = {}  # message by name of a child
        self.wrong: dict[str, str] = {}  # message by a text in a workload or a claim
        self.wrong_pods: dict[str, str] = {}  # the same, found only in its pods
        self.tried: list[str] = []  # names of workloads and pods, of dry runs
        self.raises: dict[str, ApiError] = {}  # by method
        self.cache, self.version = Cache(), 0

    def show(self) -> None:
        """The watches show everything as it is now."""
        self.version += 1
        shown = {where: copy.deepcopy(each) for where, each in self.children.items()}
        for kind in KINDS:
            items = []
            for where, each in shown.items():
                if where.rpartition("/")[0] == path(kind, "demo"):
                    each["metadata"] = {"namespace": "demo", **each["metadata"]}
                    labels = {Label.JOB: "tiny", **each["metadata"].get("labels", {})}
                    each["metadata"] |= {"resourceVersion": str(self.version), "labels": labels}
                    items.append({**each, "kind": kind, "apiVersion": KINDS[kind][0]})
            self.cache.listed(kind, "", items, self.version)
        job = copy.deepcopy(self.job)
        if job is not None:
            job["metadata"]["resourceVersion"] = str(self.version)
        self.cache.listed(KIND, "", [job] if job else [], self.version)

    def _ask(self, method: str) -> None:
        if error := self.raises.get(method):
            raise error

    async def get(self, where: str) -> Any:
        if where.endswith("decoupledtrainingjobs/tiny"):
            return copy.deepcopy(self.job)
        return copy.deepcopy(self.children.get(where))

    async def apply(self, child: Mapping[str, Any]) -> Any:
        name = child["metadata"]["name"]
        self.log.append(f"apply {child['kind']} {name}")
        if name in self.refuses:
            raise ApiError(403, self.refuses[name])
        self.look_for_mistakes(child)
        where = path(child["kind"], "demo", name)
        uid = child["metadata"].get("uid")
        if uid is not None and self.children.get(where, {}).get("metadata", {}).get("uid") != uid:
            raise ConflictError(409, "the UID in the precondition does not match")
        live: Any = copy.deepcopy(child)
        live["metadata"] |= {"uid": f"uid-{name}", "generation": 1}
        if child["kind"] not in KINDS:  # no watch shows its version
            self.version += 1
            live["metadata"]["resourceVersion"] = str(self.version)
        live["status"] = {"observedGeneration": 1}
        self.children[where] = live
        return copy.deepcopy(live)

    async def create(self, child: Mapping[str, Any]) -> None:
        if path(child["kind"], "demo", child["metadata"]["name"]) in self.children:
            raise ConflictError(409, "it is there")
        await self.apply(child)

    async def dry_run(self, child: Mapping[str, Any]) -> None:
        self._ask("dry_run")
        self.tried.append(child["metadata"]["name"])
        self.look_for_mistakes(child)

    def look_for_mistakes(self, child: Mapping[str, Any]) -> None:
        spec = child.get("spec", {})
        looked_at = spec if child["kind"] == "PersistentVolumeClaim" else spec.get("template", "")
        for text, message in self.wrong.items():
            if text in str(looked_at):
                raise ApiError(500, message)

    async def dry_run_pod(self, pod: Mapping[str, Any]) -> None:
        self._ask("dry_run_pod")
        self.tried.append(pod["metadata"]["generateName"])
        account = pod["spec"].get("serviceAccountName", "")
        there = path("ServiceAccount", "demo", account) in self.children
        if account.startswith("tiny-") and not there:
            missing = f'service account demo/{account}: serviceaccount "{account}" not found'
            raise ApiError(403, f'pods "x" is forbidden: error looking up {missing}')
        for text, message in self.wrong_pods.items():
            if text in str(pod):
                raise ApiError(403, message)

    async def apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any]
    ) -> None:
        self._ask("apply_status")
        if self.job is None:
            raise ObjectNotFoundError(404, "gone")
        if self.job["metadata"]["uid"] != uid:
            raise ConflictError(409, "another UID")
        self.log.append("status")
        self.job["status"] = copy.deepcopy(status)

    async def delete(self, where: str, uid: str, *, at_once: bool = False) -> bool:
        self._ask("delete")
        self.log.append(f"delete {where.rpartition('/')[2]}{' at once' if at_once else ''}")
        self.children.pop(where, None)
        return True

    async def mark(self, namespace: str, name: str, uid: str, condition: dict[str, Any]) -> None:
        pod = self.children[path("Pod", namespace, name)]
        if pod["metadata"]["uid"] != uid:
            raise ConflictError(409, "another UID")
        self.log.append(f"mark {name} {condition['status']}")
        pod["status"]["conditions"] = [
            *(e for e in pod["status"].get("conditions", []) if e["type"] != condition["type"]),
            condition,
        ]

    async def apply_event(self, event: Mapping[str, Any]) -> None:
        self.log.append(f"event {event['reason']}")

    def add_pod(self, name: str, role: str, node: str, **labels: str) -> None:
        owner = self.children.get(path("StatefulSet", "demo", name.rpartition("-")[0]))
        made_from = owner["spec"]["template"]["metadata"]["annotations"] if owner else {}
        self.children[path("Pod", "demo", name)] = {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {Label.ROLE: role, Label.JOB_UID: "job-uid", **labels},
                "annotations": made_from,
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "podIP": f"ip-{name}"},
        }


class Shards:
    """Answers of shards; notes every word."""

    def __init__(self, log: list[str]) -> None:
        self.replies: list[pb.StatusReply | None] = [None]
        self.log = log
        self.asked = True
        self.refused: dict[int, ShardRefusal] = {}
        self.followed: dict[Any, Any] = {}
        self.own: Any = None  # the certificates of the operator

    async def follow(
        self, key: Any, memory: JobMemory, addresses: Mapping[int, str], *, tls: bool = False
    ) -> bool:
        """As `Polls` does, with answers that are there at once."""
        self.own = memory.certificates.own if tls else None
        if any(addresses.values()):
            memory.take(self.replies[: len(addresses)], time.monotonic(), rfc3339(time.time()))
        else:
            memory.answered_at.clear()
        self.followed = {key: dict(addresses)}
        return self.asked

    def refusals(self, key: Any) -> dict[int, ShardRefusal]:
        """Those that a test has given."""
        return self.refused

    async def forget(self, key: Any) -> None:
        self.followed.pop(key, None)

    async def set_owner(
        self, address: str, slot: str, uid: str, word: int, credentials: Any = None
    ) -> int:
        self.log.append(f"owner {slot} {uid or 'none'} {word}")
        return word + 1


class World:
    def __init__(self, *changes: tuple[str, Any], settings: Settings = SETTINGS) -> None:
        job = yaml.safe_load(MANIFEST)
        job["metadata"] |= {"namespace": "demo", "uid": "job-uid", "generation": 1}
        job["spec"] |= {"syncer": {"shards": 1}} | dict(changes)
        self.server, self.spec = Server(job), copy.deepcopy(job["spec"])
        self.shards = Shards(self.server.log)
        self.nodes = Nodes(region_label="region")
        for where in (NODES, LEASES):
            self.nodes.sights[where] = Sight(tried_at=0.0, listed=True)
        self.settings = settings
        self.starts()

    def starts(self) -> None:
        """An operator that has just been started, whatever became of another one before."""
        api: Any = self.server
        shards: Any = self.shards
        self.metrics = Metrics()
        own = self.settings, self.metrics
        self.reconciler = reconciler(api, shards, shards, self.nodes, *own)

    def run(self) -> list[str]:
        """One pass; what it wrote."""
        before = len(self.server.log)
        self._count_edits()
        self.server.show()
        self.nodes.last_look = None  # what tests change by hand
        asyncio.run(self._pass())
        return self.server.log[before:]

    def _count_edits(self) -> None:
        """Count the job's generation up for an edit of its spec, as the API server does."""
        job = self.server.job
        if job is not None and json.dumps(job["spec"]) != json.dumps(self.spec):  # 1 is no true
            job["metadata"]["generation"] += 1
            self.spec = copy.deepcopy(job["spec"])

    async def _pass(self) -> None:
        self.again = await self.reconciler.reconcile(KEY)

    @property
    def job(self) -> dict[str, Any]:
        assert self.server.job is not None
        return self.server.job

    @property
    def memory(self) -> JobMemory:
        return self.reconciler.memories[KEY]

    @property
    def registrar(self) -> pb.StatusReply:
        """Shard 0's answer, to be changed."""
        found = self.shards.replies[0]
        assert found is not None
        return found

    def edit(self, **spec: Any) -> None:
        """What a person writes into the job's spec."""
        self.job["spec"] |= spec

    def live(self, kind: str, name: str) -> dict[str, Any]:
        """A child as it is at the API server, to be changed."""
        found: dict[str, Any] = self.server.children[path(kind, "demo", name)]
        return found

    def runs(self, passes: int = 2) -> list[str]:
        """So many passes; what they wrote."""
        return [each for _ in range(passes) for each in self.run()]

    def retry(self) -> None:
        """What was refused is due to be tried again."""
        for key, each in self.memory.refused.items():
            self.memory.refused[key] = replace(each, again_at=0.0)

    def see_nodes(self, region: str = "", **ready: str) -> None:
        """These nodes have this status of their condition Ready."""
        for name, status in ready.items():
            metadata = {"name": name, "labels": {"region": region}}
            conditions = [{"type": "Ready", "status": status}]
            raw = {"metadata": metadata, "status": {"conditions": conditions}}
            self.nodes.take(NODES, "ADDED", raw)

    def cannot_watch(self, problem: str) -> None:
        self.server.cache.sights["pods"] = sight = Sight(tried_at=0.0, listed=True)
        sight.fails(problem, 0.0)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def said(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.job["status"]["conditions"] if each["type"] == kind)

    def condition(self, kind: str) -> str:
        return str(self.said(kind)["status"])


def lost_learner() -> World:
    world = World()
    world.run()
    world.server.add_pod("tiny-syncer-0-x", "shard", "n2", **{Label.SHARD: "0"})
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "0"}
    world.server.add_pod("tiny-us-east-0", "learner", "n1", **index)
    world.see_nodes(n1="False", n2="True", n3="True")
    slot = pb.SlotStatus(slot="us-east-0", state=pb.SLOT_LOST, uid="uid-tiny-us-east-0")
    world.shards.replies = [
        pb.StatusReply(run="r", state=pb.SHARD_SERVING, steps=600, slots=[slot])
    ]
    return world
