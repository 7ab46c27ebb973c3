"""The budgets of a job: how many of its pods a drain may evict, and an edit restart, at a time.

The learners that the quorum can spare are divided among the regions in turn, and each cluster has
the shares of those that it serves: so clusters that drain or roll at the same time, without a word
of each other, stay above the quorum together.
"""

from collections.abc import Callable, Mapping

from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import (
    LEARNER_ROLE,
    SHARD_ROLE,
    learners_budget_name,
    shards_budget_name,
)
from atoll_operator.kube.observed.observation import Object
from atoll_operator.kube.plan.owner import JobOwner


def share(job: Job, serves: Callable[[str], bool]) -> int:
    """How many of the learners that the quorum can spare are those of the regions served here."""
    spec = job.spec
    turns = sorted(
        (ordinal, place, region.name)
        for place, region in enumerate(spec.regions)
        for ordinal in range(region.learners)
    )
    return sum(serves(region) for _, _, region in turns[: spec.learners - spec.quorum])


def of_learners(owner: JobOwner, job: Job, serves: Callable[[str], bool]) -> Object:
    """A drain may take this cluster's share of what the quorum can spare, and at least one.

    A budget that forbids every eviction blocks drains for ever. A learner that loses one host is
    lost as a whole, so its other hosts may go with it: a drain of a rack whose hosts find no other
    place would otherwise wait for ever for the first. So all hosts of the spare learners may go at
    a time, and in the worst case, which no budget tells apart, one host of so many learners.
    """
    spec = job.spec
    spare = max(1, share(job, serves)) * spec.learner.hosts
    match = owner.selector(LEARNER_ROLE)
    return _budget(owner, learners_budget_name(job.name), match, unavailable=spare)


def of_shards(owner: JobOwner, job: Job) -> Object:
    """One shard at a time. With a standby, the pods that wait are not Ready, and never will be."""
    match, syncer = owner.selector(SHARD_ROLE), job.spec.syncer
    waiting = syncer.shards if syncer.standby else 0
    return _budget(owner, shards_budget_name(job.name), match, unavailable=1 + waiting)


def _budget(owner: JobOwner, name: str, match: Mapping[str, str], *, unavailable: int) -> Object:
    spec = {
        "maxUnavailable": unavailable,
        # A pod that crashes protects nothing: a drain may evict it, whatever the budget says.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": dict(match)},
    }
    labels = owner.labels("budget")
    return owner.child("PodDisruptionBudget", "policy/v1", name, labels, spec=spec)
