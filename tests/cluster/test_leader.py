"""Two replicas of the operator: one leads at a time, and jobs see nothing of a change of leader."""

from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import LabCommand
from cluster.installed import DEPLOYMENT, NAMESPACE, REPLICAS, Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job

LEASE_SECONDS = 15
ACTS_SECONDS_MAX = 300.0
REGIONS = {"us-east": 1, "eu-west": 1}

Train = Callable[..., Job]


@pytest.fixture
def replicas(atoll: Installed, lab: LabCommand) -> Iterator[Installed]:
    """Two that have never been started again, so that the kubelet does not let them wait."""
    del lab
    atoll.fresh()
    yield atoll
    until("both are ready", lambda: len(atoll.ready()) == REPLICAS, ACTS_SECONDS_MAX)


@pytest.fixture(scope="module")
def shared(train_for_all: Train) -> Job:
    """A job that trains while leaders come and go."""
    return train_for_all("led", REGIONS)


@pytest.fixture
def job(shared: Job) -> Job:
    """The same, with the learners that it had at first."""
    shared.patch(regions=[{"name": name, "learners": 1} for name in REGIONS])
    until("it has these learners", lambda: len(shared.pods("learner")) == len(REGIONS))
    shared.trains(len(REGIONS))
    return shared


def _acts(job: Job) -> None:
    """The replica that leads makes what the job asks for: another learner, and takes it back."""
    job.patch(regions=[{"name": "us-east", "learners": 1}, {"name": "eu-west", "learners": 2}])
    until("a new learner", lambda: len(job.pods("learner")) == len(REGIONS) + 1, ACTS_SECONDS_MAX)
    job.patch(regions=[{"name": name, "learners": 1} for name in REGIONS])
    until("it has left", lambda: len(job.pods("learner")) == len(REGIONS), ACTS_SECONDS_MAX)


def _lives(job: Job) -> dict[str, tuple[str, int]]:
    """Every pod's UID, and how often its containers have been started again."""
    return {
        name: (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"].get("containerStatuses", [])),
        )
        for name, pod in job.pods().items()
    }


def test_a_leader_that_is_killed_is_followed_and_jobs_see_nothing(
    replicas: Installed, job: Job
) -> None:
    before, lives = replicas.lease(), _lives(job)
    killed, holder = replicas.leader(), replicas.holder()
    assert before["leaseDurationSeconds"] == LEASE_SECONDS
    replicas.kill(killed)
    follower = replicas.another_leads(holder)
    after = replicas.lease()
    assert after["leaseTransitions"] == before["leaseTransitions"] + 1
    assert after["acquireTime"] > before["renewTime"]
    assert follower.rpartition("_")[0] in replicas.pods()
    until("one leads", lambda: replicas.metric("atoll_operator_leader") == 1)
    _acts(job)
    assert _lives(job).items() >= lives.items()


def test_an_upgrade_during_training_restarts_nothing_and_hands_over_at_once(
    replicas: Installed, job: Job, kube: Kubectl
) -> None:
    lives, holder = _lives(job), replicas.holder()
    kube("-n", NAMESPACE, "rollout", "restart", DEPLOYMENT)
    kube("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=600s")
    replicas.another_leads(holder)
    until("the old ones have left", lambda: len(replicas.pods()) == REPLICAS)
    assert _lives(job) == lives
    _acts(job)
    assert _lives(job).items() >= lives.items()
