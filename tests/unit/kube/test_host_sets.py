"""Learners of several hosts: their objects, what their pods find, and how they are counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.api.manifest import parse
from atoll_operator.kube.names import LEARNER_ROLE, Annotation, hosts_set, learner_sets
from atoll_operator.kube.objects import excluded_nodes, key_of
from atoll_operator.kube.observation import Pod, Replaced, Workload
from atoll_operator.kube.plan.exclusions import Exclusions
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.status import ready_by_region, replaced_by_region
from atoll_protos.environment import Env, default
from atoll_protos.errors import SpecError
from atoll_protos.names import STARTED_PATH, Label, slot_name
from atoll_worker.launcher.health import START_SECONDS_MAX
from unit.kube.cluster_values import MANIFEST, job
from unit.kube.cluster_values import children as builder
from unit.kube.planner_side import applied, planned, seen

Objects = dict[tuple[str, str], dict[str, Any]]
TWO = "spec.learner.hosts=2"
ONE = "tiny-us-east"  # the set of learners of one host
SETS = ("tiny-us-east-0", "tiny-us-east-1", "tiny-eu-west-0")


def children(*changes: str, **more: Any) -> Objects:
    return {key_of(each): each for each in builder(TWO, *changes, **more).objects()}


def pod(found: Objects, name: str = SETS[0]) -> dict[str, Any]:
    inner: dict[str, Any] = found["StatefulSet", name]["spec"]["template"]
    return inner


def container(*changes: str, name: str = SETS[0]) -> dict[str, Any]:
    inner: dict[str, Any] = pod(children(*changes), name)["spec"]["containers"][0]
    return inner


def variables(*changes: str, name: str = SETS[0]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in container(*changes, name=name)["env"]}


def running(text: str) -> str:
    return f"spec.learner.template={{spec: {{containers: [{text}]}}}}"


# ---------------------------------------------------------------- objects


def test_each_learner_is_a_statefulset_with_a_service_of_its_own() -> None:
    found = children()
    for kind in ("StatefulSet", "Service"):
        own = {name for each, name in found if each == kind and "syncer" not in name}
        assert own == set(SETS)
    assert {found["StatefulSet", name]["spec"]["replicas"] for name in SETS} == {2}
    assert ("StatefulSet", "tiny-us-east") not in found


def test_a_set_and_its_service_select_the_pods_of_one_learner() -> None:
    found = children()
    for name in SETS:
        slot = name.removeprefix("tiny-")
        labels = pod(found, name)["metadata"]["labels"]
        assert labels[Label.SLOT] == found["StatefulSet", name]["metadata"]["labels"][Label.SLOT]
        assert labels[Label.SLOT] == slot
        for match in (
            found["StatefulSet", name]["spec"]["selector"]["matchLabels"],
            found["Service", name]["spec"]["selector"],
        ):
            assert match[Label.SLOT] == slot
            assert match.items() <= labels.items()


def test_hosts_are_found_before_they_are_ready_and_start_together() -> None:
    found = children()
    assert found["Service", SETS[0]]["spec"]["publishNotReadyAddresses"] is True
    assert found["Service", SETS[0]]["spec"]["clusterIP"] == "None"
    spec = found["StatefulSet", SETS[0]]["spec"]
    assert (spec["podManagementPolicy"], spec["serviceName"]) == ("Parallel", SETS[0])
    assert spec["updateStrategy"] == {"type": "OnDelete"}


def test_another_number_of_learners_makes_and_takes_whole_sets_and_restarts_none() -> None:
    few, many = children(), children("spec.regions=[{name: us-east, learners: 4}, {name: eu-west}]")
    assert many.keys() - few.keys() == {
        (kind, f"tiny-us-east-{number}") for kind in ("StatefulSet", "Service") for number in (2, 3)
    } | {key for key in many.keys() - few.keys() if key[0] == "ConfigMap"}
    for name in SETS:
        marks = [
            pod(each, name)["metadata"]["annotations"][Annotation.TEMPLATE] for each in (few, many)
        ]
        assert marks[0] == marks[1]


MANY = "spec.regions=[{name: us-east, learners: 4}, {name: eu-west, learners: 3}]"


@pytest.mark.parametrize("suspended", [False, True])
def test_the_sets_of_a_region_are_tried_once_before_a_job_begins(suspended: bool) -> None:
    found = planned(seen(TWO, MANY, f"spec.suspend={str(suspended).lower()}", children=[]))
    tried = [each["metadata"]["name"] for each in found.check if each["kind"] == "StatefulSet"]
    assert tried == ["tiny-us-east-0", "tiny-eu-west-0"]


def test_the_sets_of_learners_that_are_no_longer_asked_for_are_deleted() -> None:
    found = planned(seen(TWO, children=applied(TWO, MANY)))
    gone = {(each.kind, each.name) for each in found.prune if each.kind != "ConfigMap"}
    assert gone == {
        (kind, f"tiny-{slot}")
        for kind in ("StatefulSet", "Service")
        for slot in ("us-east-2", "us-east-3", "eu-west-1", "eu-west-2")
    }


def test_no_host_runs_while_the_job_is_suspended() -> None:
    still = Running(learners=False, shards=False, evaluator=False)
    found = children(running=still)
    assert {found["StatefulSet", name]["spec"]["replicas"] for name in SETS} == {0}


def test_a_lost_node_is_excluded_by_the_set_that_has_lost_a_host() -> None:
    lost = Exclusions(nodes={SETS[0]: ("n1",)}, replaced={SETS[0]: "{}x"})
    found = children(exclusions=lost)
    assert [excluded_nodes(pod(found, name)) for name in SETS] == [("n1",), (), ()]
    annotations = found["StatefulSet", SETS[0]]["metadata"]["annotations"]
    assert annotations[Annotation.REPLACED] == "{}x"


def test_queues_see_the_labels_of_the_template_at_each_set_and_pod() -> None:
    given = "{metadata: {labels: {kueue.x-k8s.io/queue-name: team}}}"
    found = children(f"spec.learner.template={given}")
    for name in SETS:
        for labels in (
            found["StatefulSet", name]["metadata"]["labels"],
            pod(found, name)["metadata"]["labels"],
        ):
            assert labels["kueue.x-k8s.io/queue-name"] == "team"


def test_a_scheduler_sees_the_annotations_of_the_template_at_each_set() -> None:
    mark = "scheduling.volcano.sh/group-min-member"
    found = children(f"spec.learner.template={{metadata: {{annotations: {{{mark}: '2'}}}}}}")
    for name in SETS:
        annotations = found["StatefulSet", name]["metadata"]["annotations"]
        assert annotations[mark] == pod(found, name)["metadata"]["annotations"][mark] == "2"
        assert Annotation.RUN_HASH not in annotations


def test_learners_of_one_host_are_as_they_were() -> None:
    assert list(builder("spec.learner.hosts=1").objects()) == list(builder().objects())


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
    found = learner_sets(of)
    assert len(found) == (len(regions) if hosts == 1 else sum(regions.values()))


# ---------------------------------------------------------------- what a host finds


def test_a_host_knows_its_slot_its_number_and_where_the_hosts_meet() -> None:
    env = variables()
    assert (env["ATOLL_SLOT"], env["ATOLL_REGION"], env["ATOLL_HOSTS"]) == (
        "us-east-0", "us-east", "2",
    )  # fmt: skip
    assert env["PET_RDZV_ENDPOINT"] == "tiny-us-east-0-0.tiny-us-east-0:29400"
    assert (env["PET_NNODES"], env["PET_RDZV_BACKEND"], env["PET_RDZV_ID"]) == (
        "2", "c10d", "us-east-0",
    )  # fmt: skip
    assert "ATOLL_ORDINAL" not in env
    (host,) = [each for each in container()["env"] if each["name"] == "ATOLL_HOST"]
    path = host["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['apps.kubernetes.io/pod-index']"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("{image: mine}", "1"),
        ("{resources: {limits: {nvidia.com/gpu: 8}}}", "8"),
        ("{resources: {limits: {nvidia.com/gpu: '4'}}}", "4"),
        ("{resources: {limits: {amd.com/gpu: 2, memory: 9Gi}}}", "2"),
        ("{resources: {limits: {nvidia.com/gpu: many}}}", "1"),  # the API server refuses it
        ("{resources: {limits: {cpu: 2}}, env: [{name: PET_NPROC_PER_NODE, value: '3'}]}", "3"),
    ],
)
def test_a_host_has_a_process_for_each_gpu_or_as_many_as_its_user_says(
    given: str, count: str
) -> None:
    assert variables(running(given))["PET_NPROC_PER_NODE"] == count


def test_a_region_s_own_gpus_count() -> None:
    own = "podOverrides: {resources: {limits: {nvidia.com/gpu: 2}}}"
    found = variables(
        running("{resources: {limits: {nvidia.com/gpu: 8}}}"),
        f"spec.regions=[{{name: us-east, {own}}}, {{name: eu-west}}]",
    )
    assert found["PET_NPROC_PER_NODE"] == "2"


def test_a_learner_that_may_lack_hosts_tells_torch_so() -> None:
    assert variables("spec.learner.hostsMin=1")["PET_NNODES"] == "1:2"


def test_hosts_run_the_built_in_model_or_the_user_s_command_under_the_launcher() -> None:
    launch = ["python3", "-m", "atoll_worker", "launch", "--"]
    assert container()["command"] == [
        *launch,
        "python3",
        "-m",
        "atoll_worker",
        "bytegpt.train:main",
    ]
    mine = running("{command: [python3, train.py], args: [--fast]}")
    assert container(mine)["command"] == [*launch, "python3", "train.py"]
    assert container(mine)["args"] == ["--fast"]


def test_a_command_that_starts_the_processes_itself_stays_as_it_is() -> None:
    found = container(running("{command: [torchrun, train.py]}"))
    assert found["command"] == ["torchrun", "train.py"]


@pytest.mark.parametrize("command", ["", "command: [atoll-worker, launch], args: [--, train.py]"])
def test_a_host_whose_launcher_stands_still_is_started_again_by_the_kubelet(command: str) -> None:
    found = container(running(f"{{{command}}}"))
    assert variables(running(f"{{{command}}}"))["ATOLL_HEALTH_PORT"] == "7701"
    still, start = found["livenessProbe"], found["startupProbe"]
    assert still["httpGet"] == {"path": "/", "port": 7701}
    assert start["httpGet"] == {"path": STARTED_PATH, "port": 7701}
    assert start["timeoutSeconds"] > START_SECONDS_MAX
    seconds = (still["failureThreshold"] + 1) * still["periodSeconds"]
    assert seconds < float(default(Env.RANKS_SILENCE_SECONDS))
    assert still["terminationGracePeriodSeconds"] < 10  # what is stopped hears no signal
    assert start["failureThreshold"] * start["periodSeconds"] >= 3600  # its node may be busy
    assert start["initialDelaySeconds"] >= 5  # the port is open by then, so no start is a Warning


def test_a_probe_of_the_user_stays_and_other_launchers_have_none() -> None:
    mine, other = "{livenessProbe: {tcpSocket: {port: 80}}}", "{command: [torchrun, train.py]}"
    assert container(running(mine))["livenessProbe"] == {"tcpSocket": {"port": 80}}
    for own in (mine, other):
        assert "ATOLL_HEALTH_PORT" not in variables(running(own))
        assert "startupProbe" not in container(running(own))
    assert "livenessProbe" not in container(running(other))


def test_a_user_who_names_the_port_of_the_answers_brings_the_probe() -> None:
    found = container(running("{env: [{name: ATOLL_HEALTH_PORT, value: '7801'}]}"))
    assert [v["value"] for v in found["env"] if v["name"] == "ATOLL_HEALTH_PORT"] == ["7801"]
    assert "livenessProbe" not in found


def test_a_learner_of_one_host_has_no_probe_of_ours() -> None:
    (one,) = [each for each in builder().objects() if key_of(each) == ("StatefulSet", ONE)]
    assert "livenessProbe" not in one["spec"]["template"]["spec"]["containers"][0]


def test_the_port_where_hosts_meet_is_told_beside_the_user_s_ports() -> None:
    mine = running("{ports: [{name: debug, containerPort: 5678}]}")
    found = [each["containerPort"] for each in container(mine)["ports"]]
    assert found == [5678, 29400]


def test_hosts_of_a_learner_go_to_one_value_of_the_topology_key() -> None:
    key = "spec.learner.topologyKey=example.com/rack"
    found = pod(children(key))["spec"]["affinity"]["podAffinity"]
    (term,) = found["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "example.com/rack"
    labels = pod(children(key))["metadata"]["labels"]
    match = term["labelSelector"]["matchLabels"]
    assert match.items() <= labels.items()
    assert match[Label.SLOT] == "us-east-0"
    assert match[Label.JOB_UID] == "job-uid"
    other = pod(children(key), SETS[1])["metadata"]["labels"]
    assert not match.items() <= other.items()


def test_what_the_user_requires_of_placement_stays() -> None:
    term = "{topologyKey: zone, labelSelector: {matchLabels: {app: data}}}"
    rule = f"requiredDuringSchedulingIgnoredDuringExecution: [{term}]"
    own = f"spec.learner.template={{spec: {{affinity: {{podAffinity: {{{rule}}}}}}}}}"
    found = pod(children(own, "spec.learner.topologyKey=rack"))["spec"]["affinity"]["podAffinity"]
    (terms,) = found.values()
    assert [each["topologyKey"] for each in terms] == ["zone", "rack"]


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


def host(slot: str, number: int, **more: Any) -> Pod:
    region, _, ordinal = slot.rpartition("-")
    return Pod(
        name=f"tiny-{slot}-{number}", uid=f"{slot}/{number}", role=LEARNER_ROLE, region=region,
        ordinal=int(ordinal), host=number, has_own_set=True, **{"ready": True, **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "needed", "ready"),
    [
        ([host("us-0", 0), host("us-0", 1)], 2, 1),
        ([host("us-0", 0), host("us-0", 1, ready=False)], 2, 0),
        ([host("us-0", 0), host("us-0", 1, terminating=True)], 2, 0),
        ([host("us-0", 0), host("us-1", 0)], 2, 0),
        ([host("us-0", 0), host("us-1", 0)], 1, 2),
        ([host("us-0", 1), host("us-0", 2)], 2, 0),
    ],
)
def test_a_learner_is_ready_when_the_hosts_that_it_needs_are(
    pods: list[Pod], needed: int, ready: int
) -> None:
    assert ready_by_region(pods, ["us"], needed) == {"us": ready}


def test_replacements_of_all_sets_of_a_region_are_its_own() -> None:
    def live(name: str, *counts: int) -> Workload:
        noted = {index: Replaced(count=count) for index, count in enumerate(counts)}
        return Workload(
            name=name, kind="StatefulSet", replicas=2, observed=True, applied="", template="",
            replaced=noted,
        )  # fmt: skip

    seen = {
        name: live(name, *counts) for name, counts in zip(SETS, ([1, 2], [3], [4]), strict=True)
    }
    assert replaced_by_region(job(TWO), seen) == {"us-east": 6, "eu-west": 4}


@pytest.mark.parametrize(("quorum", "pods"), [(1, 4), (2, 2), (3, 2)])
def test_a_drain_may_take_all_hosts_of_the_learners_that_the_quorum_can_spare(
    quorum: int, pods: int
) -> None:
    spec = children(f"spec.sync.quorum={quorum}")["PodDisruptionBudget", "tiny-learner"]["spec"]
    assert spec["maxUnavailable"] == pods
