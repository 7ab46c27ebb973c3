"""Counts of a status by region: learners that are ready, and replacements so far."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import LEARNER_ROLE, learner_sets
from atoll_operator.kube.observed.observation import Pod, Workload


def ready_by_region(
    pods: Iterable[Pod], regions: Sequence[str], hosts_needed: int = 1
) -> dict[str, int]:
    """Learners with so many Ready hosts, host 0 among them, by region."""
    hosts: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for pod in pods:
        if pod.role == LEARNER_ROLE and pod.ready and not pod.terminating:
            hosts[pod.region, pod.ordinal].add(pod.host)
    found = dict.fromkeys(regions, 0)
    for (region, _), ready in hosts.items():
        if region in found:
            found[region] += 0 in ready and len(ready) >= hosts_needed
    return found


def replaced_by_region(job: Job, workloads: Mapping[str, Workload]) -> dict[str, int]:
    found = {region.name: 0 for region in job.spec.regions}
    for name, region in learner_sets(job).items():
        live = workloads.get(name)
        found[region] += sum(each.count for each in live.replaced.values()) if live else 0
    return found
