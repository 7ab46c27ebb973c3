"""One job over two clusters: the commands of docs/kubernetes.md, and what each side sees.

The main cluster serves us-east, where the syncer runs, and the second one eu-west. Nothing of one
cluster can reach the API server of the other; its pods reach the other's nodes alone.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, Object, until
from cluster.training import Job, manifest, pace, pass_seconds

REGIONS = {"us-east": 1, "eu-west": 1}
SYNCER = {
    "region": "us-east",
    "expose": {"type": "NodePort"},
    "storage": {"type": "PersistentVolumeClaim", "size": "1Gi"},
    "tls": {"mode": "Disabled"},
}
SAID_SECONDS_MAX = 90.0
CUT_SECONDS = 60.0
CHAINS = ("OUTPUT", "FORWARD")
TRAINED_SECONDS_MAX = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """The job in both clusters: where its syncer runs, and elsewhere."""

    home: Job
    other: Job

    def apply(self, job: Object) -> None:
        for each in (self.home, self.other):
            each.kube.apply(each.namespace, job)

    def copied_endpoints(self, job: dict[str, Any]) -> dict[str, Any]:
        """The manifest with the addresses that the home shows, once it shows them."""

        def printed() -> str:
            path = "jsonpath={.status.syncer.endpoints}"
            return self.home.kubectl("get", "dtj", self.home.name, "-o", path)

        until("the shards have addresses", lambda: "null" not in (printed() or "null"), 60)
        syncer = job["spec"]["syncer"] | {"endpoints": json.loads(printed())}
        return job | {"spec": job["spec"] | {"syncer": syncer}}

    def begins(self, **spec: Any) -> dict[str, Any]:
        """Apply the job as a person does, first where the syncer runs; returns its manifest."""
        job = dict(manifest(self.home.name, REGIONS, **{"learner": pace(300), **spec}))
        job["spec"]["syncer"] = SYNCER
        self.home.kube.apply(self.home.namespace, job)
        whole = self.copied_endpoints(job)
        self.apply(whole)
        return whole

    def printed_credentials(self, region: str) -> dict[str, Any]:
        """What the command that the condition names prints for a region."""
        message = self.other.condition("Accepted")["message"]
        found = re.search(r"run atoll (credentials .*?) > ", message)
        assert found, message
        words = shlex.split(found[1].replace("--region eu-west", f"--region {region}"))
        done = subprocess.run(
            [Path(sys.executable).with_name("atoll"), *words],
            env={**os.environ, "KUBECONFIG": self.home.kube.kubeconfig},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed: dict[str, Any] = yaml.safe_load(done.stdout)
        return printed

    def accepted(self) -> str:
        """What the other cluster says of the manifest."""
        return self.other.condition("Accepted").get("message", "")

    def bring(self, secret: dict[str, Any], region: str) -> None:
        """Apply a Secret under the name of a region's."""
        name = f"{self.other.name}-credentials-{region}"
        metadata = secret["metadata"] | {"name": name}
        self.other.kube.apply(self.other.namespace, secret | {"metadata": metadata})

    def says(self, job: Job, kind: str, reason: str, seconds: float = SAID_SECONDS_MAX) -> None:
        until(f"{kind} says {reason}", lambda: job.condition(kind)["reason"] == reason, seconds)


@pytest.fixture(scope="module")
def installs(
    atoll: Installed, clusters: list[Kubectl], image_of: Callable[[str], str]
) -> Iterator[None]:
    """Serve us-east in the main cluster and eu-west in the second, as the page says."""
    if len(clusters) < 2:
        pytest.skip("needs two clusters")
    images = {f"images.{role}": image_of(role) for role in ("operator", "worker", "syncer")}
    second = Installed(kube=clusters[1], helm=atoll.helm)
    revision = atoll.upgrade({"regions": "{us-east}"})
    second.install({**images, "regions": "{eu-west}"})
    yield
    second.uninstall()
    atoll.rollback(revision)


@pytest.fixture
def both(installs: None, clusters: list[Kubectl], namespace: str) -> Both:
    home, other = (Job(kube=each, namespace=namespace, name="apart") for each in clusters[:2])
    return Both(home=home, other=other)


@pytest.mark.timeout(900)
def test_a_job_over_two_clusters_trains_to_its_end_and_both_show_the_same(both: Both) -> None:
    job = dict(manifest("apart", REGIONS, steps=300, learner=pace(300)))
    job["spec"]["syncer"] = SYNCER | {"tls": {"mode": "Required"}}
    both.apply(job)
    both.says(both.other, "Accepted", "EndpointsMissing")
    assert "status.syncer.endpoints" in both.other.condition("Accepted")["message"]
    both.apply(both.copied_endpoints(job))
    both.says(both.other, "Accepted", "CredentialsMissing")
    former = both.printed_credentials("eu-west")
    both.bring(former | {"data": former["data"] | {"operator.crt": ""}}, "eu-west")
    both.says(both.other, "Accepted", "CredentialsRefused")
    assert "operator.crt" in both.other.condition("Accepted")["message"]
    both.home.kubectl("delete", "dtj", "apart")  # the next one has another UID and authority
    until("its shard has gone", lambda: not both.home.pods("shard"), 60)
    both.home.kube.apply(both.home.namespace, job)
    whole = both.copied_endpoints(job)
    before = both.home.uids("shard")
    both.apply(whole)
    both.bring(former, "eu-west")
    until("they are of another run", lambda: "another run" in both.accepted(), SAID_SECONDS_MAX)
    assert both.other.condition("Accepted")["reason"] == "CredentialsRefused"
    assert not both.other.pods()
    both.bring(both.printed_credentials("eu-west"), "eu-west")
    for one in (both.home, both.other):
        until("both train", lambda: one.get()["status"].get("learnersLive") == 2, 120)  # noqa: B023
    assert both.home.uids("shard") == before  # endpoints restart nobody where the syncer runs
    for one, region in ((both.home, "us-east"), (both.other, "eu-west")):
        assert list(one.pods("learner")) == [f"apart-{region}-0"]
    assert not both.other.pods("shard")
    for one in (both.home, both.other):
        until("complete", lambda: one.is_true("Complete"), TRAINED_SECONDS_MAX)  # noqa: B023
    here, there = (one.get()["status"] for one in (both.home, both.other))
    assert here["run"] == there["run"]
    assert here["progress"]["step"] >= 300
    assert here["exportURL"].startswith("pvc://")
    assert "exportURL" not in there  # that volume is in the other cluster
    for one in (both.home, both.other):
        until("no pod is left", lambda: not one.pods(), 180)  # noqa: B023
    here, there = (one.get()["status"]["progress"] for one in (both.home, both.other))
    for name in ("step", "tokens", "progressPercentage"):
        assert here[name] == there[name], name


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_happens_where_the_syncer_runs_reaches_the_other_cluster(both: Both) -> None:
    job = both.begins(failure={"syncerLostSeconds": 20})
    both.home.trains(2)
    both.home.patch(suspend=True)
    both.says(both.other, "Suspended", "SuspendedElsewhere")
    for one in (both.home, both.other):
        until("no pod is left", lambda: not one.pods(), 90)  # noqa: B023
    both.says(both.other, "Suspended", "SuspendedElsewhere", 1.0)
    both.home.patch(suspend=False)
    both.home.trains(2)
    both.other.kubectl("delete", "dtj", "apart")  # a region that leaves for good
    until("the others train on", lambda: set(both.home.training()) == {"us-east-0"}, 60)
    wrong = {"sync": job["spec"]["sync"] | {"overlap": 3}}
    both.other.kube.apply(both.other.namespace, job | {"spec": job["spec"] | wrong})
    both.says(both.other, "SpecDrift", "OtherManifest")
    message = both.other.condition("SpecDrift")["message"]
    assert "spec.sync.overlap is 3 here and 2 in the cluster of us-east" in message
    until("nothing is left of the former pod", lambda: not both.other.pods(), 60)
    (learners,) = both.other.kube.get("-n", both.other.namespace, "statefulsets")["items"]
    assert learners["spec"]["replicas"] == 0
    assert set(both.home.training()) == {"us-east-0"}
    both.other.kubectl("delete", "dtj", "apart")
    both.other.kube.apply(both.other.namespace, job)  # and one that joins a job that runs
    both.home.trains(2)
    both.home.kubectl("delete", "dtj", "apart")
    both.says(both.other, "Ready", "SyncerLost")
    until("its learners are gone", lambda: not both.other.pods(), 60)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_region_that_was_cut_off_comes_back_and_no_work_counts_twice(
    both: Both, lab: LabCommand
) -> None:
    both.begins()
    both.home.trains(2)
    until("its work is merged", lambda: merges(both.home, "eu-west-0") > 0, 60)
    pods = both.other.uids("learner")
    nodes = both.home.kube.get("nodes")["items"]
    addresses = [each["status"]["addresses"][0]["address"] for each in nodes]
    link = lab.node("c2-eu-west-1")["namespace"]
    rules = [f"-I {chain} -d {each} -j DROP" for each in addresses for chain in CHAINS]

    def told(rule: str) -> None:
        subprocess.run(
            ["nsenter", f"--net=/run/netns/{link}", "iptables", *rule.split()], check=True
        )

    for rule in rules:
        told(rule)
    try:
        until("it is seen", lambda: set(both.home.training()) == {"us-east-0"}, 60)
        both.says(both.other, "Progressing", "SyncerSilent")
        began = len(both.home.commits())
        alone = merges(both.home, "eu-west-0")
        pass_seconds(CUT_SECONDS)
        assert len(both.home.commits()) > began  # the others train on
        assert merges(both.home, "eu-west-0") == alone
    finally:
        for rule in rules:
            told(rule.replace("-I", "-D", 1))
    both.home.trains(2)
    assert both.other.uids("learner") == pods
    both.says(both.other, "Progressing", "Training")
    until("it is merged again", lambda: merges(both.home, "eu-west-0") > alone, 60)
    assert_nothing_counts_twice(both.home)


def merges(job: Job, slot: str) -> int:
    """How many commits hold work of a slot."""
    parts = [each["participants"] for each in job.tape() if each.get("event") == "commit"]
    return sum(slot in [part["slot"] for part in each] for each in parts)


def assert_nothing_counts_twice(job: Job) -> None:
    """Rule 13, from the tape: no offer is merged twice, and no more than was trained."""
    commits = [each for each in job.tape() if each.get("event") == "commit"]
    reply = job.status()
    assert reply is not None
    trained = {each.slot: each.tokens for each in reply.slots}
    names: set[tuple[Any, ...]] = set()
    merged: dict[tuple[int, str], int] = defaultdict(int)
    for line in commits:
        for part in line["participants"]:
            fields = ("slot", "incarnation", "base", "capture")
            name = (line["slice"], *(part[field] for field in fields))
            assert name not in names, f"{name} is merged twice"
            names.add(name)
            merged[line["slice"], part["slot"]] += part["tokens"]
    assert {slot for _, slot in merged} == {"us-east-0", "eu-west-0"}
    assert all(tokens <= trained[slot] for (_, slot), tokens in merged.items()), (merged, trained)
