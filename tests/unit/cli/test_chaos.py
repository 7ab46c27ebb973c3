"""`atoll chaos` prints a plan in the words of Chaos Mesh, for the pods that the operator makes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from atoll_operator import cli
from atoll_operator.kube import names
from atoll_operator.kube.plan.owner import JobOwner
from atoll_operator.local.chaos.plan import drawn, read
from atoll_protos.errors import SpecError
from atoll_protos.names import Label

PLAN = """
seed: 3
faults:
  - {at: 2s, kill: eu-west-1}
  - {every: 20s..40s, until: 5m, kill: any}
  - {at: 8s, pause: eu-west-0, for: 2s}
  - {at: 11s, slowCpu: any learner, to: 30%, for: 90s}
  - {at: 15s, cut: [eu-west-0, shard-1], for: 2m}
  - {at: 18s, delay: 80ms, of: [eu-west-0, any], for: 2s}
  - {at: 18s, rate: 2MB/s, of: [any, shard-1], for: 2s}
  - {at: 22s, corrupt: 1 of 500, of: [eu-west-0, shard-1], for: 2s}
  - {at: 23s, fillDisk: any, for: 2s}
  - {at: 25s, loseStore: shard-1, for: 500ms}
  - {at: 30s, flipByte: shard-1}
"""
# Those fields of PodChaosSpec, StressChaosSpec, NetworkChaosSpec and IOChaosSpec that are used, as
# Chaos Mesh 2.8 has them: api/v1alpha1 and config/crd/bases of github.com/chaos-mesh/chaos-mesh.
TARGET: dict[str, Any] = {"mode": "one|all", "selector": {"labelSelectors": dict}}
DISK = TARGET | {"action": "fault", "volumePath": "/data", "percent": int, "errno": int}
LINK = TARGET | {"direction": "both", "target": TARGET}
RATE = {"rate": r"\d+bps", "limit": int, "buffer": int}
SHAPES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "PodChaos": ("podChaos", [TARGET | {"action": "pod-kill"}]),
    "StressChaos": (
        "stressChaos",
        [TARGET | {"stressors": {"cpu": {"workers": int, "load": int}}}],
    ),
    "NetworkChaos": (
        "networkChaos",
        [
            LINK | {"action": "partition"},
            LINK | {"action": "delay", "delay": {"latency": r"[0-9]+(\.[0-9]+)?(ms|s)"}},
            LINK
            | {
                "action": "bandwidth",
                "bandwidth": {"rate": r"\d+bps", "limit": int, "buffer": int},
            },
            LINK | {"action": "corrupt", "corrupt": {"corrupt": r"[0-9.]+"}},
        ],
    ),
    "IOChaos": ("ioChaos", [DISK, DISK | {"methods": list}]),
}


def has_shape(value: Any, shape: Any) -> bool:
    if isinstance(shape, dict):
        keys = value.keys() - {"expressionSelectors"}
        return keys == shape.keys() and all(has_shape(value[each], shape[each]) for each in keys)
    if isinstance(shape, type):
        return isinstance(value, shape)
    return re.fullmatch(shape, value) is not None


def printed(tmp_path: Path, plan: str, *words: str) -> Result:
    (tmp_path / "plan.yaml").write_text(plan)
    return CliRunner().invoke(cli.app, ["chaos", str(tmp_path / "plan.yaml"), *words])


def templates(found: Result) -> dict[str, dict[str, Any]]:
    workflow = yaml.safe_load(found.stdout)
    return {each["name"]: each for each in workflow["spec"]["templates"]}


def test_a_plan_becomes_one_workflow_in_the_shapes_of_chaos_mesh(tmp_path: Path) -> None:
    found = printed(tmp_path, PLAN, "--job", "tiny", "-n", "here")
    workflow = yaml.safe_load(found.stdout)
    assert workflow["apiVersion"] == "chaos-mesh.org/v1alpha1"
    assert workflow["kind"] == "Workflow"
    assert workflow["metadata"] == {"name": "tiny-chaos", "namespace": "here"}
    assert "&id" not in found.stdout
    named = templates(found)
    assert len(named) == len(workflow["spec"]["templates"])
    entry = named.pop(workflow["spec"]["entry"])
    assert entry["templateType"] == "Parallel"
    for step in entry["children"]:
        serial = named.pop(step)
        wait, fault = (named.pop(each) for each in serial["children"])
        assert (serial["templateType"], wait["templateType"]) == ("Serial", "Suspend")
        field, shapes = SHAPES[fault["templateType"]]
        assert fault.keys() == {"name", "templateType", "deadline", field}
        assert any(has_shape(fault[field], shape) for shape in shapes), fault
        assert all(re.fullmatch(r"[0-9.]+s", each["deadline"]) for each in (wait, fault))
    assert not named
    assert found.stderr.splitlines() == [
        "plan.faults[2]: Chaos Mesh has no word for pause",
        "plan.faults[10]: Chaos Mesh has no word for flipByte",
    ]


def test_amounts_and_times_are_those_of_the_plan(tmp_path: Path) -> None:
    named = templates(printed(tmp_path, PLAN, "--job", "tiny"))
    assert named["fault-3-0-slowcpu"]["deadline"] == "90s"
    assert named["fault-3-0-slowcpu"]["stressChaos"]["stressors"]["cpu"]["load"] == 70
    assert named["fault-5-0-delay"]["networkChaos"]["delay"]["latency"] == "80ms"
    assert named["fault-6-0-rate"]["networkChaos"]["bandwidth"]["rate"] == "2000000bps"
    assert named["fault-7-0-corrupt"]["networkChaos"]["corrupt"]["corrupt"] == "0.2"
    assert named["fault-9-0-losestore"]["deadline"] == "0.5s"
    here = drawn(read(PLAN), ["eu-west-0", "eu-west-1"], ["shard-0", "shard-1"], "")
    waits = [each for name, each in named.items() if name.endswith("-wait")]
    times = [f"{each.at:.3f}s" for each in here if each.word not in ("pause", "flipByte")]
    assert sorted(each["deadline"] for each in waits) == sorted(times)


def test_a_target_is_selected_by_labels_that_its_pods_have(tmp_path: Path) -> None:
    owner = JobOwner(namespace="here", name="tiny", uid="123")
    learner = owner.labels(names.LEARNER_ROLE, **{Label.REGION: "eu-west"})
    pod = learner | {names.POD_INDEX_LABEL: "1"}
    host = learner | {Label.SLOT: "eu-west-1"}
    shard = owner.labels(names.SHARD_ROLE, **{Label.SHARD: "1"})
    named = templates(printed(tmp_path, PLAN, "--job", "tiny"))
    hosts = templates(printed(tmp_path, PLAN, "--job", "tiny", "--hosts"))
    kill, cut = named["fault-0-0-kill"]["podChaos"], named["fault-4-0-cut"]["networkChaos"]
    anyone = named["fault-1-0-kill"]["podChaos"]
    of_hosts = hosts["fault-0-0-kill"]["podChaos"]
    some = named["fault-3-0-slowcpu"]["stressChaos"]
    disk = named["fault-8-0-filldisk"]["ioChaos"]
    for chosen, labels, mode in [
        (kill, pod, "all"),
        (of_hosts, host, "all"),
        (cut["target"], shard, "all"),
        (some, learner, "one"),
        (disk, shard, "one"),
        (anyone, shard, "one"),
    ]:
        assert chosen["selector"]["labelSelectors"].items() <= labels.items()
        assert chosen["mode"] == mode
    assert kill["selector"]["labelSelectors"][names.POD_INDEX_LABEL] == "1"
    assert of_hosts["selector"]["labelSelectors"][Label.SLOT] == "eu-west-1"
    assert cut["target"]["selector"]["labelSelectors"][Label.SHARD] == "1"
    assert disk["selector"]["labelSelectors"][Label.ROLE] == names.SHARD_ROLE
    (roles,) = anyone["selector"]["expressionSelectors"]
    assert (roles["key"], roles["operator"]) == (Label.ROLE, "In")
    assert {*roles["values"]} == {names.LEARNER_ROLE, names.SHARD_ROLE}


def test_the_second_process_of_a_shard_has_a_label_of_its_own(tmp_path: Path) -> None:
    plan = "faults: [{at: 1s, kill: shard-1-b}]"
    named = templates(printed(tmp_path, plan, "--job", "tiny"))
    chosen = named["fault-0-0-kill"]["podChaos"]["selector"]["labelSelectors"]
    assert (chosen[Label.SHARD], chosen[Label.PROCESS]) == ("1", "b")


@pytest.mark.parametrize(
    ("plan", "job", "said"),
    [
        (PLAN, "Not_a_name", "--job: 'Not_a_name' is not the name of a job"),
        ("faults: [{at: 1s, kill: one}]", "tiny", "plan.faults[0].kill: 'one' is no slot; name it"),
        ("faults: [{at: 1s, kil: any}]", "tiny", "plan.faults[0].kil: is unknown; did you mean"),
        ("faults: [{at: 1s, truncate: any}]", "tiny", "has no word for any of its faults; use"),
    ],
)
def test_what_cannot_be_printed_is_said(plan: str, job: str, said: str, tmp_path: Path) -> None:
    found = printed(tmp_path, plan, "--job", job)
    assert isinstance(found.exception, SpecError)
    assert said in str(found.exception)
    assert found.stdout == ""
