"""One pass: what is written when, and in which order, against an API server in memory."""

import asyncio
import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.reasons import TYPES
from atoll_operator.api.spec import KIND
from atoll_operator.kube import reconcile
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Cache, FailedCreate, Sight
from atoll_operator.kube.edges.api import (
    KINDS,
    LEASES,
    NODES,
    ApiError,
    ConflictError,
    NotFoundError,
    path,
)
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.objects import rfc3339
from atoll_operator.kube.observe import Observer
from atoll_operator.kube.plan.planner import AGAIN_SECONDS, plan
from atoll_operator.kube.report import StatusWriter
from atoll_operator.kube.serve import reconciler
from atoll_protos.names import Label
from unit.kube.cluster_values import MANIFEST, SETTINGS

KEY = ("demo", "tiny")
READY = {"type": "Ready", "status": "True"}


class Server:
    """Objects by path; notes every write."""

    def __init__(self, job: dict[str, Any] | None) -> None:
        self.job, self.children = job, {}  # type: ignore[var-annotated]
        self.log: list[str] = []
        self.refuses: dict[str, str] = {}  # message by name of a child
        self.wrong: dict[str, str] = {}  # message by a text in a workload
        self.wrong_pods: dict[str, str] = {}  # the same, found only in its pods
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
        live["status"] = {"observedGeneration": 1}
        self.children[where] = live
        return copy.deepcopy(live)

    async def dry_run(self, child: Mapping[str, Any]) -> None:
        self.look_for_mistakes(child)

    def look_for_mistakes(self, child: Mapping[str, Any]) -> None:
        for text, message in self.wrong.items():
            if text in str(child.get("spec", {}).get("template", "")):
                raise ApiError(500, message)

    async def dry_run_pod(self, pod: Mapping[str, Any]) -> None:
        account = pod["spec"].get("serviceAccountName", "")
        if account.startswith("tiny-") and path("ServiceAccount", "demo", account) not in (
            self.children
        ):
            missing = f'service account demo/{account}: serviceaccount "{account}" not found'
            raise ApiError(403, f'pods "x" is forbidden: error looking up {missing}')
        for text, message in self.wrong_pods.items():
            if text in str(pod):
                raise ApiError(403, message)

    async def apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any]
    ) -> None:
        if self.job is None:
            raise NotFoundError(404, "gone")
        if self.job["metadata"]["uid"] != uid:
            raise ConflictError(409, "another UID")
        self.log.append("status")
        self.job["status"] = copy.deepcopy(status)

    async def delete(self, where: str, uid: str, *, at_once: bool = False) -> bool:
        self.log.append(f"delete {where.rpartition('/')[2]}{' at once' if at_once else ''}")
        self.children.pop(where, None)
        return True

    async def apply_event(self, event: Mapping[str, Any]) -> None:
        self.log.append(f"event {event['reason']}")

    def add_pod(self, name: str, role: str, node: str, **labels: str) -> None:
        owner = self.children.get(path("StatefulSet", "demo", name.rpartition("-")[0]))
        made_from = owner["spec"]["template"]["metadata"]["annotations"] if owner else {}
        self.children[path("Pod", "demo", name)] = {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {Label.ROLE: role, **labels},
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
        self.followed: dict[Any, Any] = {}

    async def follow(self, key: Any, memory: Memory, addresses: Mapping[int, str]) -> bool:
        """As `Polls` does, with answers that are there at once."""
        if any(addresses.values()):
            memory.take(self.replies[: len(addresses)], time.monotonic(), rfc3339(time.time()))
        else:
            memory.answered_at.clear()
        self.followed = {key: dict(addresses)}
        return self.asked

    async def forget(self, key: Any) -> None:
        self.followed.pop(key, None)

    async def set_owner(self, address: str, slot: str, uid: str, word: int) -> int:
        self.log.append(f"owner {slot} {uid or 'none'} {word}")
        return word + 1


class World:
    def __init__(self, *changes: tuple[str, Any]) -> None:
        job = yaml.safe_load(MANIFEST)
        job["metadata"] |= {"namespace": "demo", "uid": "job-uid", "generation": 1}
        job["spec"] |= {"syncer": {"shards": 1}} | dict(changes)
        self.server, self.spec = Server(job), copy.deepcopy(job["spec"])
        self.shards = Shards(self.server.log)
        self.nodes = Nodes(region_label="region")
        for where in (NODES, LEASES):
            self.nodes.sights[where] = Sight(tried_at=0.0, listed=True)
        api: Any = self.server
        shards: Any = self.shards
        self.metrics = Metrics()
        self.reconciler = reconciler(api, shards, shards, self.nodes, SETTINGS, self.metrics)

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
        if job is not None and job["spec"] != self.spec:
            job["metadata"]["generation"] += 1
            self.spec = copy.deepcopy(job["spec"])

    async def _pass(self) -> None:
        self.again = await self.reconciler.reconcile(KEY)

    def cannot_watch(self, problem: str) -> None:
        self.server.cache.sights["pods"] = sight = Sight(tried_at=0.0, listed=True)
        sight.fails(problem, 0.0)

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)

    def said(self, kind: str) -> dict[str, Any]:
        assert self.server.job is not None
        return next(c for c in self.server.job["status"]["conditions"] if c["type"] == kind)

    def condition(self, kind: str) -> str:
        assert self.server.job is not None
        found = {each["type"]: each["status"] for each in self.server.job["status"]["conditions"]}
        return str(found[kind])


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)


def test_the_first_pass_makes_the_children_and_all_conditions() -> None:
    world = World()
    wrote = world.run()
    assert "apply StatefulSet tiny-us-east" in wrote
    assert wrote.count("status") == 1
    assert world.server.job is not None
    assert tuple(each["type"] for each in world.server.job["status"]["conditions"]) == TYPES


def test_a_second_pass_writes_nothing() -> None:
    world = World()
    world.run()
    assert world.run() == []


def test_a_lost_operator_takes_up_where_another_stopped() -> None:
    world, other = World(), World()
    world.run()
    for child in list(world.server.children)[::2]:
        del world.server.children[child]
    world.server.show()
    other.reconciler.observer.cache = world.server.cache
    other.reconciler.applier.api = world.reconciler.applier.api
    other.reconciler.writer.api = world.reconciler.applier.api
    before = len(world.server.log)
    asyncio.run(other.reconciler.reconcile(KEY))
    wrote = world.server.log[before:]
    assert wrote
    assert all(each.startswith("apply") for each in wrote if each != "status")


def test_a_manifest_that_cannot_be_read_is_said_and_touches_no_child() -> None:
    world = World(("steps", -1))
    assert world.run() == ["status"]
    assert world.condition("Accepted") == "False"
    assert not world.server.children


def test_a_job_of_another_manager_is_left_alone() -> None:
    assert World(("managedBy", "kueue.x-k8s.io/multikueue")).run() == []


def test_a_job_created_suspended_has_no_children() -> None:
    world = World(("suspend", True))
    world.run()
    assert not world.server.children
    assert world.condition("Suspended") == "True"


def test_a_job_that_is_gone_is_forgotten() -> None:
    world = World()
    world.run()
    world.server.job = None
    assert world.run() == []
    assert world.again is None
    assert not world.reconciler.memories


def lost_learner() -> World:
    world = World()
    world.run()
    world.server.add_pod("tiny-syncer-0-x", "shard", "n2", **{Label.SHARD: "0"})
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "0"}
    world.server.add_pod("tiny-us-east-0", "learner", "n1", **index)
    for name, ready in (("n1", "False"), ("n2", "True"), ("n3", "True")):
        conditions = [{"type": "Ready", "status": ready}]
        raw = {"metadata": {"name": name}, "status": {"conditions": conditions}}
        world.nodes.take(NODES, "ADDED", raw)
    slot = pb.SlotStatus(slot="us-east-0", state=pb.SLOT_LOST, uid="uid-tiny-us-east-0")
    world.shards.replies = [
        pb.StatusReply(run="r", state=pb.SHARD_SERVING, steps=600, slots=[slot])
    ]
    return world


def test_a_lost_node_is_excluded_and_the_owner_retired_before_its_pod_is_deleted() -> None:
    world = lost_learner()
    first, second = world.run(), world.run()
    assert "apply StatefulSet tiny-us-east" in first
    assert not [each for each in first if each.startswith("delete")]
    order = [each for each in second if each.startswith(("owner", "delete", "event NodeLost"))]
    assert order == [
        "owner us-east-0 none 0", "delete tiny-us-east-0 at once", "event NodeLost",
    ]  # fmt: skip


def test_the_replacement_is_named_owner_after_a_fresh_look_at_it() -> None:
    world = lost_learner()
    world.run()
    world.run()
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "0"}
    world.server.add_pod("tiny-us-east-0", "learner", "n3", **index)
    world.server.children[path("Pod", "demo", "tiny-us-east-0")]["metadata"]["uid"] = "new"
    reply = world.shards.replies[0]
    assert reply is not None
    reply.slots[0].owner_word = 1
    assert "owner us-east-0 new 1" in world.run()


def test_a_pod_that_a_shard_refused_for_good_is_deleted_with_grace() -> None:
    world = lost_learner()
    world.nodes.nodes.clear()
    for name in ("n1", "n2"):
        conditions = [{"type": "Ready", "status": "True"}]
        raw = {"metadata": {"name": name}, "status": {"conditions": conditions}}
        world.nodes.take(NODES, "ADDED", raw)
    pod = world.server.children[path("Pod", "demo", "tiny-us-east-0")]
    ended = {"terminated": {"exitCode": 77}}
    pod["status"]["containerStatuses"] = [{"state": ended}]
    assert "delete tiny-us-east-0" in world.run()


def test_each_phase_of_a_pass_is_entered_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world, entered = lost_learner(), []
    phases = [(Observer, "observe"), (Applier, "apply"), (StatusWriter, "report")]

    def counted(name: str, phase: Any) -> Any:
        def enter(*values: Any) -> Any:
            entered.append(name)
            return phase(*values)

        return enter

    for owner, name in phases:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    monkeypatch.setattr(reconcile, "plan", counted("plan", plan))
    for _ in range(3):
        entered.clear()
        world.run()
        assert entered == ["observe", "plan", "apply", "report"]


def test_a_pass_that_fails_is_counted() -> None:
    world = lost_learner()
    world.run()
    failing(world)
    with pytest.raises(ApiError):
        world.run()
    assert world.metric("atoll_operator_pass_failures_total") == 1


def test_a_pass_that_sees_nothing_is_no_failure_and_touches_nothing() -> None:
    world = World()
    world.cannot_watch("403: pods is forbidden")
    world.run()
    assert world.run() == []
    assert not world.server.children
    assert world.again == reconcile.UNSEEN_SECONDS
    assert world.metric("atoll_operator_pass_failures_total") == 0
    assert world.reconciler.last_pass_at is None
    world.server.cache.sights["pods"].works(1.0)
    assert "apply StatefulSet tiny-us-east" in world.run()


def test_before_everything_is_listed_nothing_is_made() -> None:
    world = World()
    world.server.cache.sights["pods"] = Sight(tried_at=0.0)
    assert not [each for each in world.run() if each != "status" and "event" not in each]
    world.server.cache.sights["pods"].listed = True
    assert "apply StatefulSet tiny-us-east" in world.run()


def test_jobs_whose_replacements_are_held_are_counted() -> None:
    world = lost_learner()
    assert world.metric("atoll_operator_jobs_held") == 0
    for name in ("n1", "n2", "n3"):
        conditions = [{"type": "Ready", "status": "False"}]
        raw = {
            "metadata": {"name": name, "labels": {"region": "us-east"}},
            "status": {"conditions": conditions},
        }
        world.nodes.take(NODES, "ADDED", raw)
    world.run()
    assert world.condition("NodeLossHeld") == "True"
    assert world.metric("atoll_operator_jobs_held") == 1
    world.server.job = None
    world.run()
    assert world.metric("atoll_operator_jobs_held") == 0


def test_a_node_that_renews_its_lease_at_the_last_moment_keeps_its_pod() -> None:
    world = lost_learner()
    for name in ("n1", "n2", "n3"):
        raw = {"metadata": {"name": name}, "status": {"conditions": [READY]}}
        world.nodes.take(NODES, "ADDED", raw)
    spec = {"renewTime": "10:00", "leaseDurationSeconds": 40}
    world.nodes.take("leases", "ADDED", {"metadata": {"name": "n1"}, "spec": spec})
    world.nodes.leases.leases["n1"].changed_at -= 60
    world.nodes.leases.settled_at -= 60
    world.server.children[f"{LEASES}/n1"] = {"spec": {"renewTime": "10:01"}}
    world.run()
    assert not [each for each in world.run() if each.startswith(("owner", "delete"))]
    world.server.children[f"{LEASES}/n1"] = {"spec": {"renewTime": "10:00"}}
    assert "delete tiny-us-east-0 at once" in world.run()


def test_a_word_that_the_registrar_refuses_deletes_nothing() -> None:
    world = lost_learner()
    world.run()

    async def refuse(address: str, slot: str, uid: str, word: int) -> int:
        return word + 5

    world.shards.set_owner = refuse  # type: ignore[method-assign]
    assert not [each for each in world.run() if each.startswith("delete")]
    assert world.again == AGAIN_SECONDS


QUOTA = 'pods "tiny-eu-west" is forbidden: exceeded quota'


def refused() -> World:
    """A job of which the API server refuses one StatefulSet, in the first pass."""
    world = World()
    world.server.refuses = {"tiny-eu-west": QUOTA}
    world.run()
    return world


def test_a_child_that_is_refused_is_named_and_the_others_are_made() -> None:
    world = refused()
    assert path("StatefulSet", "demo", "tiny-us-east") in world.server.children
    assert world.again == AGAIN_SECONDS
    world.run()
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "StatefulSet tiny-eu-west" in accepted["message"]
    assert QUOTA in accepted["message"]
    assert world.condition("SyncerReady") == "Unknown"  # all else is said as ever
    assert world.run() == []


def test_a_first_status_never_accepts_what_was_refused() -> None:
    world = refused()
    assert "status" not in world.server.log


def test_a_refused_child_is_tried_again_after_a_pause() -> None:
    world = refused()
    again = "apply Service tiny-eu-west"
    assert again not in world.run()
    for key, each in world.reconciler.memories[KEY].refused.items():
        world.reconciler.memories[KEY].refused[key] = replace(each, again_at=0.0)
    assert again in world.run()
    assert world.condition("Accepted") == "False"
    world.server.refuses.clear()
    for key, each in world.reconciler.memories[KEY].refused.items():
        world.reconciler.memories[KEY].refused[key] = replace(each, again_at=0.0)
    assert again in world.run()
    world.run()
    assert world.condition("Accepted") == "True"


def test_an_edit_is_tried_at_once_whatever_was_refused() -> None:
    world = refused()
    world.run()
    assert world.server.job is not None
    world.server.refuses.clear()
    template = {"spec": {"priorityClassName": "high"}}
    world.server.job["spec"]["learner"] = {"template": template}
    assert "apply StatefulSet tiny-eu-west" in world.run()


def without_eu_west(said: str, refused: str) -> World:
    """The region eu-west is taken out of a running job, and an object is refused."""
    world = World(("evaluator", {}))
    world.run()
    assert world.server.job is not None
    world.server.refuses = {refused: said}
    world.server.job["spec"]["regions"] = [{"name": "us-east", "learners": 4}]
    world.server.job["spec"]["evaluator"] = {"template": {"spec": {"priorityClassName": "new"}}}
    return world


def test_nothing_is_deleted_while_what_replaces_it_is_refused() -> None:
    world = without_eu_west("a webhook says no", "tiny-us-east")
    assert not [each for each in world.run() if each.startswith("delete")]
    world.server.refuses.clear()
    world.reconciler.memories[KEY].refused.clear()
    assert "delete tiny-eu-west" in world.run()


def test_a_region_goes_although_the_evaluator_is_refused() -> None:
    assert "delete tiny-eu-west" in without_eu_west("a webhook says no", "tiny-evaluator").run()


def test_what_is_deleted_makes_room_for_what_a_quota_refuses() -> None:
    assert "delete tiny-eu-west" in without_eu_west(QUOTA, "tiny-us-east").run()


def failing(world: World) -> None:
    """The API server refuses deletes, in a pass that deletes a pod and has news."""

    async def refuse(where: str, uid: str, *, at_once: bool = False) -> bool:
        raise ApiError(500, "no")

    world.server.delete = refuse  # type: ignore[method-assign]
    reply = world.shards.replies[0]
    assert reply is not None
    reply.tick, reply.state = 60, pb.SHARD_FAILED


def test_the_status_is_written_although_an_effect_failed() -> None:
    world = lost_learner()
    world.run()
    failing(world)
    with pytest.raises(ApiError):
        world.run()
    assert world.condition("Failed") == "True"


def test_a_job_whose_objects_cannot_be_watched_is_unknown_and_says_why() -> None:
    world = World()
    world.run()
    world.cannot_watch("403: persistentvolumeclaims is forbidden")
    world.run()
    assert world.said("Degraded")["reason"] != "NotRead"  # what was read is young enough
    world.reconciler.memories[KEY].read_at -= 60
    world.run()
    for kind in ("SyncerReady", "LearnersAvailable", "Progressing", "Degraded"):
        said = world.said(kind)
        assert (said["status"], said["reason"]) == ("Unknown", "NotRead")
        assert "persistentvolumeclaims is forbidden" in said["message"]


def test_a_new_job_whose_objects_cannot_be_watched_has_a_status() -> None:
    world = World()
    world.cannot_watch("403: forbidden")
    world.run()
    assert world.condition("Progressing") == "Unknown"


def test_pods_of_a_former_job_of_the_same_name_are_not_this_job_s() -> None:
    world = World()
    world.run()
    world.server.add_pod("tiny-syncer-0-x", "shard", "n1", **{Label.SHARD: "0"})
    pod = world.server.children[path("Pod", "demo", "tiny-syncer-0-x")]
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 64}}}]
    assert world.server.job is not None
    world.server.job["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    for of_former in (
        {"labels": {**pod["metadata"]["labels"], Label.JOB_UID: "former"}},
        {"creationTimestamp": "2026-01-01T00:00:00Z"},  # of an earlier version: no such label
    ):
        whole = dict(pod["metadata"])
        pod["metadata"] |= of_former
        world.run()
        assert world.reconciler.memories[KEY].addresses == {0: ""}
        assert world.condition("Failed") == "False"
        pod["metadata"] = whole
    made = world.server.children[path("Deployment", "demo", "tiny-syncer-0")]["spec"]["template"]
    pod["metadata"]["annotations"] = made["metadata"]["annotations"]
    pod["metadata"]["creationTimestamp"] = "2026-01-03T00:00:00Z"
    world.run()
    assert world.condition("Failed") == "True"


def test_a_pass_that_began_for_a_former_job_writes_no_status_of_the_next_one() -> None:
    world = World()
    whole = world.server.apply

    async def remade(child: Mapping[str, Any]) -> Any:
        assert world.server.job is not None
        world.server.job["metadata"]["uid"] = "next"
        return await whole(child)

    world.server.apply = remade  # type: ignore[method-assign]
    world.run()
    assert world.server.job is not None
    assert "status" not in world.server.job


def test_a_watch_that_breaks_for_a_moment_after_a_quiet_time_changes_no_condition() -> None:
    world = World()
    world.run()
    world.reconciler.memories[KEY].read_at -= 20.0
    world.run()
    world.cannot_watch("reset")
    world.run()
    assert world.said("Degraded")["reason"] != "NotRead"


def test_while_nodes_cannot_be_watched_no_pod_is_replaced() -> None:
    world = lost_learner()
    world.nodes.sights[NODES].fails("403: nodes is forbidden", 0.0)
    world.run()
    assert not [each for each in world.run() if each.startswith(("owner", "delete"))]
    world.nodes.sights[NODES].works(1.0)
    world.run()
    assert "delete tiny-us-east-0 at once" in world.run()


def test_answers_from_before_the_last_effects_are_not_judged() -> None:
    world = lost_learner()
    memory = world.reconciler.memories[KEY]
    acted = memory.acted_at
    world.shards.asked = False
    assert world.run() == []
    assert world.again == reconcile.UNASKED_SECONDS
    assert memory.acted_at == acted
    world.shards.asked = True
    assert world.run() != []
    assert memory.acted_at > acted


def test_a_pass_that_only_writes_a_status_leaves_the_answers_young() -> None:
    world = lost_learner()
    for _ in range(4):
        world.run()
    acted = world.reconciler.memories[KEY].acted_at
    reply = world.shards.replies[0]
    assert reply is not None
    reply.state = pb.SHARD_RECOVERING
    assert "status" in world.run()
    assert world.reconciler.memories[KEY].acted_at == acted


def test_the_shards_of_a_job_that_is_gone_or_run_elsewhere_are_not_asked() -> None:
    world = lost_learner()
    world.run()
    assert KEY in world.shards.followed
    assert world.server.job is not None
    world.server.job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    world.run()
    assert KEY not in world.shards.followed
    del world.server.job["spec"]["managedBy"]
    world.run()
    assert KEY in world.shards.followed
    world.server.job = None
    world.run()
    assert KEY not in world.shards.followed


def test_a_pod_that_a_statefulset_cannot_make_is_said_with_the_controllers_words() -> None:
    world = lost_learner()
    made = world.server.children[path("StatefulSet", "demo", "tiny-us-east")]
    made["status"] = {"observedGeneration": 1, "replicas": 1}
    uid = made["metadata"]["uid"]
    said = FailedCreate(
        uid=uid, namespace="demo", event="e", message="exceeded quota", at="2026-01-02T00:00:00Z"
    )
    world.server.cache.failed("ADDED", said)
    world.run()
    assert (
        "StatefulSet tiny-us-east cannot make a pod: exceeded quota"
        in (world.said("Degraded")["message"])
    )
    pod = world.server.children[path("Pod", "demo", "tiny-us-east-0")]
    pod["metadata"]["creationTimestamp"] = "2026-01-03T00:00:00Z"  # it could make one since
    memory = world.reconciler.memories[KEY]
    memory.written_at.clear()
    world.run()
    assert "exceeded quota" not in world.said("Degraded")["message"]


def test_a_delete_that_is_refused_is_said_and_stops_no_other() -> None:
    world = lost_learner()
    world.run()

    async def refuse(where: str, uid: str, *, at_once: bool = False) -> bool:
        raise ApiError(403, "denied by policy keep")

    whole = world.server.delete
    world.server.delete = refuse  # type: ignore[method-assign]
    world.run()
    world.run()
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "Pod tiny-us-east-0 is not deleted: denied by policy keep" in accepted["message"]
    world.server.delete = whole  # type: ignore[method-assign]
    memory = world.reconciler.memories[KEY]
    memory.deleted_at.clear()  # a minute later
    assert "delete tiny-us-east-0 at once" in world.run()
    world.run()
    assert world.condition("Accepted") == "True"


def test_a_quiet_training_job_is_written_at_most_seven_times_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two minutes of passes, one a second, while the step moves and the message of a slot too."""
    world = World()
    for _ in range(3):
        world.run()
    now = time.monotonic()
    clock = [now]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    world.server.add_pod("tiny-syncer-0-x", "shard", "n2", **{Label.SHARD: "0"})
    slots = [
        pb.SlotStatus(slot=slot, state=pb.SLOT_TRAINING, uid=f"uid-tiny-{slot}", loss=2.0)
        for slot in ("us-east-0", "us-east-1", "eu-west-0")
    ]
    reply = pb.StatusReply(run="r", state=pb.SHARD_SERVING, steps=600, slots=slots)
    world.shards.replies = [reply]
    writes = []
    for second in range(180):
        clock[0] = now + second
        reply.tick = second
        reply.ticks_per_second = 1.0 + second % 7 / 10
        wrote = world.run()
        writes += wrote if second >= 60 else []  # the first minute is the start
    assert len(writes) <= 14
    assert set(writes) == {"status"}
    assert world.server.job is not None
    assert world.server.job["status"]["progress"]["step"] >= 165


def test_an_edit_that_only_the_answer_to_the_status_shows_brings_a_pass() -> None:
    world = World(("suspend", True))
    world.run()
    world.run()
    assert world.again is None or world.again > AGAIN_SECONDS
    server, write = world.server, world.server.apply_status
    assert server.job is not None
    server.job["status"] = {}

    async def edited(namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        await write(namespace, name, uid, status)
        assert server.job is not None
        server.job["spec"]["suspend"] = False
        world._count_edits()
        raw = copy.deepcopy(server.job)
        raw["metadata"]["resourceVersion"] = str(server.version + 1)
        server.cache.written(raw)

    server.apply_status = edited  # type: ignore[method-assign]
    assert world.run()[-1] == "status"
    assert world.again == AGAIN_SECONDS


def test_a_job_that_the_api_server_does_not_have_asks_for_a_list() -> None:
    world, asked = World(), []
    world.reconciler.writer.missing = lambda: asked.append(1)
    world.server.show()
    world.server.job = None
    asyncio.run(world._pass())
    assert asked
