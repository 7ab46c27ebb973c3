"""Checkpoints in a bucket: asked for by a person, and taken up by another job."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.conftest import a_bucket, storage_in
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest, pace

ATOLL = Path(sys.executable).with_name("atoll")
ONE = {"us-east": 1}
PODS_SECONDS = 120.0


def test_a_checkpoint_that_a_person_asks_for_is_named_when_whole_and_begins_a_job_that_lacked_one(
    kube: Kubectl, lab: object, namespace: str, train: Callable[..., Job], tmp_path: Path
) -> None:
    with a_bucket(kube, namespace, tmp_path) as place:
        syncer = {"region": "us-east", "shards": 1, "storage": storage_in(place)}
        spec: dict[str, Any] = {"learner": pace(100), "syncer": syncer}
        wrong = {"from": f"{place.url}/no-such-place"}
        kube.apply(namespace, manifest("nowhere", ONE, **spec, checkpoint=wrong))
        nowhere = Job(kube=kube, namespace=namespace, name="nowhere")
        job = train("taken", ONE, **spec, checkpoint={"url": f"{place.url}/checkpoints"})
        done = subprocess.run(
            [ATOLL, "checkpoint", job.name, "-n", namespace],
            env={**os.environ, **place.environment, "KUBECONFIG": kube.kubeconfig},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        url = done.stdout.strip()
        assert url.startswith(f"{place.url}/checkpoints/step-")
        assert job.get()["status"]["checkpoint"] == url

        until("Failed", lambda: nowhere.is_true("Failed"))
        failed = nowhere.condition("Failed")
        assert failed["reason"] == "RestoreRefused", failed
        assert f"{wrong['from']}: there is no whole checkpoint" in failed["message"]
        until("nothing starts again for ever", lambda: not nowhere.pods(), PODS_SECONDS)
        nowhere.patch(checkpoint={"from": url})
        nowhere.trains(1)
        assert nowhere.answer().tick >= int(url.rpartition("-")[2])
        assert nowhere.condition("Failed")["status"] == "False"
