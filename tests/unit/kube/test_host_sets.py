"""Learners of several hosts: their objects, what their pods find, and how they are counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.api.job.parsing import parse
from atoll_operator.kube.names import LEARNER_ROLE, Annotation, hosts_set, learner_sets
from atoll_operator.kube.observed.observation import Pod, Replaced, Workload
from atoll_operator.kube.plan.status import ready_by_region, replaced_by_region
from atoll_protos.environment import Env, default
from atoll_protos.errors import SpecError
from atoll_protos.names import STARTED_PATH, Label, slot_name
from atoll_worker.launcher.probes import START_SECONDS_MAX
from unit.kube.cluster_values import MANIFEST, Objects, first_container, job, keyed, template
from unit.kube.planner_side import applied, planned, seen

TWO = "spec.learner.hosts=2"
MANY = "spec.regions=[{name: us-east, learners: 4}, {name: eu-west, learners: 3}]"
SETS = ("tiny-us-east-0", "tiny-us-east-1", "tiny-eu-west-0")


def children(*changes: str) -> Objects:
    return keyed(TWO, *changes)


def pod(found: Objects, name: str = SETS[0]) -> dict[str, Any]:
    return template(found, "StatefulSet", name)


def host(*changes: str) -> dict[str, Any]:
    """The container of a host and, by their names, its variables."""
    return first_container(pod(children(*changes)))


def running(container: str) -> str:
    return f"spec.learner.template={{spec: {{containers: [{{{container}}}]}}}}"


# ---------------------------------------------------------------- objects


def test_each_learner_is_a_statefulset_with_a_service_of_its_own() -> None:
    found = children()
    for kind in ("StatefulSet", "Service"):
        assert {name for each, name in found if each == kind and "syncer" not in name} == set(SETS)
    for name in SETS:
        slot, labels = name.removeprefix("tiny-"), pod(found, name)["metadata"]["labels"]
        of_set, service = found["StatefulSet", name], found["Service", name]["spec"]
        assert of_set["metadata"]["labels"][Label.SLOT] == slot
        for match in (of_set["spec"]["selector"]["matchLabels"], service["selector"]):
            assert match[Label.SLOT] == slot
            assert match.items() <= labels.items()
        assert (service["publishNotReadyAddresses"], service["clusterIP"]) == (True, "None")
        assert of_set["spec"].items() >= {
            "replicas": 2, "podManagementPolicy": "Parallel", "serviceName": name,
        }.items()  # fmt: skip
        assert of_set["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_another_number_of_learners_makes_and_takes_whole_sets_and_restarts_none() -> None:
    new = {
        (kind, f"tiny-{slot}")
        for kind in ("StatefulSet", "Service")
        for slot in ("us-east-2", "us-east-3", "eu-west-1", "eu-west-2")
    }
    few, many = children(), children(MANY)
    assert {key for key in many.keys() - few.keys() if key[0] != "ConfigMap"} == new
    gone = planned(seen(TWO, children=applied(TWO, MANY))).children.prune
    assert {(each.kind, each.name) for each in gone if each.kind != "ConfigMap"} == new
    for name in SETS:
        one, other = (pod(each, name)["metadata"]["annotations"] for each in (few, many))
        assert one[Annotation.TEMPLATE] == other[Annotation.TEMPLATE]


@pytest.mark.parametrize("suspended", [False, True])
def test_the_sets_of_a_region_are_tried_once_before_a_job_begins(suspended: bool) -> None:
    found = planned(seen(TWO, MANY, f"spec.suspend={str(suspended).lower()}", children=[]))
    tried = [
        each["metadata"]["name"] for each in found.children.check if each["kind"] == "StatefulSet"
    ]
    assert tried == ["tiny-us-east-0", "tiny-eu-west-0"]


def test_a_scheduler_sees_the_annotations_of_the_template_at_each_set() -> None:
    mark = "scheduling.volcano.sh/group-min-member"
    found = children(f"spec.learner.template={{metadata: {{annotations: {{{mark}: '2'}}}}}}")
    for name in SETS:
        annotations = found["StatefulSet", name]["metadata"]["annotations"]
        assert annotations[mark] == pod(found, name)["metadata"]["annotations"][mark] == "2"
        assert Annotation.TEMPLATE not in annotations


@given(
    regions=st.dictionaries(
        st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True),
        st.integers(0, 12),
        min_size=1,
        max_size=4,
    ),
    hosts=st.integers(1, 3),
)
def test_no_two_learners_share_a_set(regions: dict[str, int], hosts: int) -> None:
    listed = ", ".join(f"{{name: {name}, learners: {n}}}" for name, n in regions.items())
    try:
        of = parse(MANIFEST, (f"spec.regions=[{listed}]", f"spec.learner.hosts={hosts}"))
    except SpecError:
        return  # reserved names
    assert len(learner_sets(of)) == (len(regions) if hosts == 1 else sum(regions.values()))


# ---------------------------------------------------------------- what a host finds

LAUNCH = ["python3", "-m", "atoll_worker", "launch", "--"]
ASKED = {"ATOLL_HEALTH_PORT": "7701", "startupProbe": ..., "livenessProbe": ...}
NOT_ASKED = {"ATOLL_HEALTH_PORT": None, "startupProbe": None, "livenessProbe": None}
GPUS = "PET_NPROC_PER_NODE"
OWN_GPUS = "podOverrides: {resources: {limits: {nvidia.com/gpu: 2}}}"
PROBED = "livenessProbe: {tcpSocket: {port: 80}}"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ((), {"ATOLL_SLOT": "us-east-0", "ATOLL_REGION": "us-east", "ATOLL_HOSTS": "2"}),
        ((), {"ATOLL_HOST": "metadata.labels['apps.kubernetes.io/pod-index']"}),
        ((), {"PET_RDZV_ENDPOINT": "tiny-us-east-0-0.tiny-us-east-0:29400", "PET_NNODES": "2"}),
        ((), {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "us-east-0", "ATOLL_ORDINAL": None}),
        (("spec.learner.hostsMin=1",), {"PET_NNODES": "1:2"}),
        ((running("image: mine"),), {GPUS: "1"}),
        ((running("resources: {limits: {nvidia.com/gpu: 8}}"),), {GPUS: "8"}),
        ((running("resources: {limits: {nvidia.com/gpu: '4'}}"),), {GPUS: "4"}),
        ((running("resources: {limits: {amd.com/gpu: 2, memory: 9Gi}}"),), {GPUS: "2"}),
        ((running("resources: {limits: {nvidia.com/gpu: many}}"),), {GPUS: "1"}),
        ((running(f"env: [{{name: {GPUS}, value: '3'}}]"),), {GPUS: "3"}),
        (
            (
                running("resources: {limits: {nvidia.com/gpu: 8}}"),
                f"spec.regions=[{{name: us-east, {OWN_GPUS}}}, {{name: eu-west}}]",
            ),
            {GPUS: "2"},
        ),
        ((), {"command": [*LAUNCH, "python3", "-m", "atoll_worker", "bytegpt.train:main"]} | ASKED),
        (
            (running("command: [python3, train.py], args: [--fast]"),),
            {"command": [*LAUNCH, "python3", "train.py"], "args": ["--fast"]} | ASKED,
        ),
        ((running("command: [atoll-worker, launch], args: [--, train.py]"),), ASKED),
        ((running("command: [torchrun, t.py]"),), {"command": ["torchrun", "t.py"]} | NOT_ASKED),
        ((running(PROBED),), NOT_ASKED | {"livenessProbe": {"tcpSocket": {"port": 80}}}),
        (
            (running("env: [{name: ATOLL_HEALTH_PORT, value: '7801'}]"),),
            {"ATOLL_HEALTH_PORT": "7801", "livenessProbe": None},
        ),
    ],
)
def test_a_host_has_what_it_starts_its_processes_with(
    changes: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    found = host(*changes)
    for name, value in wanted.items():
        assert found.get(name) == value or (value is ... and found[name]), name


def test_a_host_whose_launcher_stands_still_is_started_again_by_the_kubelet() -> None:
    still, start = host()["livenessProbe"], host()["startupProbe"]
    assert still["httpGet"] == {"path": "/", "port": 7701}
    assert start["httpGet"] == {"path": STARTED_PATH, "port": 7701}
    assert start["timeoutSeconds"] > START_SECONDS_MAX
    seconds = (still["failureThreshold"] + 1) * still["periodSeconds"]
    assert seconds < float(default(Env.RANKS_SILENCE_SECONDS))
    assert still["terminationGracePeriodSeconds"] < 10  # what is stopped hears no signal
    assert start["failureThreshold"] * start["periodSeconds"] >= 3600  # its node may be busy
    assert start["initialDelaySeconds"] >= 5  # the port is open by then, so no start is a Warning


def test_the_port_where_hosts_meet_is_told_beside_the_user_s_ports() -> None:
    found = host(running("ports: [{name: debug, containerPort: 5678}]"))["ports"]
    assert [each["containerPort"] for each in found] == [5678, 29400]


def test_hosts_of_a_learner_go_to_one_value_of_the_topology_key() -> None:
    user = "{topologyKey: zone, labelSelector: {matchLabels: {app: data}}}"
    rule = f"requiredDuringSchedulingIgnoredDuringExecution: [{user}]"
    own = f"spec.learner.template={{spec: {{affinity: {{podAffinity: {{{rule}}}}}}}}}"
    found = children(own, "spec.learner.topologyKey=example.com/rack")
    (terms,) = pod(found)["spec"]["affinity"]["podAffinity"].values()
    assert [each["topologyKey"] for each in terms] == ["zone", "example.com/rack"]
    match = terms[1]["labelSelector"]["matchLabels"]
    assert (match[Label.SLOT], match[Label.JOB_UID]) == ("us-east-0", "job-uid")
    fits = [match.items() <= pod(found, name)["metadata"]["labels"].items() for name in SETS]
    assert fits == [True, False, False]


# ---------------------------------------------------------------- manifests


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ((f"metadata.name={'a' * 40}", TWO), "metadata.name"),
        ((TWO, "spec.learner.hostsMin=3"), "spec.learner.hostsMin"),
        (("spec.learner.topologyKey=rack",), "spec.learner.topologyKey"),
    ],
)
def test_what_does_not_fit_several_hosts_is_refused(changes: tuple[str, ...], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        job(*changes)
    assert caught.value.field == field


def test_a_name_of_46_characters_with_its_region_is_taken_and_fits_a_label() -> None:
    regions = "spec.regions=[{name: us-east, learners: 1000}, {name: eu-west}]"
    of = job(f"metadata.name={'a' * 39}", TWO, regions, "spec.sync.quorum=1")
    longest = max(len(name) for name in learner_sets(of))
    assert longest + len("-0123456789") <= 63  # controller-revision-hash, a label of each pod
    assert len(hosts_set(of.name, slot_name("us-east", 999))) == longest


# ---------------------------------------------------------------- counts

NOT_READY, GOING = {"ready": False}, {"terminating": True}


@pytest.mark.parametrize(
    ("pods", "needed", "ready"),
    [
        ([("us-0", 0, {}), ("us-0", 1, {})], 2, 1),
        ([("us-0", 0, {}), ("us-0", 1, NOT_READY)], 2, 0),
        ([("us-0", 0, {}), ("us-0", 1, GOING)], 2, 0),
        ([("us-0", 0, {}), ("us-1", 0, {})], 2, 0),
        ([("us-0", 0, {}), ("us-1", 0, {})], 1, 2),
        ([("us-0", 1, {}), ("us-0", 2, {})], 2, 0),
        ([("us-0", 0, {}), ("ap-0", 0, {})], 1, 1),  # this region is not served
    ],
)
def test_a_learner_is_ready_when_the_hosts_that_it_needs_are(
    pods: list[tuple[str, int, dict[str, Any]]], needed: int, ready: int
) -> None:
    found = [
        Pod(
            name=f"tiny-{slot}-{number}", uid=f"{slot}/{number}", region=slot[:2],
            role=LEARNER_ROLE, ordinal=int(slot[3:]), host=number, has_own_set=True,
            **{"ready": True, **more},
        )
        for slot, number, more in pods
    ]  # fmt: skip
    assert ready_by_region(found, ["us"], needed) == {"us": ready}


def test_replacements_of_all_sets_of_a_region_are_its_own() -> None:
    live = {
        name: Workload(
            name=name, kind="StatefulSet", replicas=2, observed=True, template="",
            replaced={index: Replaced(count=count) for index, count in enumerate(each)},
        )
        for name, each in zip(SETS, ([1, 2], [3], [4]), strict=True)
    }  # fmt: skip
    assert replaced_by_region(job(TWO), live) == {"us-east": 6, "eu-west": 4}


@pytest.mark.parametrize(("quorum", "pods"), [(1, 4), (2, 2), (3, 2)])
def test_a_drain_may_take_all_hosts_of_the_learners_that_the_quorum_can_spare(
    quorum: int, pods: int
) -> None:
    spec = children(f"spec.sync.quorum={quorum}")["PodDisruptionBudget", "tiny-learner"]["spec"]
    assert spec["maxUnavailable"] == pods
