"""One job over three clusters, a region in each, joined by links of 50 ms and 100 Mbit/s.

The syncer runs in us-east, in the first cluster. Each of the others reaches it under the one name
that the manifest has, a Service of its own whose endpoint is its end of a slow link: so the
addresses differ from cluster to cluster, no certificate has one, and the manifest is the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bytegpt.model import ByteGPT, Size
from cluster.apart import Apart, with_endpoints
from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.lab import lifecycle, links, network
from cluster.lab.layout import Cluster, Node, run_folder
from cluster.training import Job, model, pass_seconds

REGIONS = ("us-east", "eu-west", "ap-south")  # of c1, c2, c3
NODES = tuple(word for region in REGIONS for word in ("--nodes", f"{region}=1"))
UP = ("up", "--json", "--timing", "default", "--clusters", "3", *NODES)
NAMESPACE = "apart"
NAME = "apart"
ENFORCE = "pod-security.kubernetes.io/enforce=restricted"
SERVICE = "syncer"
PORT = 7700
GATE = "10.200.0.1"  # where the links end: of the first cluster, and not where its pods are
CUT_SECONDS = 60.0
MEASURED_SECONDS = 60.0
TRAINED_SECONDS_MAX = 1800.0
STEPS = 350
BITS = 16  # bf16, up and down
NEAR = 0.1
BLOCKED_SHARE_MORE_MAX = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """The clusters of the lab, by region, with the chart installed in each."""

    clusters: dict[str, Cluster]
    kubes: dict[str, Kubectl]
    helm: str
    values: dict[str, str]

    def installs(self, region: str) -> None:
        """The chart, the namespace, and in the others the name under which the syncer is known."""
        kube = self.kubes[region]
        Installed(kube=kube, helm=self.helm).install(
            {**self.values, "regions": f"{{{region}}}", "replicas": "1"}
        )
        kube.attempt("create", "namespace", NAMESPACE)  # in clusters that stayed up it is there
        kube("label", "namespace", NAMESPACE, ENFORCE, "--overwrite")
        if region != REGIONS[0]:
            kube.apply(NAMESPACE, *way_to_the_syncer(self.port(region)))

    def port(self, region: str) -> int:
        """Of the link of a region."""
        return PORT + REGIONS.index(region)

    def cut_off(self, *regions: str) -> AbstractContextManager[None]:
        """Lose every packet between these regions and the syncer's."""
        nodes = [node for region in regions for node in self.clusters[region].nodes]
        return network.cut_off(nodes, [GATE])


def way_to_the_syncer(port: int) -> list[dict[str, object]]:
    """A Service without pods, whose one endpoint is an end of a link."""
    ports = [{"name": "shard", "port": PORT, "protocol": "TCP"}]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVICE},
            "spec": {"ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [GATE], "conditions": {"ready": True}}],
            "ports": [{**ports[0], "port": port}],
        },
    ]


@pytest.fixture(scope="module")
def regions(prepared: None, image_of: Callable[[str], str]) -> Iterator[Regions]:
    """Three clusters; those that are up already are used, and stay up."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names one cluster, and three are needed")
    links.program()
    command = LabCommand()
    was_up = run_folder().exists()
    command(*UP)
    status = command.status()
    clusters = dict(zip(REGIONS, lifecycle.current().clusters, strict=True))
    program = f"{status['programs']}/kubectl"
    found = Regions(
        clusters=clusters,
        kubes={
            region: Kubectl(program=program, kubeconfig=str(each.kubeconfig))
            for region, each in clusters.items()
        },
        helm=f"{status['programs']}/helm",
        values={f"images.{role}": image_of(role) for role in ("operator", "worker", "syncer")},
    )
    for region in REGIONS:
        found.installs(region)
    yield found
    if not was_up:
        command("down")


@pytest.fixture
def apart(regions: Regions, tmp_path: Path) -> Iterator[Apart]:
    jobs = {
        region: Job(kube=kube, namespace=NAMESPACE, name=NAME)
        for region, kube in regions.kubes.items()
    }
    pid = links.serve(tmp_path)
    yield Apart(home=jobs[REGIONS[0]], others={each: jobs[each] for each in REGIONS[1:]})
    for job in jobs.values():
        job.kubectl("delete", "dtj,secret,pvc", "--all")
    for job in jobs.values():
        until("no pod is left", lambda job=job: not job.pods())  # type: ignore[misc]
    links.end(pid)


def begins(apart: Apart, regions: Regions, **spec: object) -> dict[str, Any]:
    """As `Apart.begins`, over links whose ends have one name; returns the manifest."""
    job = apart.manifest(learner=model(300), **spec)
    apart.home.kube.apply(NAMESPACE, job)
    (upstream,) = apart.shown_endpoints()
    for region in apart.others:
        listen = f"{GATE}:{regions.port(region)}"
        links.lay(links.Link(name=region, listen=listen, upstream=upstream))
    whole = with_endpoints(job, [f"{SERVICE}.{NAMESPACE}.svc.cluster.local:{PORT}"])
    apart.apply(whole)
    for region in apart.others:
        apart.carries_credentials(region)
    apart.home.trains(len(REGIONS))
    return whole


@pytest.mark.long
def test_three_clusters_train_over_slow_links_and_agree_and_the_links_carry_what_the_formula_says(
    apart: Apart, regions: Regions, tmp_path: Path
) -> None:
    job = begins(apart, regions, steps=STEPS)
    apart.all_merge_again()
    for region in apart.others:
        for node, pod in dialling(apart, regions, region).values():
            network.count(node, pod, GATE)
    carried = {region: measured(apart, regions, region) for region in apart.others}
    began = apart.home.answer()
    pass_seconds(MEASURED_SECONDS)
    ended = apart.home.answer()
    ticks = ended.tick - began.tick
    parameters = sum(each.numel() for each in ByteGPT(Size(context=64), seed=0).parameters())
    sync = job["spec"]["sync"]
    formula = parameters * BITS / 8 / sync["period"] * ticks
    figures = {"ticks": ticks, "parameters": parameters, "formula": formula}
    for region, before in carried.items():
        after = measured(apart, regions, region)
        for way in (0, 1):
            by = {who: after[who][way] - before[who][way] for who in after}
            figures[f"{region} {('up', 'down')[way]}"] = by
            assert abs(sum(by.values()) / formula - 1) < NEAR, (region, by, figures)
    figures["payload"] = [
        ended.bytes_received - began.bytes_received,
        ended.bytes_sent - began.bytes_sent,
    ]
    blocked = {each.slot: 1 - each.busy_share for each in ended.slots}
    for one in apart.all:
        until("complete", lambda one=one: one.is_true("Complete"), TRAINED_SECONDS_MAX)  # type: ignore[misc]
    statuses = [one.get()["status"] for one in apart.all]
    assert len({each["run"] for each in statuses}) == 1
    for name in ("step", "tokens", "progressPercentage"):
        assert len({str(each["progress"][name]) for each in statuses}) == 1, name
    assert statuses[0]["progress"]["step"] >= STEPS
    apart.nothing_counts_twice()
    alone = blocked_on_one_machine(job, tmp_path)
    figures |= {"blocked": blocked, "blocked on one machine": alone}
    sys.stdout.write(f"{json.dumps(figures)}\n")  # pytest -rP shows it
    assert max(blocked.values()) < max(alone.values()) + BLOCKED_SHARE_MORE_MAX, figures


def dialling(apart: Apart, regions: Regions, region: str) -> dict[str, tuple[Node, str]]:
    """Who dials the syncer from a region: node and address of its learner and of its operator."""
    (node,) = regions.clusters[region].nodes
    (learner,) = apart.others[region].pods("learner").values()
    (operator,) = Installed(kube=regions.kubes[region], helm=regions.helm).pods().values()
    pods = {"learner": learner, "operator": operator}
    return {who: (node, pod["status"]["podIP"]) for who, pod in pods.items()}


def measured(apart: Apart, regions: Regions, region: str) -> dict[str, tuple[int, int]]:
    """Bytes from a region to the syncer and back."""
    return {
        who: network.counted_bytes(node, pod, GATE)
        for who, (node, pod) in dialling(apart, regions, region).items()
    }


def blocked_on_one_machine(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The share of time that each learner of the same job spends in step() with `atoll run`."""
    syncer = {"region": REGIONS[0]}
    file, out = folder / "job.yaml", folder / "run"
    file.write_text(yaml.safe_dump({**job, "spec": {**job["spec"], "syncer": syncer}}))
    atoll = Path(sys.executable).with_name("atoll")
    done = subprocess.run(
        [atoll, "run", file, "--out", out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    return {slot: each["blocked_share"] for slot, each in summary["learners"].items()}


@pytest.mark.long
def test_a_region_and_then_the_syncers_region_are_cut_off_and_come_back_by_themselves(
    apart: Apart, regions: Regions
) -> None:
    begins(apart, regions)
    apart.all_merge_again()
    pods = {job.kube.kubeconfig: job.uids() for job in apart.all}
    far = apart.others["eu-west"]
    with regions.cut_off("eu-west"):
        apart.trains_without("eu-west")
        apart.reports(far, "Progressing", "SyncerSilent")
        began, alone = len(apart.home.commits()), apart.merges("eu-west")
        pass_seconds(CUT_SECONDS)
        assert len(apart.home.commits()) > began  # the others train on
        assert apart.merges("eu-west") == alone
    apart.home.trains(len(REGIONS))
    apart.reports(far, "Progressing", "Training")
    apart.all_merge_again()
    with regions.cut_off("eu-west", "ap-south"):  # so the syncer's region is alone
        apart.trains_without("eu-west", "ap-south")
        for job in apart.others.values():
            apart.reports(job, "Progressing", "SyncerSilent")
        began = len(apart.home.commits())
        pass_seconds(CUT_SECONDS)
        assert len(apart.home.commits()) > began
    apart.home.trains(len(REGIONS))
    for job in apart.others.values():
        apart.reports(job, "Progressing", "Training")
    apart.all_merge_again()
    assert {job.kube.kubeconfig: job.uids() for job in apart.all} == pods
    apart.nothing_counts_twice()
