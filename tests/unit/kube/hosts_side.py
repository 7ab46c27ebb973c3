"""Learners of two hosts each, as the operator observes them."""

from dataclasses import replace
from typing import Any

from atoll_operator.kube.observation import (
    Observation,
    Pod,
    Workload,
    by_name,
)
from unit.kube.cluster_values import hosts, learner, shard
from unit.kube.planner_side import seen

PAIR = hosts("us-east-0", "n1", "n2")

HEAD, FOLLOWER = PAIR

OTHER = learner("us-east-1", "n3")


def of_hosts(name: str = "us-east-0", **more: Any) -> Workload:
    """The StatefulSet of one learner."""
    fields: dict[str, Any] = {"replicas": 2, "observed": True, "applied": "", "template": "new"}
    return Workload(name=f"tiny-{name}", kind="StatefulSet", **(fields | more))


def observed(*pods: Pod, sets: tuple[Workload, ...] = (), **more: Any) -> Observation:
    """A job with two learners of two hosts in us-east."""
    found = seen("spec.steps=600", pods=(*pods, shard(0, "n3")), **more)
    own = by_name(sets or (of_hosts("us-east-0"), of_hosts("us-east-1")))
    return replace(found, workloads={**found.workloads, **own})
