"""NetworkPolicies of a job's own, which a person applies; pure.

The chart's policies are written before there are jobs, so they tell hosts of learners from all
others but not one learner's from another's. A selector cannot ask for equal labels: it takes a
policy for each learner. The operator makes none, because the right to write them is the right to
open a namespace; a person who may brings them.
"""

from typing import Any

from atoll_operator.api.spec import Job
from atoll_operator.kube.names import HEALTH_PORT, LEARNER_ROLE, hosts_set
from atoll_protos.names import Label


def of_hosts(job: Job) -> list[dict[str, Any]]:
    """For each learner of several hosts, what lets them reach each other and nobody else them."""
    if job.spec.learner.hosts == 1:
        return []
    return [_of_learner(job.name, slot) for slot in job.spec.slots]


def _of_learner(job: str, slot: str) -> dict[str, Any]:
    own = {Label.JOB: job, Label.ROLE: LEARNER_ROLE, Label.SLOT: slot}
    hosts = {"podSelector": {"matchLabels": own}}
    probes = {"ports": [{"port": HEALTH_PORT, "protocol": "TCP"}]}  # of the kubelet
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": hosts_set(job, slot), "labels": {Label.JOB: job}},
        "spec": {
            "podSelector": {"matchLabels": own},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [hosts]}, probes],
            "egress": [{"to": [hosts]}],
        },
    }
