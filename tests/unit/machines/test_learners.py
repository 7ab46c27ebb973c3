"""The learners of a machine as processes: command, GPUs, variables, and where they dial."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoll_operator.local.process_plan import VISIBLE
from atoll_operator.machines.bundle import Bundle
from atoll_operator.machines.joined import learners
from atoll_operator.machines.joined.learners import Wanted, check_command, dialled, planned
from atoll_protos.environment import Env, Torchrun
from atoll_protos.errors import SpecError

CONTAINER = """{"command": ["python", "of_the_job.py"], "args": ["--lr=1"],
"env": [{"name": "WHERE", "value": "$(ATOLL_SLOT)"}],
"resources": {"limits": {"nvidia.com/gpu": 1}}}"""
MACHINE = Bundle(
    job="tiny",
    server="10.0.0.1:7700",
    name="house",
    wanted="house",
    region="eu",
    slots=("eu-0", "eu-1"),
    endpoints=("10.0.0.1:7701",),
    container=CONTAINER,
)


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "4,5,6,7")


def test_each_slot_is_a_process_of_the_jobs_command_with_its_own_gpus(tmp_path: Path) -> None:
    first, second = planned(tmp_path, MACHINE, Wanted())
    assert (first.name, second.name) == ("eu-0", "eu-1")
    assert first.command == ("python", "of_the_job.py", "--lr=1")
    assert (first.env[VISIBLE], second.env[VISIBLE]) == ("4", "5")
    assert second.env["WHERE"] == "eu-1"
    assert first.env[Env.TLS_DIR] == str(tmp_path / "tls")
    assert first.env[Env.ENDPOINTS] == "10.0.0.1:7701"
    assert first.folder == ""


def test_what_the_person_says_there_comes_before_the_manifest(tmp_path: Path) -> None:
    wanted = Wanted(command=("train.py", "--lr=2"), gpus=2, processes=2)
    first, second = planned(tmp_path, MACHINE, wanted)
    assert first.command[-3:] == ("python", "train.py", "--lr=2")
    assert "launch" in first.command
    assert first.env[Torchrun.PROCESSES] == "2"
    assert (first.env[VISIBLE], second.env[VISIBLE]) == ("4,5", "6,7")
    alone = planned(tmp_path, replace(MACHINE, container="{}"), Wanted())
    assert alone[0].command[0] == sys.executable
    assert VISIBLE not in alone[0].env


def test_a_script_that_is_not_here_is_refused_before_a_slot_is_taken() -> None:
    with pytest.raises(SpecError, match=r"there is no file no\.py in "):
        check_command(Wanted(command=("no.py",)), 1)
    check_command(Wanted(), 2)
    with pytest.raises(SpecError, match="2 with 3 each, and this machine has 4"):
        check_command(Wanted(command=("python", "-c", "0"), gpus=3), 2)


def test_a_host_that_is_left_out_is_the_one_that_is_dialled() -> None:
    assert dialled([":7701", "198.51.100.1:7702"], "house.example:7700") == (
        "house.example:7701",
        "198.51.100.1:7702",
    )
    assert dialled([":7701"], "[fd00::1]:7700") == ("[fd00::1]:7701",)


HOST = replace(MACHINE, slots=("eu-0",), host=1, hosts=3, hosts_min=2)


def test_a_host_of_a_learner_is_a_launcher_that_meets_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "environment", lambda _: {learners.GLOO: "eth7"})
    wanted = Wanted(command=("train.py", "--lr=2"), gpus=2)
    (one,) = planned(tmp_path, HOST, wanted, "10.0.0.2:29400")
    assert one.command == (
        "python",
        "-m",
        "atoll_worker",
        "launch",
        "--",
        "python",
        *wanted.command,
    )
    assert (one.name, one.whole, one.host, one.hosts_needed) == ("eu-0-1", "eu-0", 1, 2)
    assert (one.env[Env.HOST], one.env[Env.HOSTS], one.env[Env.SLOT]) == ("1", "3", "eu-0")
    assert (one.env[Torchrun.ENDPOINT], one.env[Torchrun.NODES]) == ("10.0.0.2:29400", "2:3")
    assert (one.env[Torchrun.PROCESSES], one.env[learners.GLOO]) == ("2", "eth7")
    (several,) = planned(tmp_path, HOST, Wanted(processes=4), "10.0.0.2:29400")
    assert several.env[Torchrun.PROCESSES] == "4"


def test_host_0_says_where_the_others_meet_it() -> None:
    first = replace(HOST, host=0, server="127.0.0.1:7700")
    assert learners.place_of(first) == "127.0.0.1:29400"
    assert learners.place_of(replace(first, rendezvous="lab:4000")) == "lab:4000"
    assert learners.place_of(HOST) == ""
    assert learners.place_of(replace(HOST, rendezvous="lab:4000")) == "lab:4000"


def test_gloo_takes_the_interface_on_the_way_to_host_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(learners.GLOO, raising=False)
    assert learners.environment("127.0.0.1:29400") == {learners.GLOO: "lo"}
    assert learners.interface_of("203.0.113.9") == ""
    monkeypatch.setenv(learners.GLOO, "eth0")
    assert learners.environment("127.0.0.1:29400") == {}


def test_a_script_of_ones_own_is_not_loaded_beside_code_that_the_server_names(
    tmp_path: Path,
) -> None:
    loads = ("PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "PATH", "BASH_ENV", "ENV")
    names = (*loads, "HF_TOKEN", "ENVIRONMENT")
    variables = ", ".join(f'{{"name": "{name}", "value": "of-the-server"}}' for name in names)
    machine = replace(MACHINE, container=f'{{"command": ["x"], "env": [{variables}]}}')
    for command, kept in (((), names), (("own.py",), names[len(loads) :])):
        (learner, _) = planned(tmp_path, machine, Wanted(command=command, gpus=0))
        assert [name for name in names if learner.env.get(name) == "of-the-server"] == [*kept]
