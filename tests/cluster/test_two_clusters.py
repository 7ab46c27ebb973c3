"""One job over two clusters: the walk of docs/clusters.md, and what each side sees.

The main cluster serves us-east, where the syncer runs, and the second one eu-west. Nothing of one
cluster can reach the API server of the other; its pods reach the other's nodes alone.
The walk is run as it is printed, in two parts: the chart's commands make what all tests use here.
"""

import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import light
from cluster.apart import REPORT_SECONDS_MAX, Apart
from cluster.installed import FORCE, Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job
from cluster.typed import Shell, blocks
from local.machines.commands import Machine, commands_in

IMAGE = re.compile(r"REGISTRY/atoll-(\w+):[\d.]+")
EAST, WEST = "east", "west"  # the contexts of the page


@pytest.fixture(scope="module")
def walk() -> tuple[str, str]:
    """The page's commands for the chart, and those for a job."""
    chart, whole, rest = blocks("docs/clusters.md", "## The commands")[0].partition("\n\n")
    assert whole
    assert "helm" in chart
    assert "helm" not in rest
    return chart, rest


@pytest.fixture(scope="module")
def installs(
    atoll: Installed,
    clusters: list[Kubectl],
    image_of: Callable[[str], str],
    walk: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Serve us-east in the main cluster and eu-west in the second, by the page's commands."""
    if len(clusters) < 2:
        pytest.skip("needs two clusters")
    shell = Shell.made(tmp_path_factory.mktemp("installs"), clusters[0])
    shell.knows({EAST: clusters[0], WEST: clusters[1]}, "default")
    chart = IMAGE.sub(lambda found: image_of(found[1]), walk[0])
    revision = atoll.revision()
    shell(chart.replace("helm upgrade", f"helm upgrade {FORCE}"))
    yield
    Installed(kube=clusters[1], helm=atoll.helm).uninstall()
    atoll.rollback(revision)


@pytest.fixture
def both(installs: None, clusters: list[Kubectl], namespace: str) -> Apart:
    home, other = (Job(kube=each, namespace=namespace, name="apart") for each in clusters[:2])
    return Apart(home=home, others={"eu-west": other})


def test_a_cluster_without_the_syncer_reports_what_it_lacks_and_then_trains(both: Apart) -> None:
    home, other = both.home, both.others["eu-west"]
    job = both.manifest()
    both.apply(job)
    both.reports(other, "Accepted", "EndpointsMissing")
    assert "status.syncer.endpoints" in other.condition("Accepted")["message"]
    both.apply(both.copied_endpoints(job))
    both.reports(other, "Accepted", "CredentialsMissing")
    former = both.printed_credentials("eu-west")
    both.bring(former | {"data": former["data"] | {"operator.crt": ""}}, "eu-west")
    both.reports(other, "Accepted", "CredentialsRefused")
    assert "operator.crt" in other.condition("Accepted")["message"]
    home.kubectl("delete", "dtj", "apart")  # the next one has another UID and authority
    until("its shard has gone", lambda: not home.pods("shard"))
    home.kube.apply(home.namespace, job)
    whole = both.copied_endpoints(job)  # its Service has them before it has a pod
    until("its shard is there", lambda: len(home.uids("shard")) == 1)
    before = home.uids("shard")
    both.apply(whole)
    both.bring(former, "eu-west")
    until(
        "they are of another run",
        lambda: "another run" in both.accepted("eu-west"),
        REPORT_SECONDS_MAX,
    )
    assert other.condition("Accepted")["reason"] == "CredentialsRefused"
    assert not other.pods()
    both.bring(both.printed_credentials("eu-west"), "eu-west")
    for one in (home, other):
        until("both train", lambda: one.get()["status"].get("learnersLive") == 2)  # noqa: B023
    assert home.uids("shard") == before  # endpoints restart no pod where the syncer runs
    for one, region in ((home, "us-east"), (other, "eu-west")):
        assert list(one.pods("learner")) == [f"apart-{region}-0"]
    assert not other.pods("shard")


def test_the_walk_of_the_page_trains_to_the_end_and_both_clusters_show_the_same(
    installs: None, walk: tuple[str, str], clusters: list[Kubectl], namespace: str, tmp_path: Path
) -> None:
    name = "two-clusters"
    home, other = (Job(kube=each, namespace=namespace, name=name) for each in clusters[:2])
    shell = Shell.made(tmp_path, home.kube)
    shell.knows({EAST: home.kube, WEST: other.kube}, namespace)
    printed = shell(walk[1])
    assert f"secret/{name}-credentials-eu-west created" in printed
    assert re.search(rf"^{name} +Complete ", printed, re.M)  # the last command's table
    for one in (home, other):
        until("complete", lambda: one.is_true("Complete"), REPORT_SECONDS_MAX)  # noqa: B023
    here, there = (one.get()["status"] for one in (home, other))
    assert here["run"] == there["run"]
    assert here["progress"]["step"] >= 200
    assert here["exportURL"].startswith("pvc://")
    assert "exportURL" not in there  # that volume is in the other cluster
    until("both show the same", lambda: progress(home) == progress(other), REPORT_SECONDS_MAX)
    assert not other.pods("shard")


def progress(job: Job) -> list[object]:
    """What each cluster reads from the same shards."""
    shown = job.get()["status"]["progress"]
    return [shown[name] for name in ("step", "tokens", "progressPercentage")]


def test_a_machine_outside_of_every_cluster_trains_is_lost_and_shut_out_alone(
    installs: None, clusters: list[Kubectl], namespace: str, tmp_path: Path
) -> None:
    """No cluster serves the region `house`; its machine dials the node's port."""
    home = Job(kube=clusters[0], namespace=namespace, name="apart")
    apart, files = Apart(home=home, others={"house": home}), tmp_path / "brought"
    home.kube.apply(namespace, apart.manifest())
    apart.shown_endpoints()
    until("us-east trains", lambda: set(home.training()) == {"us-east-0"})
    credentials = ("credentials", "apart", "-n", namespace)
    words = (*credentials, "--region", "house", "--machine", "one", "--files", str(files))
    apart.typed(*words)
    shutil.copy(light.__file__, tmp_path)
    with commands_in(tmp_path) as here:

        def joins(name: str = "state", brought: Path = files) -> Machine:
            """With the command and arguments of the manifest."""
            state = tmp_path / name
            return here.atoll(state, "join", "--credentials", brought, "--state", state)

        machine = joins()
        home.trains(2)
        until("all are live", lambda: home.get()["status"].get("learnersLive") == 2)
        assert set(home.training()) == apart.slots
        machine.process.kill()

        def gone() -> bool:
            return "house: served by another" in home.condition("Degraded").get("message", "")

        until("it is missed", gone, REPORT_SECONDS_MAX)
        assert home.get()["status"]["learnersLive"] == 1
        merged = home.answer().commits
        until("the others train on", lambda: home.answer().commits > merged)
        machine = joins()
        home.trains(2)
        until("nobody is missed", lambda: not gone(), REPORT_SECONDS_MAX)
        apart.typed(*words)
        machine.says("are new: learners take them as they run")
        home.patch(suspend=True)
        machine.says("the job is suspended")
        home.patch(suspend=False)
        machine.says("the job goes on")
        home.trains(2)
        apart.typed(*credentials, "--revoke", "house", "--machine", "one")
        machine.says("a machine that is on the job's list")
        until("it is out", lambda: set(home.training()) == {"us-east-0"})
        machine.finish(signal.SIGTERM)
        other = tmp_path / "other"
        apart.typed(*words[:-3], "two", "--files", str(other))
        machine = joins("two", other)
        home.trains(2)
        home.patch(steps=home.answer().tick + 20)
        assert machine.end() == 0, machine.logs()
        until("complete", lambda: home.is_true("Complete"), REPORT_SECONDS_MAX)


@pytest.mark.long
def test_what_happens_where_the_syncer_runs_reaches_the_other_cluster(both: Apart) -> None:
    home, other = both.home, both.others["eu-west"]
    job = both.begins(failure={"syncerLostSeconds": 20})
    home.trains(2)
    home.patch(suspend=True)
    both.reports(other, "Suspended", "SuspendedElsewhere")
    for one in (home, other):
        until("no pod is left", lambda: not one.pods())  # noqa: B023
    both.reports(other, "Suspended", "SuspendedElsewhere", 1.0)
    home.patch(suspend=False)
    home.trains(2)
    other.kubectl("delete", "dtj", "apart")  # a region that leaves for good
    until("the others train on", lambda: set(home.training()) == {"us-east-0"})
    wrong = {"sync": job["spec"]["sync"] | {"overlap": 3}}
    other.kube.apply(other.namespace, job | {"spec": job["spec"] | wrong})
    both.reports(other, "Degraded", "OtherManifest")
    message = other.condition("Degraded")["message"]
    assert "spec.sync.overlap is 3 here and 2 in the cluster of us-east" in message
    until("nothing is left of the former pod", lambda: not other.pods())
    (learners,) = other.kube.get("-n", other.namespace, "statefulsets")["items"]
    assert learners["spec"]["replicas"] == 0
    assert set(home.training()) == {"us-east-0"}
    other.kubectl("delete", "dtj", "apart")
    other.kube.apply(other.namespace, job)  # and one that joins a job that runs
    home.trains(2)
    counts = {"regions": [{"name": "us-east", "learners": 2}, {"name": "eu-west", "learners": 1}]}
    other.kube.apply(other.namespace, job | {"spec": job["spec"] | counts})
    both.reports(other, "Degraded", "OtherCounts")
    message = other.condition("Degraded")["message"]
    assert "spec.regions gives us-east 2 learners here and 1 in the cluster of us-east" in message
    assert len(home.training()) == 2
    home.kubectl("delete", "dtj", "apart")
    both.reports(other, "Ready", "SyncerLost")
    until("its learners are gone", lambda: not other.pods())
