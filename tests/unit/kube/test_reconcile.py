"""One pass: what is written when, and in which order, against an API server in memory."""

import asyncio
import copy
import time
from collections.abc import Mapping
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.reasons import TYPES
from atoll_operator.kube import reconcile
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Sight
from atoll_operator.kube.edges.api import (
    ApiError,
    path,
)
from atoll_operator.kube.observe import Observer
from atoll_operator.kube.plan import events, status
from atoll_operator.kube.plan.pauses import AGAIN_SECONDS
from atoll_operator.kube.plan.planner import plan
from atoll_operator.kube.report import StatusWriter
from atoll_protos.names import Label
from unit.kube.world import KEY, World, lost_learner

pytestmark = pytest.mark.usefixtures("still")


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


def test_a_pass_counts_its_job_by_the_state_that_its_status_has() -> None:
    world = World()

    def jobs(state: str) -> float | None:
        registry = world.reconciler.metrics.registry
        return registry.get_sample_value(
            "atoll_operator_jobs", {"job_namespace": "demo", "state": state}
        )

    world.run()
    world.run()  # which writes no status
    assert (jobs("Starting"), jobs("Suspended")) == (1, 0)
    world.server.job = None
    world.run()
    assert jobs("Starting") == 0


def test_a_job_that_is_gone_is_forgotten() -> None:
    world = World()
    world.run()
    world.server.job = None
    assert world.run() == []
    assert world.again is None
    assert not world.reconciler.memories


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
    world.reconciler.writer.missing = lambda _: asked.append(1)
    world.server.show()
    world.server.job = None
    asyncio.run(world._pass())
    assert asked


def test_while_requests_are_scarce_progress_waits_and_conditions_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lost_learner()
    for _ in range(4):  # its replacement is made, and told
        world.run()
    reply = world.shards.replies[0]
    assert reply is not None
    world.reconciler.writer.busy = lambda: True
    monkeypatch.setattr(status, "WRITE_SECONDS", 0.0)
    reply.tick += 10
    assert "status" not in world.run()
    reply.state = pb.SHARD_RECOVERING
    assert "status" in world.run()
    reply.tick += 10
    world.reconciler.writer.busy = lambda: False
    assert "status" in world.run()


@pytest.mark.parametrize("gone", [True, False])
def test_what_a_job_that_is_gone_or_replaced_still_owed_is_forgotten(gone: bool) -> None:
    world = World()
    world.run()
    recorder, job = world.reconciler.writer.recorder, world.server.job
    assert job is not None
    lost = events.of_replacement(job, "tiny-us-east-0", "its node is lost", "10:00")
    for _ in range(2):  # the second waits
        asyncio.run(recorder.tell(lost))
    assert recorder.due_seconds("job-uid")
    job["metadata"]["uid"] = "the-next-job-of-that-name"
    world.server.job = None if gone else job
    world.run()
    assert recorder.due_seconds("job-uid") is None
    assert "job-uid" not in recorder.told
