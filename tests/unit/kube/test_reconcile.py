"""One pass: what is written when, and in which order, against an API server in memory."""

import asyncio
import copy
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.reasons import TYPES
from atoll_operator.kube import reconcile
from atoll_operator.kube.edges.api import ApiError, ConflictError, ObjectNotFoundError, path
from atoll_operator.kube.plan import actions, status
from atoll_operator.kube.plan.planner import AGAIN_SECONDS, plan
from atoll_operator.kube.reconcile import ClusterObserver
from atoll_protos.names import Label
from unit.kube.world import KEY, World, lost_learner

pytestmark = pytest.mark.usefixtures("still")

ELSEWHERE = "kueue.x-k8s.io/multikueue"


def settled(passes: int) -> World:
    """A job with a lost learner after so many passes."""
    world = lost_learner()
    world.runs(passes)
    return world


def test_the_first_pass_makes_children_and_conditions_and_the_second_nothing() -> None:
    world = World()
    wrote = world.run()
    assert "apply StatefulSet tiny-us-east" in wrote
    assert wrote.count("status") == 1
    assert tuple(each["type"] for each in world.job["status"]["conditions"]) == TYPES
    assert world.run() == []


@pytest.mark.parametrize(
    ("change", "wrote", "condition", "said"),
    [
        (("steps", -1), ["status"], "Accepted", "False"),
        (("suspend", True), ["status"], "Suspended", "True"),
        (("managedBy", ELSEWHERE), [], "", ""),
    ],
)
def test_a_job_that_is_wrong_suspended_or_another_managers_has_no_children(
    change: tuple[str, Any], wrote: list[str], condition: str, said: str
) -> None:
    world = World(change)
    assert [each for each in world.run() if not each.startswith("event")] == wrote
    assert not world.server.children
    assert not condition or world.condition(condition) == said


def test_a_pass_counts_its_job_by_its_state_and_forgets_one_that_is_gone() -> None:
    world = World()

    def jobs(state: str) -> float | None:
        return world.metric("atoll_operator_jobs", job_namespace="demo", state=state)

    world.runs()  # the second of which writes no status
    assert (jobs("Starting"), jobs("Suspended")) == (1, 0)
    world.server.job = None
    assert world.run() == []
    assert world.again is None
    assert not world.reconciler.memories
    assert jobs("Starting") == 0


def test_the_event_loop_goes_on_while_a_pass_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on, seen, ask = threading.Event(), [], ClusterObserver.ask

    async def asks(*values: Any) -> Any:
        found = await ask(*values)
        asyncio.get_running_loop().call_soon(went_on.set)
        return found

    def waits(*values: Any) -> Any:
        seen.append(went_on.wait(10.0))
        return plan(*values)

    monkeypatch.setattr(ClusterObserver, "ask", asks)
    monkeypatch.setattr(reconcile, "plan", waits)
    World().run()
    assert seen == [True]


def test_a_pass_that_sees_nothing_is_no_failure_and_touches_nothing() -> None:
    world = World()
    world.cannot_watch("403: pods is forbidden")
    world.run()
    assert world.condition("Progressing") == "Unknown"
    assert world.run() == []
    assert not world.server.children
    assert world.again == reconcile.UNSEEN_SECONDS
    assert world.metric("atoll_operator_pass_failures_total") == 0
    assert world.reconciler.last_pass_at is None
    world.server.cache.sights["pods"].works(1.0)
    assert "apply StatefulSet tiny-us-east" in world.run()


def test_a_pass_of_which_an_effect_fails_is_counted_and_writes_its_status() -> None:
    world = settled(1)
    world.server.raises["delete"] = ApiError(500, "no")  # in a pass that has news
    world.registrar.tick, world.registrar.state = 60, pb.SHARD_FAILED
    with pytest.raises(ApiError):
        world.run()
    assert world.metric("atoll_operator_pass_failures_total") == 1
    assert world.condition("Failed") == "True"


def test_a_job_whose_objects_cannot_be_watched_is_unknown_and_says_why() -> None:
    world = World()
    world.run()
    world.cannot_watch("403: persistentvolumeclaims is forbidden")
    world.run()
    assert world.said("Degraded")["reason"] != "NotRead"  # what was read is young enough
    world.memory.read_at -= 60
    world.run()
    for kind in ("SyncerReady", "Progressing", "Degraded"):
        said = world.said(kind)
        assert (said["status"], said["reason"]) == ("Unknown", "NotRead")
        assert "persistentvolumeclaims is forbidden" in said["message"]


def test_pods_of_a_former_job_of_the_same_name_are_not_this_job_s() -> None:
    world = World()
    world.run()
    world.server.add_pod("tiny-syncer-0-x", "shard", "n1", **{Label.SHARD: "0"})
    pod = world.live("Pod", "tiny-syncer-0-x")
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 64}}}]
    world.job["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    whole = dict(pod["metadata"])
    for uid in ("former", ""):
        pod["metadata"] = whole | {"labels": whole["labels"] | {Label.JOB_UID: uid}}
        world.run()
        assert world.memory.addresses == {0: ""}
        assert world.condition("Failed") == "False"
    template = world.live("Deployment", "tiny-syncer-0")["spec"]["template"]
    pod["metadata"] = whole | {"annotations": template["metadata"]["annotations"]}
    world.run()
    assert world.condition("Failed") == "True"


def test_a_former_jobs_pass_writes_no_status_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    whole = world.server.apply

    async def remade(child: Mapping[str, Any]) -> Any:
        world.job["metadata"]["uid"] = "next"
        return await whole(child)

    monkeypatch.setattr(world.server, "apply", remade)
    world.run()
    assert "status" not in world.job


def test_a_watch_that_breaks_for_a_moment_after_a_quiet_time_changes_no_condition() -> None:
    world = World()
    world.run()
    world.memory.read_at -= 20.0
    world.run()
    world.cannot_watch("reset")
    world.run()
    assert world.said("Degraded")["reason"] != "NotRead"


def test_a_pass_that_only_writes_a_status_leaves_the_answers_young() -> None:
    world = settled(4)
    acted = world.memory.acted_at
    world.registrar.state = pb.SHARD_RECOVERING
    assert "status" in world.run()
    assert world.memory.acted_at == acted


def test_the_shards_of_a_job_that_is_gone_or_run_elsewhere_are_not_asked() -> None:
    world = settled(1)
    for manager in (ELSEWHERE, None):
        world.job["spec"]["managedBy"] = manager
        world.run()
        assert (KEY in world.shards.followed) == (manager is None)
    world.server.job = None
    world.run()
    assert KEY not in world.shards.followed


def test_a_quiet_job_is_written_seven_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two minutes of passes, one a second, while the step moves and the message of a slot too."""
    world = World()
    world.runs(3)
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
    assert world.job["status"]["progress"]["step"] >= 165


def test_an_edit_that_a_status_write_shows_brings_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(("suspend", True))
    world.runs()
    assert world.again is None or world.again > AGAIN_SECONDS
    write = world.server.apply_status
    world.job["status"] = {}

    async def edited(*values: Any) -> None:
        await write(*values)
        world.edit(suspend=False)
        world._count_edits()
        raw = copy.deepcopy(world.job)
        raw["metadata"]["resourceVersion"] = str(world.server.version + 1)
        world.server.cache.written(raw)

    monkeypatch.setattr(world.server, "apply_status", edited)
    assert world.run()[-1] == "status"
    assert world.again == AGAIN_SECONDS


def test_while_requests_are_scarce_only_progress_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = settled(4)  # its replacement is made, and told
    monkeypatch.setattr(status, "WRITE_SECONDS", 0.0)
    for busy, state, wrote in (
        (True, pb.SHARD_SERVING, False),
        (True, pb.SHARD_RECOVERING, True),
        (False, pb.SHARD_RECOVERING, True),
    ):
        world.reconciler.writer.busy = lambda _: busy  # noqa: B023 - called in this round
        world.registrar.tick += 10
        world.registrar.state = state
        assert ("status" in world.run()) == wrote


SUSPENDED, REJECTED = ("suspend", True), ("steps", -1)


@pytest.mark.parametrize("change", [SUSPENDED, REJECTED])
@pytest.mark.parametrize("error", [ConflictError(409, "try again"), ObjectNotFoundError(404, "no")])
def test_a_status_that_is_not_taken_is_written_soon_although_the_job_is_at_rest(
    change: tuple[str, Any], error: ApiError
) -> None:
    world = World(change)
    world.server.raises["apply_status"] = error
    assert world.run() == []
    assert world.again == reconcile.UNDONE_SECONDS
    world.server.raises.clear()
    assert world.run()[0] == "status"


@pytest.mark.parametrize("change", [SUSPENDED, REJECTED])
def test_a_message_that_waits_for_requests_is_written_soon_although_the_job_is_at_rest(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, Any]
) -> None:
    world = World(change)
    world.run()
    world.reconciler.writer.recorder.forget("job-uid")
    monkeypatch.setattr(status, "WRITE_SECONDS", 0.0)
    right = world.said("Accepted")["message"]
    for busy, wrote, again in ((True, [], reconcile.UNDONE_SECONDS), (False, ["status"], None)):
        world.said("Accepted")["message"] = "as it was"
        world.reconciler.writer.busy = lambda _: busy  # noqa: B023 - called in this round
        assert world.run() == wrote
        assert again is None or world.again == again
    assert world.said("Accepted")["message"] == right


def test_a_finished_job_that_cannot_be_deleted_says_so_soon() -> None:
    world = settled(4)
    world.registrar.state, world.registrar.tick = pb.SHARD_COMPLETE, 600
    world.edit(ttlSecondsAfterFinished=0)
    world.run()
    del world.server.children[path("Pod", "demo", "tiny-syncer-0-x")]
    world.run()
    world.memory.written_at.clear()  # it has been over for a while, and all is told
    world.reconciler.writer.recorder.forget("job-uid")
    world.server.raises["delete"] = ApiError(403, "no right")
    assert world.run() == []
    assert world.again == reconcile.UNDONE_SECONDS
    assert "status" in world.run()
    assert world.said("Accepted")["message"].endswith("tiny is not deleted: no right")
    world.memory.written_at.clear()
    world.server.raises.clear()
    assert world.run() == ["delete tiny"]


@pytest.mark.parametrize("gone", [True, False])
def test_what_a_job_that_is_gone_or_replaced_still_owed_is_forgotten(gone: bool) -> None:
    world = World()
    world.run()
    recorder, job = world.reconciler.writer.recorder, world.job
    lost = actions.warning(job, actions.NODE_LOST, "tiny-us-east-0", "its node is lost", "10:00")
    for _ in range(2):  # the second waits
        asyncio.run(recorder.tell(lost))
    assert recorder.due_seconds("job-uid")
    job["metadata"]["uid"] = "the-next-job-of-that-name"
    world.server.job = None if gone else job
    world.run()
    assert recorder.due_seconds("job-uid") is None
    assert "job-uid" not in recorder.jobs
