"""A job over several clusters as tests of the plan see it in one of them."""

import copy
from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.kube.observed.observation import Observation, Remembered
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.planner import plan
from unit.kube.cluster_values import SETTINGS, children, job, reply
from unit.kube.planner_side import CHANGES, NOW, raw, seen

WAY = "spec.syncer.endpoints=['lb:7700']"
NO_EVALUATOR = "spec.evaluator=null"
EU_WEST = replace(SETTINGS, regions=("eu-west",))  # us-east, with the syncer, is elsewhere
US_EAST = replace(SETTINGS, regions=("us-east",))


def stored(**syncer: Any) -> dict[str, Any]:
    """The job's object with one shard."""
    one = raw()
    return one | {"spec": one["spec"] | {"syncer": {"shards": 1, **syncer}}}


def live_children(*changes: str, settings: Any = EU_WEST) -> list[dict[str, Any]]:
    found = copy.deepcopy(children(*CHANGES, WAY, *changes, settings=settings).objects())
    for each in found:
        each["metadata"] |= {"uid": f"uid-{each['metadata']['name']}", "generation": 1}
        each["status"] = {"observedGeneration": 1}
    return found


def there(*changes: str, settings: Any = EU_WEST, **more: Any) -> Observation:
    """The job in a cluster that serves only some of its regions."""
    live = live_children(*changes, settings=settings)
    return seen(WAY, *changes, **({"children": live} | more))


def decided(found: Observation, settings: Any = EU_WEST) -> Plan:
    return plan(found, settings, NOW)


def again(found: Observation, plan_: Plan, **more: Any) -> Observation:
    """The next observation: the status is written, what is applied is there."""
    assert plan_.status is not None
    status = copy.deepcopy(plan_.status.status)
    return replace(found, raw=found.raw | {"status": status}, **more)


def heard(registrar: pb.StatusReply | None = None, silent: float = 0.0, **more: Any) -> Remembered:
    return Remembered(
        replies=(registrar,), registrar_address="lb:7700", silent_seconds={0: silent}, **more
    )


def serving(*changes: str, **slots: str) -> pb.StatusReply:
    """The answer of the syncer's cluster, whose manifest has these changes."""
    found = reply(**slots)
    found.intent = pb.INTENT_RUN
    found.must_equal = run_file(job(*CHANGES, *changes)).must_equal
    return found


def message(found: Plan, kind: str) -> str:
    assert found.status is not None
    (one,) = (each for each in found.status.status["conditions"] if each["type"] == kind)
    return str(one["message"])
