"""Every learner gets GPUs of its own, and what does not fit is refused with the numbers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from atoll_operator.api.manifest import from_object
from atoll_operator.api.spec import Job
from atoll_operator.local import gpus, plan
from atoll_operator.local.gpus import Found, find, listed, visible
from atoll_protos.errors import SpecError

WHOLE = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb2222-0000)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cccc3333-0000)
"""
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111)
  MIG 3g.20gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb2222-0000)
"""
FOUR = Found(devices=("0", "1", "2", "3"), source="")


def job(
    limit: object = None,
    of_b: object = None,
    evaluator: object = None,
    env: Sequence[dict[str, str]] = (),
    command: Sequence[str] = (),
) -> Job:
    """Two learners in region a and one in b, with these limits of nvidia.com/gpu."""

    def container(count: object) -> dict[str, object]:
        own = {"name": "x", "command": list(command), "env": list(env)}
        return {**own, **({} if count is None else resources(count))}

    def resources(count: object) -> dict[str, object]:
        return {"resources": {"limits": {"nvidia.com/gpu": count}}}

    def template(count: object) -> dict[str, object]:
        return {"template": {"spec": {"containers": [container(count)]}}}

    b = {"name": "b", **({} if of_b is None else {"podOverrides": resources(of_b)})}
    spec = {
        "steps": 10,
        "learner": template(limit),
        "regions": [{"name": "a", "learners": 2}, b],
        "syncer": {"shards": 2},
        **({} if evaluator is None else {"evaluator": template(evaluator)}),
    }
    document = {"metadata": {"name": "x"}, "spec": spec}
    return from_object(document)


def test_every_learner_gets_gpus_of_its_own_and_shards_see_none() -> None:
    assert gpus.assign(job(1), FOUR) == {
        **{"a-0": "0", "a-1": "1", "b-0": "2"},
        **{"shard-0": "", "shard-1": "", "evaluator": ""},
    }


def test_a_region_may_ask_for_another_number_and_the_evaluator_for_its_own() -> None:
    found = gpus.assign(job(1, of_b="2"), FOUR)
    assert [found[name] for name in ("a-0", "a-1", "b-0")] == ["0", "1", "2,3"]
    assert gpus.assign(job(1, evaluator=1), FOUR)["evaluator"] == "3"


def test_a_job_that_asks_for_none_keeps_the_variables_that_it_has() -> None:
    assert gpus.assign(job(), FOUR) == {}
    planned = plan.processes(job(), Path("/out"), (1, 2), {}, new=True)
    assert not [each for each in planned if plan.VISIBLE in each.env]


def test_learners_of_a_job_that_asks_for_0_see_none() -> None:
    assert set(gpus.assign(job(0), Found(devices=(), source="")).values()) == {""}


def test_what_is_assigned_is_in_each_process_and_a_containers_own_value_wins() -> None:
    asking = job(1)
    processes = plan.processes(asking, Path("/o"), (1, 2), gpus.assign(asking, FOUR), new=True)
    assert {each.name: each.env[plan.VISIBLE] for each in processes} == {
        **{"shard-0": "", "shard-1": ""},
        **{"a-0": "0", "a-1": "1", "b-0": "2"},
    }
    own = job(1, env=[{"name": plan.VISIBLE, "value": "7"}])
    processes = plan.processes(own, Path("/o"), (1, 2), gpus.assign(own, FOUR), new=True)
    assert {each.env[plan.VISIBLE] for each in processes if each.role == "learner"} == {"7"}


def test_more_learners_than_gpus_are_refused_with_the_numbers() -> None:
    two = Found(devices=("4", "5"), source="CUDA_VISIBLE_DEVICES=4,5")
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


def test_gpus_are_named_by_index_and_parts_of_a_divided_one_by_uuid() -> None:
    assert [name for name, _ in listed(WHOLE)] == ["0", "1", "2"]
    assert [name for name, _ in listed(DIVIDED)] == ["MIG-1111", "MIG-2222", "GPU-bbbb2222-0000"]
    assert listed("") == ()


@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        ("", ()),
        ("-1", ()),
        ("2,0", ("2", "0")),
        ("0, 1", ("0", "1")),
        ("1,-1,0", ("1",)),
        ("0,7,1", ("0",)),
        ("GPU-bbbb2222", ("GPU-bbbb2222",)),
        ("GPU-eeee,0", ()),
        ("MIG-1111,MIG-2222", ("MIG-1111", "MIG-2222")),
        ("NoDevFiles", ()),
    ],
)
def test_the_variable_of_atoll_run_is_read_as_cuda_reads_it(
    variable: str, devices: tuple[str, ...]
) -> None:
    assert visible(variable, listed(WHOLE)) == devices


def test_without_a_list_of_the_gpus_the_variable_is_believed() -> None:
    assert visible("0,7,GPU-x", ()) == ("0", "7", "GPU-x")


def machine(folder: Path, script: str, **variables: str) -> dict[str, str]:
    """The variables of a machine whose nvidia-smi is this shell script."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", **variables}


def test_the_gpus_of_a_machine_are_those_that_nvidia_smi_lists(tmp_path: Path) -> None:
    listing = f"[ \"$1\" = -L ] && cat <<'END'\n{WHOLE}END"
    assert find(machine(tmp_path, listing)).devices == ("0", "1", "2")
    chosen = find(machine(tmp_path, listing, CUDA_VISIBLE_DEVICES="2,9"))
    assert chosen == Found(devices=("2",), source="CUDA_VISIBLE_DEVICES=2,9")


def test_why_no_gpu_is_found_is_said(tmp_path: Path) -> None:
    broken = find(machine(tmp_path, "echo Driver not loaded; exit 9"))
    assert broken == Found(devices=(), source="nvidia-smi: Driver not loaded")
    assert find({"PATH": str(tmp_path / "nothing")}).source == "there is no nvidia-smi"
    with pytest.raises(SpecError, match="has 0 \\(nvidia-smi: Driver not loaded\\)"):
        gpus.assign(job(1), broken)


def test_the_driver_is_asked_only_where_its_answer_matters() -> None:
    alone = from_object(
        {"metadata": {"name": "x"}, "spec": {"steps": 1, "regions": [{"name": "a"}]}}
    )
    assert not gpus.matter(alone)
    assert gpus.matter(job())
    assert gpus.matter(job(1))


def test_learners_that_share_gpus_although_there_are_enough_are_told() -> None:
    assert "--gpus-per-learner 1" in gpus.advice(job(), FOUR)
    assert gpus.advice(job(1), FOUR) == ""
    assert gpus.advice(job(), Found(devices=("0", "1"), source="")) == ""


def test_learners_of_several_processes_are_told_to_have_a_gpu_for_each() -> None:
    env = [{"name": "PET_NPROC_PER_NODE", "value": "2"}]
    launched = job(env=env, command=["atoll-worker", "launch", "--", "train.py"])
    six = Found(devices=tuple("012345"), source="")
    assert "--gpus-per-learner 2 gives" in gpus.advice(launched, six)
    assert gpus.advice(launched, FOUR) == ""


def test_each_host_of_a_learner_has_gpus_of_its_own() -> None:
    asking = job(1)
    several = asking.spec.learner.model_copy(update={"hosts": 2})
    asking = asking.model_copy(update={"spec": asking.spec.model_copy(update={"learner": several})})
    names = [name for slot in asking.spec.slots for _, name in plan.hosts_of(asking, slot)]
    six = Found(devices=tuple(map(str, range(6))), source="")
    found = gpus.assign(asking, six)
    assert [found[name] for name in names] == [str(number) for number in range(len(names))]
    assert asking.spec.slots[0] not in found
