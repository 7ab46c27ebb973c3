"""Every learner gets GPUs of its own, and what does not fit is refused with the numbers."""

from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.spec import Job
from atoll_operator.local import gpus, process_plan
from atoll_operator.local.gpus import VisibleGpus, find
from atoll_protos.errors import SpecError

WHOLE = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb2222-0000)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cccc3333-0000)
"""


def visible(count: int) -> VisibleGpus:
    return VisibleGpus(devices=tuple(map(str, range(count))), source="")


FOUR = visible(4)


def template(count: object, **own: object) -> dict[str, object]:
    """Of a container with this limit of nvidia.com/gpu."""
    limits = {} if count is None else resources(count)
    return {"template": {"spec": {"containers": [{"name": "x", **own, **limits}]}}}


def resources(count: object) -> dict[str, object]:
    return {"resources": {"limits": {"nvidia.com/gpu": count}}}


def job(
    limit: object = None, of_b: object = None, evaluator: object = None, hosts: int = 1, **own: Any
) -> Job:
    """Two learners in region a and one in b, with these limits of nvidia.com/gpu."""
    b = {"name": "b", **({} if of_b is None else {"podOverrides": resources(of_b)})}
    spec = {
        "steps": 10,
        "learner": {**template(limit, **own), "hosts": hosts},
        "regions": [{"name": "a", "learners": 2}, b],
        "syncer": {"shards": 2},
        **({} if evaluator is None else {"evaluator": template(evaluator)}),
    }
    return from_object({"metadata": {"name": "x"}, "spec": spec})


def test_a_region_may_ask_for_another_number_and_the_evaluator_for_its_own() -> None:
    found = gpus.assign(job(1, of_b="2"), FOUR)
    assert [found[name] for name in ("a-0", "a-1", "b-0")] == ["0", "1", "2,3"]
    assert gpus.assign(job(1, evaluator=1), FOUR)["evaluator"] == "3"
    found = gpus.assign(asking := job(1, hosts=2), visible(6))
    names = [name for slot in asking.spec.slots for _, name in process_plan.hosts_of(asking, slot)]
    assert [found[name] for name in names] == [str(number) for number in range(len(names))]
    assert asking.spec.slots[0] not in found


def test_what_is_assigned_is_in_each_process_and_a_containers_own_value_wins() -> None:
    shards, learners = {"shard-0": "", "shard-1": ""}, {"a-0": "0", "a-1": "1", "b-0": "2"}
    assert devices(job(1)) == shards | learners
    own = devices(job(1, env=[{"name": process_plan.VISIBLE, "value": "7"}]))
    assert {own[slot] for slot in learners} == {"7"}
    assert set(devices(job()).values()) == {None}  # who asks for none keeps the variable
    assert set(devices(job(0)).values()) == {""}  # which is to see none


ENDPOINTS = ("127.0.0.1:1", "127.0.0.1:2")


def devices(asking: Job) -> dict[str, str | None]:
    assigned = gpus.assign(asking, FOUR)
    planned = process_plan.processes(asking, Path("/o"), ENDPOINTS, assigned, new=True)
    return {each.name: each.env.get(process_plan.VISIBLE) for each in planned}


def test_more_learners_than_gpus_are_refused_with_the_numbers() -> None:
    two = VisibleGpus(devices=("4", "5"), source="CUDA_VISIBLE_DEVICES=4,5")
    with pytest.raises(SpecError) as refused:
        gpus.assign(job(1), two)
    words = str(refused.value)
    assert "3 learners with 1 GPU each need 3, and this machine has 2" in words
    assert "CUDA_VISIBLE_DEVICES=4,5" in words
    assert "--gpus-per-learner 0" in words


@pytest.mark.parametrize("value", ["one", 1.5, True, -1])
def test_a_number_of_gpus_that_is_none_is_named(value: object) -> None:
    with pytest.raises(SpecError, match=r"nvidia\.com/gpu: must be a whole number"):
        gpus.assign(job(value), FOUR)


@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        ("", ()),
        ("-1", ()),
        ("2,0", ("2", "0")),
        ("0, 1", ("0", "1")),
        ("1,-1,0", ("1",)),
        ("MIG-1111,GPU-bbbb2222", ("MIG-1111", "GPU-bbbb2222")),
    ],
)
def test_the_variable_of_atoll_run_names_its_gpus(variable: str, devices: tuple[str, ...]) -> None:
    assert find({process_plan.VISIBLE: variable}).devices == devices


def machine(folder: Path, script: str) -> dict[str, str]:
    """The variables of a machine whose nvidia-smi is this shell script."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_the_gpus_of_a_machine_are_those_that_nvidia_smi_lists(tmp_path: Path) -> None:
    listing = f"[ \"$1\" = -L ] && cat <<'END'\n{WHOLE}END"
    assert find(machine(tmp_path, listing)).devices == ("0", "1", "2")
    broken = find(machine(tmp_path, "echo Driver not loaded; exit 9"))
    with pytest.raises(SpecError, match="has 0 \\(nvidia-smi: Driver not loaded\\)"):
        gpus.assign(job(1), broken)
    assert find({"PATH": str(tmp_path / "nothing")}).source == "there is no nvidia-smi"
    spec = {"steps": 1, "regions": [{"name": "a"}]}  # it is asked only where its answer matters
    assert not gpus.matter(from_object({"metadata": {"name": "x"}, "spec": spec}))
    assert gpus.matter(job())
    assert gpus.matter(job(1))


TWO_PROCESSES: dict[str, Any] = {
    "env": [{"name": "PET_NPROC_PER_NODE", "value": "2"}],
    "command": ["atoll-worker", "launch", "--", "train.py"],
}


@pytest.mark.parametrize(
    ("asking", "count", "said"),
    [
        (job(), 4, "--gpus-per-learner 1"),
        (job(1), 4, ""),
        (job(), 2, ""),
        (job(**TWO_PROCESSES), 6, "--gpus-per-learner 2 gives"),
        (job(**TWO_PROCESSES), 4, ""),
    ],
)
def test_who_shares_gpus_although_there_are_enough_is_told(
    asking: Job, count: int, said: str
) -> None:
    advice = gpus.advice(asking, visible(count))
    assert said in advice
    assert bool(said) == bool(advice)
