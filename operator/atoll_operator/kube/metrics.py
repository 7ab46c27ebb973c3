"""The operator's own metrics, in Prometheus' format on /metrics (docs/reference.md, Metrics).

How to read some of them:

    atoll_operator_pass_seconds                     slow: the API server or the shards are slow
    atoll_operator_pass_failures_total              grows: see "pass failed" in the log
    atoll_operator_api_writes_total{kind}           a job at rest writes nothing
    atoll_operator_jobs_held                        above 0: a person has to decide (NodeLossHeld)
    atoll_operator_leader                           the sum over all replicas is 1, or nobody leads
    atoll_operator_api_requests_total{verb,status}  429 and 5xx: the API server has too much to do
"""

import collections
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from atoll_operator.api.status.reasons import STATUSES

STATES = tuple(sorted({reason for kind, reason in STATUSES if kind == "Ready"}))
SECONDS = (1, 2, 5, 10, 15, 20, 25, 30, 45, 60, 90, 120, 300)


class Metrics:
    """All metrics in one registry of their own, so that tests can have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "atoll_operator", "registry": self.registry}
        by_role = own | {"labelnames": ["role"]}
        states = ["job_namespace", "state"]
        self.pass_seconds = Histogram("pass_seconds", "One pass over a job", **own)
        self.failures = Counter("pass_failures", "Passes that failed", **own)
        self.writes = Counter("api_writes", "Writes to the API server", ["kind"], **own)
        self.replacements = Counter("node_replacements", "Pods replaced for a lost node", **by_role)
        self.replacement_seconds = Histogram(
            "node_replacement_seconds",
            "From a node's last sign of life until the replacement trains or serves",
            buckets=SECONDS, **by_role,
        )  # fmt: skip
        self.deletion_seconds = Histogram(
            "node_loss_deletion_seconds",
            "From a node's last sign of life until its pod is deleted",
            buckets=SECONDS, **by_role,
        )  # fmt: skip
        said = "Jobs by the reason of their condition Ready, on the leader"
        self.jobs = Gauge("jobs", said, states, **own)
        self.held = Gauge("jobs_held", "Jobs whose Degraded says NodeLossHeld", **own)
        self.owners = Counter("owner_changes", "SetOwner calls made", **own)
        self.leader = Gauge("leader", "1 while this replica leads, else 0", **own)
        said = "Requests to the API server; status 0: no answer came"
        self.requests = Counter("api_requests", said, ["verb", "status"], **own)
        self.namespaces: set[str] = set()  # that have had a job

    def show_states(self, states: Iterable[tuple[str, str]]) -> None:
        """Count jobs, given as namespace and state; a namespace without jobs any more shows 0."""
        found = collections.Counter(states)
        self.namespaces.update(namespace for namespace, _ in found)
        for namespace in self.namespaces:
            for state in STATES:
                self.jobs.labels(namespace, state).set(found[namespace, state])
