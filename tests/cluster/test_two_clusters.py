"""One job over two clusters: the commands of docs/kubernetes.md, and what each side sees.

The main cluster serves us-east, where the syncer runs, and the second one eu-west. Nothing of one
cluster can reach the API server of the other; its pods reach the other's nodes alone.
"""

from collections.abc import Callable, Iterator

import pytest

from cluster.apart import SAID_SECONDS_MAX, Apart
from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.lab import lifecycle, network
from cluster.training import Job, pass_seconds

CUT_SECONDS = 60.0
TRAINED_SECONDS_MAX = 400.0


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
def both(installs: None, clusters: list[Kubectl], namespace: str) -> Apart:
    home, other = (Job(kube=each, namespace=namespace, name="apart") for each in clusters[:2])
    return Apart(home=home, others={"eu-west": other})


@pytest.mark.timeout(900)
def test_a_job_over_two_clusters_trains_to_its_end_and_both_show_the_same(both: Apart) -> None:
    home, other = both.home, both.others["eu-west"]
    job = both.manifest(steps=300)
    both.apply(job)
    both.says(other, "Accepted", "EndpointsMissing")
    assert "status.syncer.endpoints" in other.condition("Accepted")["message"]
    both.apply(both.copied_endpoints(job))
    both.says(other, "Accepted", "CredentialsMissing")
    former = both.printed_credentials("eu-west")
    both.bring(former | {"data": former["data"] | {"operator.crt": ""}}, "eu-west")
    both.says(other, "Accepted", "CredentialsRefused")
    assert "operator.crt" in other.condition("Accepted")["message"]
    home.kubectl("delete", "dtj", "apart")  # the next one has another UID and authority
    until("its shard has gone", lambda: not home.pods("shard"), 60)
    home.kube.apply(home.namespace, job)
    whole = both.copied_endpoints(job)
    before = home.uids("shard")
    both.apply(whole)
    both.bring(former, "eu-west")
    until(
        "they are of another run",
        lambda: "another run" in both.accepted("eu-west"),
        SAID_SECONDS_MAX,
    )
    assert other.condition("Accepted")["reason"] == "CredentialsRefused"
    assert not other.pods()
    both.bring(both.printed_credentials("eu-west"), "eu-west")
    for one in (home, other):
        until("both train", lambda: one.get()["status"].get("learnersLive") == 2, 120)  # noqa: B023
    assert home.uids("shard") == before  # endpoints restart nobody where the syncer runs
    for one, region in ((home, "us-east"), (other, "eu-west")):
        assert list(one.pods("learner")) == [f"apart-{region}-0"]
    assert not other.pods("shard")
    for one in (home, other):
        until("complete", lambda: one.is_true("Complete"), TRAINED_SECONDS_MAX)  # noqa: B023
    here, there = (one.get()["status"] for one in (home, other))
    assert here["run"] == there["run"]
    assert here["progress"]["step"] >= 300
    assert here["exportURL"].startswith("pvc://")
    assert "exportURL" not in there  # that volume is in the other cluster
    for one in (home, other):
        until("no pod is left", lambda: not one.pods(), 180)  # noqa: B023
    here, there = (one.get()["status"]["progress"] for one in (home, other))
    for name in ("step", "tokens", "progressPercentage"):
        assert here[name] == there[name], name


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_happens_where_the_syncer_runs_reaches_the_other_cluster(both: Apart) -> None:
    home, other = both.home, both.others["eu-west"]
    job = both.begins(failure={"syncerLostSeconds": 20})
    home.trains(2)
    home.patch(suspend=True)
    both.says(other, "Suspended", "SuspendedElsewhere")
    for one in (home, other):
        until("no pod is left", lambda: not one.pods(), 90)  # noqa: B023
    both.says(other, "Suspended", "SuspendedElsewhere", 1.0)
    home.patch(suspend=False)
    home.trains(2)
    other.kubectl("delete", "dtj", "apart")  # a region that leaves for good
    until("the others train on", lambda: set(home.training()) == {"us-east-0"}, 60)
    wrong = {"sync": job["spec"]["sync"] | {"overlap": 3}}
    other.kube.apply(other.namespace, job | {"spec": job["spec"] | wrong})
    both.says(other, "SpecDrift", "OtherManifest")
    message = other.condition("SpecDrift")["message"]
    assert "spec.sync.overlap is 3 here and 2 in the cluster of us-east" in message
    until("nothing is left of the former pod", lambda: not other.pods(), 60)
    (learners,) = other.kube.get("-n", other.namespace, "statefulsets")["items"]
    assert learners["spec"]["replicas"] == 0
    assert set(home.training()) == {"us-east-0"}
    other.kubectl("delete", "dtj", "apart")
    other.kube.apply(other.namespace, job)  # and one that joins a job that runs
    home.trains(2)
    counts = {"regions": [{"name": "us-east", "learners": 2}, {"name": "eu-west", "learners": 1}]}
    other.kube.apply(other.namespace, job | {"spec": job["spec"] | counts})
    both.says(other, "SpecDrift", "OtherCounts")
    message = other.condition("SpecDrift")["message"]
    assert "spec.regions gives us-east 2 learners here and 1 in the cluster of us-east" in message
    assert len(home.training()) == 2
    home.kubectl("delete", "dtj", "apart")
    both.says(other, "Ready", "SyncerLost")
    until("its learners are gone", lambda: not other.pods(), 60)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_region_that_was_cut_off_comes_back_and_no_work_counts_twice(
    both: Apart, lab: LabCommand
) -> None:
    home, other = both.home, both.others["eu-west"]
    both.begins()
    home.trains(2)
    both.all_merge_again()
    pods = other.uids("learner")
    known = lifecycle.current()
    here, there = (known.cluster(name) for name in ("c1", "c2"))
    with network.cut_off(there.nodes, [node.address for node in here.nodes]):
        both.trains_without("eu-west")
        both.says(other, "Progressing", "SyncerSilent")
        began, alone = len(home.commits()), both.merges("eu-west")
        pass_seconds(CUT_SECONDS)
        assert len(home.commits()) > began  # the others train on
        assert both.merges("eu-west") == alone
    home.trains(2)
    assert other.uids("learner") == pods
    both.says(other, "Progressing", "Training")
    both.all_merge_again()
    both.nothing_counts_twice()
