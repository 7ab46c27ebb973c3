"""When the next pass comes: soon while time alone may change something, late for a steady job."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.names import EVALUATOR_ROLE
from atoll_operator.kube.objects import seconds_of
from atoll_operator.kube.observation import Observation, Pod, Remembered
from atoll_operator.kube.plan.nodes import Tally, nears_storm
from atoll_operator.kube.plan.pauses import (
    AGAIN_SECONDS,
    POLL_SECONDS,
    STEADY_SECONDS,
)
from atoll_operator.kube.plan.status import BUSY_WRITES, WRITE_SECONDS
from unit.kube.cluster_values import job, learner, node, reply, shard
from unit.kube.planner_side import CHANGES, NOW, planned, seen

SLOTS = ("us-east-0", "us-east-1", "eu-west-0")
STARTED = "2027-01-15T07:58:20Z"
NODES = {"us-east-0": "n1", "us-east-1": "n2", "eu-west-0": "n3"}


def registrar(**slots: str) -> pb.StatusReply:
    shown = {name.replace("-", "_"): "Training" for name in SLOTS}
    return reply(**(shown | slots))


def memory(answer: pb.StatusReply | None = None, **more: Any) -> Remembered:
    fields: dict[str, Any] = {"registrar_address": "ip:7700", "unwritten_seconds": 60.0} | more
    return Remembered(replies=(answer or registrar(),), **fields)


def pods() -> tuple[Pod, ...]:
    evaluator = Pod(
        name="tiny-evaluator-x", uid="uid-e", role=EVALUATOR_ROLE, node="n3", phase="Running",
        ready=True,
    )  # fmt: skip
    return (*(learner(each, NODES[each]) for each in SLOTS), shard(0, "n3"), evaluator)


def steady(**more: Any) -> Observation:
    """A job that trains as it should, and whose status says so already."""
    bare = seen()
    of_role = {"learner": "tiny-us-east", "shard": "tiny-syncer-0", "evaluator": "tiny-evaluator"}
    own = [
        replace(
            each,
            template=bare.workloads[
                f"tiny-{each.region}" if each.region else of_role[each.role]
            ].template,
        )
        for each in pods()
    ]
    found = replace(bare, pods=tuple(own), remembered=memory())
    said = planned(found).status
    assert said is not None
    found = replace(found, raw={**found.raw, "status": said.status})
    return replace(found, **more)


def with_pod(number: int, **more: Any) -> dict[str, Any]:
    own = list(steady().pods)
    own[number] = replace(own[number], **more)
    return {"pods": tuple(own)}


def with_workload(name: str, **more: Any) -> dict[str, Any]:
    live = dict(steady().workloads)
    return {"workloads": live | {name: replace(live[name], **more)}}


def with_slots(**slots: str) -> dict[str, Any]:
    return {"remembered": memory(registrar(**slots))}


def with_nodes(**seconds: float) -> dict[str, Any]:
    nodes = {f"n{number}": node(f"n{number}") for number in range(1, 6)}
    return {"nodes": nodes | {name: node(name, silent=each) for name, each in seconds.items()}}


def restoring() -> dict[str, Any]:
    answer = registrar()
    answer.state = pb.SHARD_RECOVERING
    return {"remembered": memory(answer)}


def test_a_steady_job_gets_its_next_pass_after_seconds() -> None:
    found = planned(steady())
    assert (found.status, found.apply, found.delete) == (None, (), ())
    assert found.pause_seconds == STEADY_SECONDS


def test_progress_is_written_when_it_is_due_and_not_a_pass_later() -> None:
    after = planned(steady(remembered=memory(unwritten_seconds=WRITE_SECONDS - 3.0)))
    assert after.pause_seconds == 3.0
    answer = registrar()
    answer.tick = 500
    written = planned(steady(remembered=memory(answer)))
    assert written.status is not None
    assert written.pause_seconds == STEADY_SECONDS
    nearly = planned(steady(remembered=memory(unwritten_seconds=WRITE_SECONDS - 0.1)))
    assert nearly.pause_seconds == POLL_SECONDS


UNSTEADY: dict[str, Callable[[], dict[str, Any]]] = {
    "a shard does not answer": lambda: {
        "remembered": replace(memory(), replies=(None,), silent_seconds={0: 1.0})
    },
    "a shard does not serve": restoring,
    "a learner has lost its session": lambda: with_slots(eu_west_0="Lost"),
    "a learner is stalled": lambda: with_slots(eu_west_0="Stalled"),
    "another pod than the learner's trains": lambda: with_pod(2, uid="new"),
    "a pod is not ready": lambda: with_pod(3, ready=False),
    "a pod is being deleted": lambda: with_pod(0, terminating=True),
    "a pod has an old template": lambda: with_pod(0, template="old"),
    "a pod is missing": lambda: {"pods": steady().pods[:-1]},
    "a controller has not observed a change": lambda: with_workload("tiny-us-east", observed=False),
    "a controller cannot make a pod": lambda: with_workload("tiny-us-east", trouble="quota"),
    "a node is overdue": lambda: with_nodes(n1=12.0),
    "a node is lost": lambda: with_nodes(n1=30.0),
    "a node is gone": lambda: {"nodes": {"n1": node("n1"), "n2": node("n2")}},
    "a storm is near": lambda: with_nodes(n4=12.0, n5=12.0),
    "a storm has just been": lambda: {"remembered": memory(storm_seconds={"us-east": 3.0})},
    "nodes cannot be seen": lambda: {"nodes": None},
    "the manifest is wrong": lambda: {"reason": "Invalid", "error": "spec.steps: no"},
    "a pod could not be deleted": lambda: {"remembered": memory(undeleted=("Pod x: no",))},
    "the status changes all the time": lambda: {"remembered": memory(writes_a_minute=BUSY_WRITES)},
    "a child is missing": lambda: {"children": steady().children[1:]},
}


@pytest.mark.parametrize("what", UNSTEADY)
def test_a_job_is_looked_at_each_second_while(what: str) -> None:
    pause = planned(steady(**UNSTEADY[what]())).pause_seconds
    assert pause is not None
    assert AGAIN_SECONDS <= pause <= POLL_SECONDS


def test_a_deadline_is_seen_when_it_passes() -> None:
    assert seconds_of(STARTED) == NOW - 100.0
    found = steady(job=job(*CHANGES, "spec.activeDeadlineSeconds=103"))
    status = {**found.raw["status"], "startTime": STARTED}
    pause = planned(replace(found, raw={**found.raw, "status": status})).pause_seconds
    assert pause == pytest.approx(3.0)


def test_a_few_lost_nodes_of_many_are_no_storm_in_the_making() -> None:
    failure = job().spec.failure
    assert not nears_storm(Tally(nodes=5000, lost=20), failure)
    assert nears_storm(Tally(nodes=5000, lost=5000 * failure.storm_percent // 100), failure)
    assert not nears_storm(Tally(nodes=4, lost=1), failure)
    assert nears_storm(Tally(nodes=4, lost=2), failure)
