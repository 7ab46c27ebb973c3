"""Each opening of a Learner is an instance of its own."""

import os

import pytest

from atoll_protos.errors import SpecError
from atoll_worker import job
from unit.worker.fixtures import entered, learner_of, model_and_optimizer


@pytest.fixture(autouse=True)
def first_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_open", {})
    monkeypatch.setattr(job, "_openings", {})


def test_learners_one_after_the_other_are_different_instances_to_the_registrar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one name for both the second would go on under the first one's incarnation."""
    monkeypatch.setenv("ATOLL_INSTANCE", "pod-1")
    instances: list[str] = []
    for _ in range(3):
        with entered(learner_of(*model_and_optimizer())) as fake:
            instances.append(fake.end.configure.instance)
    assert instances == ["pod-1", "pod-1.2", "pod-1.3"]


def test_an_opening_that_fails_leaves_the_place_free() -> None:
    holder = object()
    job.claim_process(holder, "pod")
    with pytest.raises(SpecError, match="another one is open in this process"):
        job.claim_process(object(), "pod")
    job.release_process(object())
    with pytest.raises(SpecError):
        job.claim_process(object(), "pod")
    job.release_process(holder)
    assert job.claim_process(object(), "pod") == "pod.2"


def test_a_fork_does_not_inherit_the_open_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    job.claim_process(object(), "pod")
    monkeypatch.setattr(os, "getpid", os.getppid)
    assert job.claim_process(object(), "other") == "other"


def test_a_fork_that_ends_leaves_the_job_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raw fork goes through the `with` around it, and what is registered for the end."""
    learner = learner_of(*model_and_optimizer())
    with entered(learner, "loop ended") as fake:
        learner.step(tokens=1)
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: 1)
            learner.close(ValueError("of the child"))
            learner._at_exit()
        learner.step(tokens=1)
        assert [fake.boundary().own_steps for _ in range(2)] == [1, 2]
