"""Which collections are followed, and which jobs an event asks a pass for."""

from typing import Any

from atoll_operator.kube.edges.api import KINDS, LEASES, NODES
from atoll_operator.kube.edges.watches import (
    LEASE_SILENT_SECONDS_MAX,
    LOOK_SECONDS,
    SILENT_SECONDS_MAX,
    UNSEEN_SECONDS_MAX,
    Nodes,
    Source,
    sources,
)
from atoll_operator.kube.observed.cache import Cache, EventFailure, Sight
from atoll_protos.names import Label

PODS, EVENTS = "/api/v1/pods", "/api/v1/events"


class World:
    def __init__(self, *namespaces: str) -> None:
        self.cache, self.nodes = Cache(), Nodes(region_label="region")
        self.fed: list[tuple[str, str]] = []
        found = sources(self.cache, self.nodes, namespaces, self.fed.append)
        self.sources: dict[str, Source] = {each.path: each for each in found}

    def event(self, path: str, kind: str, raw: dict[str, Any]) -> list[tuple[str, str]]:
        """One event; the jobs that it fed."""
        self.fed.clear()
        self.sources[path].take(kind, raw)
        return list(self.fed)


def pod(version: int, node: str = "n1", job: str = "tiny") -> dict[str, Any]:
    metadata = {
        "name": f"{job}-0", "namespace": "demo", "uid": job, "resourceVersion": str(version),
        "labels": {Label.JOB: job},
    }  # fmt: skip
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}}


def node(ready: str = "True", name: str = "n1", **more: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, **more}]
    return {
        "metadata": {"name": name, "resourceVersion": "1"}, "status": {"conditions": conditions},
    }  # fmt: skip


def lease(renewed: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {"renewTime": renewed}}


def test_all_kinds_of_children_are_followed_in_the_cluster_or_in_some_namespaces_alone() -> None:
    sources = World().sources
    assert len(sources) == len(KINDS) + 3
    for path, source in sources.items():
        if path not in (NODES, LEASES, EVENTS):
            assert list(source.query) == [("labelSelector", Label.JOB)]
    some = World("a", "b").sources.keys()
    assert {"/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods", NODES} <= some
    assert PODS not in some


def test_an_event_of_a_child_asks_for_a_pass_of_its_job_unless_it_is_no_news() -> None:
    world = World()
    assert world.event(PODS, "ADDED", pod(1)) == [("demo", "tiny")]
    world.cache.written(pod(5))
    assert world.event(PODS, "MODIFIED", pod(5)) == []  # what a pass has written itself
    assert world.event(PODS, "MODIFIED", pod(6)) == [("demo", "tiny")]
    assert world.event(PODS, "DELETED", pod(7)) == [("demo", "tiny")]


def test_a_list_asks_for_passes_of_all_jobs_that_it_shows_or_no_longer_shows() -> None:
    world = World()
    world.event(PODS, "ADDED", pod(1, job="old"))
    world.fed.clear()
    world.sources[PODS].take_list([pod(2, job="new")], 3)
    assert sorted(world.fed) == [("demo", "new"), ("demo", "old")]


def event(of: str, reason: str, message: str, name: str = "e1") -> dict[str, Any]:
    """An Event about the object that is called as its job."""
    return {
        "metadata": {"name": name, "namespace": "demo", "resourceVersion": "2"},
        "involvedObject": {"uid": "tiny", "kind": of}, "reason": reason, "message": message,
        "lastTimestamp": "now",
    }  # fmt: skip


def test_an_event_of_a_controller_that_cannot_make_a_pod_is_kept_until_it_is_gone() -> None:
    world = World()
    world.event("/apis/apps/v1/statefulsets", "ADDED", {**pod(1), "kind": "StatefulSet"})
    said = event("StatefulSet", "FailedCreate", "exceeded quota")
    assert world.event(EVENTS, "ADDED", said) == [("demo", "tiny")]
    kept = EventFailure(
        uid="tiny", namespace="demo", event="e1", message="exceeded quota", at="now"
    )
    assert world.cache.failures == {"tiny": kept}
    world.event(EVENTS, "DELETED", event("StatefulSet", "FailedCreate", "", "e0"))
    assert world.cache.failures == {"tiny": kept}
    world.event(EVENTS, "DELETED", said)
    assert not world.cache.failures
    for items, left in (([kept], {"tiny": kept}), ([], {})):
        world.sources[EVENTS].take_list(items, 3)
        assert world.cache.failures == left
    assert world.fed == [("demo", "tiny"), ("demo", "tiny")]
    elsewhere = {**said, "involvedObject": {"uid": "somebody's", "kind": "StatefulSet"}}
    assert world.event(EVENTS, "ADDED", elsewhere) == []


def test_what_a_kubelet_says_of_a_pod_that_it_cannot_start_is_kept_and_nothing_else() -> None:
    world = World()
    world.event(PODS, "ADDED", pod(1))
    assert world.event(EVENTS, "ADDED", event("Pod", "NodeNotReady", "no")) == []
    world.sources[EVENTS].take_list([None], 1)
    assert not world.cache.failures
    said = event("Pod", "FailedMount", 'secret "data" not found')
    assert world.event(EVENTS, "ADDED", said) == [("demo", "tiny")]
    assert world.cache.failures["tiny"].message == 'secret "data" not found'


def test_a_node_asks_for_passes_of_the_jobs_on_it_when_what_matters_has_changed() -> None:
    world = World()
    world.event(PODS, "ADDED", pod(1))
    world.event(PODS, "ADDED", pod(2, node="n2", job="other"))
    assert world.event(NODES, "ADDED", node()) == [("demo", "tiny")]
    heartbeat = node(lastHeartbeatTime="2026-01-01T00:00:00Z")
    assert world.event(NODES, "MODIFIED", heartbeat) == []
    assert world.event(NODES, "MODIFIED", node("False")) == [("demo", "tiny")]
    assert world.event(NODES, "DELETED", node("False")) == [("demo", "tiny")]
    assert world.event(NODES, "ADDED", node(name="n9")) == []


def test_a_list_of_nodes_asks_for_the_jobs_on_those_that_differ() -> None:
    world = World()
    world.event(PODS, "ADDED", pod(1))
    world.event(NODES, "ADDED", node())
    world.fed.clear()
    world.sources[NODES].take_list([node(), node(name="n2")], 2)
    assert world.fed == []
    world.sources[NODES].take_list([node(name="n2")], 3)
    assert world.fed == [("demo", "tiny")]
    assert set(world.nodes.nodes) == {"n2"}


def test_a_lease_asks_for_no_pass_and_settles_after_each_gap() -> None:
    world = World()
    world.event(PODS, "ADDED", pod(1))
    assert world.event(LEASES, "ADDED", lease("10:00")) == []
    leases = world.nodes.leases
    assert leases.leases["n1"].renewed == "10:00"
    leases.settled_at = 0.0
    world.sources[LEASES].resumed()
    assert leases.settled_at > 0.0
    leases.settled_at = 0.0
    world.sources[LEASES].take_list([lease("10:01")], 2)
    assert leases.settled_at > 0.0
    assert leases.leases["n1"].renewed == "10:01"


def test_the_watch_of_leases_may_be_silent_for_long_only_where_there_are_no_nodes() -> None:
    world = World()
    source = world.sources[LEASES]
    assert source.silent_seconds_max() == SILENT_SECONDS_MAX
    world.event(LEASES, "ADDED", lease("10:00"))
    assert source.silent_seconds_max() == LEASE_SILENT_SECONDS_MAX


def test_nodes_are_judged_once_both_collections_are_listed_and_not_long_broken() -> None:
    nodes = Nodes(region_label="region")
    assert not nodes.usable(0.0)
    nodes.sights = {path: Sight(tried_at=0.0, listed=True) for path in (NODES, LEASES)}
    assert nodes.usable(0.0)
    nodes.sights[LEASES].fails("503", 10.0)
    assert nodes.usable(11.0)
    assert not nodes.usable(10.0 + UNSEEN_SECONDS_MAX)
    nodes.sights[LEASES].works(30.0)
    assert nodes.usable(31.0)


def test_all_passes_of_a_moment_share_one_look_at_the_nodes() -> None:
    nodes = Nodes(region_label="region")
    nodes.take(NODES, "ADDED", node())
    nodes.take(LEASES, "ADDED", lease("10:00"))
    first = nodes.look(100.0)
    nodes.take(LEASES, "MODIFIED", lease("10:01"))
    assert nodes.look(100.0 + LOOK_SECONDS - 0.1) is first
    later = nodes.look(100.0 + LOOK_SECONDS)
    assert later["n1"].renewed == "10:01"
    nodes.take(NODES, "MODIFIED", node("False"))
    assert not nodes.look(100.0 + LOOK_SECONDS)["n1"].ready
