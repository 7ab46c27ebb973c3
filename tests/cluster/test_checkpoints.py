"""Checkpoints in a bucket: asked for by a person, and taken up by other jobs.

One job trains all the while; the others begin with what it has left there.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import a_bucket, storage_in
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest, pace
from local.stores.servers import Place

ATOLL = Path(sys.executable).with_name("atoll")
ONE = {"us-east": 1}
REFUSED = 2  # exit code of the command
PODS_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The place of all jobs of this file, and a person who has its keys."""

    kube: Kubectl
    namespace: str
    place: Place

    @property
    def checkpoints(self) -> str:
        return f"{self.place.url}/checkpoints"

    def begins(self, name: str, place: str, *options: str) -> Job:
        """A job that begins with a checkpoint, of a learner with these options."""
        spec = self.spec(pace(100, *options)) | {"checkpoint": {"from": place}}
        self.kube.apply(self.namespace, manifest(name, ONE, **spec))
        return Job(kube=self.kube, namespace=self.namespace, name=name)

    def spec(self, learner: object) -> dict[str, Any]:
        syncer = {"region": "us-east", "shards": 1, "storage": storage_in(self.place)}
        return {"learner": learner, "syncer": syncer}

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.place.environment, "KUBECONFIG": self.kube.kubeconfig}

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ATOLL, *words], env=self.environment(), capture_output=True, text=True, check=False
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The job that trains, and the command that waits for its checkpoint."""

    job: Job
    command: "subprocess.Popen[str]"

    def printed(self) -> str:
        said, troubles = self.command.communicate()
        assert self.command.returncode == 0, said + troubles
        return said.strip()


@pytest.fixture(scope="module")
def bucket(
    kube: Kubectl, lab: object, shared_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    with a_bucket(kube, shared_namespace, tmp_path_factory.mktemp("moto")) as place:
        yield Bucket(kube=kube, namespace=shared_namespace, place=place)


@pytest.fixture(scope="module")
def nowhere(bucket: Bucket, atoll: object) -> Job:
    """A job whose checkpoint is not there: it begins beside the other one."""
    return bucket.begins("nowhere", f"{bucket.place.url}/no-such-place")


@pytest.fixture(scope="module")
def asked(bucket: Bucket, nowhere: Job, train_for_all: Callable[..., Job]) -> Asked:
    """It takes up to a minute until the shards hear of the wish."""
    spec = bucket.spec(pace(100))
    spec["checkpoint"] = {"url": bucket.checkpoints}
    job = train_for_all("taken", ONE, **spec)
    words = ("checkpoint", job.name, "-n", job.namespace)
    command = subprocess.Popen(
        [ATOLL, *words],
        env=bucket.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Asked(job=job, command=command)


@pytest.fixture(scope="module")
def url(asked: Asked) -> str:
    return asked.printed()


def test_a_checkpoint_that_a_person_asks_for_is_named_when_it_is_whole(
    asked: Asked, url: str
) -> None:
    assert url.startswith(f"{asked.job.get()['spec']['checkpoint']['url']}/step-")
    assert asked.job.get()["status"]["checkpoint"] == url


def test_a_place_without_a_checkpoint_fails_the_job_until_another_one_is_given(
    bucket: Bucket, nowhere: Job, url: str
) -> None:
    until("Failed", lambda: nowhere.is_true("Failed"))
    failed = nowhere.condition("Failed")
    assert failed["reason"] == "RestoreRefused", failed
    assert f"{bucket.place.url}/no-such-place: there is no whole checkpoint" in failed["message"]
    until("nothing starts again for ever", lambda: not nowhere.pods(), PODS_SECONDS)
    nowhere.patch(checkpoint={"from": url})
    nowhere.trains(1)
    assert nowhere.answer().tick >= int(url.rpartition("-")[2])
    assert nowhere.condition("Failed")["status"] == "False"
