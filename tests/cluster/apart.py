"""One job over several clusters, as the people do it who have the kubeconfig of each."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.kubectl import Object, until
from cluster.training import Job, manifest, pace

REPORT_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The job where its syncer runs, and by region in every other cluster."""

    home: Job
    others: Mapping[str, Job]

    @property
    def all(self) -> list[Job]:
        return [self.home, *self.others.values()]

    @property
    def slots(self) -> set[str]:
        return {f"{region}-0" for region in self.regions}

    @property
    def regions(self) -> dict[str, int]:
        return dict.fromkeys(["us-east", *self.others], 1)

    def apply(self, job: Object) -> None:
        for each in self.all:
            each.kube.apply(each.namespace, job)

    def manifest(self, **spec: Any) -> dict[str, Any]:
        """Of a job with no endpoints yet; the syncer runs in us-east."""
        whole = {"learner": pace(300), **spec}
        job = dict(manifest(self.home.name, self.regions, **whole))
        job["spec"]["syncer"] = {
            "region": "us-east",
            "expose": {"type": "NodePort"},
            "storage": {"type": "PersistentVolumeClaim", "size": "1Gi"},
        }
        return job

    def shown_endpoints(self) -> list[str]:
        """The shards' addresses that the home shows, once it shows them."""

        def printed() -> str:
            path = "jsonpath={.status.syncer.endpoints}"
            return self.home.kubectl("get", "dtj", self.home.name, "-o", path)

        until("the shards have addresses", lambda: bool(printed()))
        shown: list[str] = json.loads(printed())
        return shown

    def copied_endpoints(self, job: Object) -> dict[str, Any]:
        """The manifest with the addresses of the shards."""
        syncer = job["spec"]["syncer"] | {"endpoints": self.shown_endpoints()}
        return {**job, "spec": {**job["spec"], "syncer": syncer}}

    def begins(self, **spec: Any) -> dict[str, Any]:
        """Apply the job as a person does, first where the syncer runs; returns its manifest."""
        job = self.manifest(**spec)
        self.home.kube.apply(self.home.namespace, job)
        whole = self.copied_endpoints(job)
        self.apply(whole)
        for region in self.others:
            self.carries_credentials(region)
        return whole

    def carries_credentials(self, region: str) -> None:
        """Once the cluster of a region asks for them."""
        self.reports(self.others[region], "Accepted", "CredentialsMissing")
        self.bring(self.printed_credentials(region), region)

    def printed_credentials(self, region: str) -> dict[str, Any]:
        """What the command prints that the condition of a region's cluster names."""
        message = self.accepted(region)
        found = re.search(r"run atoll (credentials .*?) > ", message)
        assert found, message
        printed: dict[str, Any] = yaml.safe_load(self.typed(*shlex.split(found[1])))
        return printed

    def typed(self, *words: str) -> str:
        """What `atoll` prints where the syncer runs."""
        done = subprocess.run(
            [Path(sys.executable).with_name("atoll"), *words],
            env={**os.environ, "KUBECONFIG": self.home.kube.kubeconfig},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def accepted(self, region: str) -> str:
        """What the cluster of a region reports of the manifest."""
        return self.others[region].condition("Accepted").get("message", "")

    def bring(self, secret: dict[str, Any], region: str) -> None:
        """Apply a Secret in the cluster of a region, under that region's name."""
        other = self.others[region]
        metadata = secret["metadata"] | {"name": f"{other.name}-credentials-{region}"}
        other.kube.apply(other.namespace, secret | {"metadata": metadata})

    def reports(
        self, job: Job, kind: str, reason: str, seconds: float = REPORT_SECONDS_MAX
    ) -> None:
        until(f"{kind} is {reason}", lambda: job.condition(kind)["reason"] == reason, seconds)
