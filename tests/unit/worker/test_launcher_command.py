"""The command line of the launcher, and the environment that it reads."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from atoll_protos.errors import SpecError
from atoll_worker.launcher import launch
from atoll_worker.launcher.launch import INTERFACES, THREADS, command, configuration

SET = (THREADS, *INTERFACES, "ATOLL_HOST")
TWO = ("--nnodes=2", "--rdzv-endpoint=host:1")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("PET_") or name in SET:
            monkeypatch.delenv(name)
    for name in SET:  # what is set meanwhile is undone
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_script_runs_in_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert command(["train.py", "--lr", "1"]) == [sys.executable, "-u", "train.py", "--lr", "1"]
    assert command(["python3", "-m", "train"]) == ["python3", "-m", "train"]


def test_processes_of_one_host_meet_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    found, host = configuration([])
    assert host == 0
    assert not list(tmp_path.iterdir()), "processes print through pipes of ours"
    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (1, 1, 3)
    assert [os.environ[name] for name in INTERFACES] == ["lo", "lo"]
    assert found.run_id != configuration([])[0].run_id
    assert found.max_restarts == 0
    assert os.environ[THREADS] == "1"


def test_hosts_meet_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "NNODES": "1:2",
        "NPROC_PER_NODE": "8",
        "RDZV_BACKEND": "c10d",
        "RDZV_ENDPOINT": "us-0-0.us:29400",
        "RDZV_ID": "us-0",
        "RDZV_CONF": "join_timeout=300",
        "MAX_RESTARTS": "1000",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"PET_{name}", value)
    monkeypatch.setenv(THREADS, "4")
    monkeypatch.setenv("ATOLL_HOST", "1")
    found, host = configuration(["--nproc-per-node", "4"])
    assert host == 1
    assert configuration(["--node-rank", "0"])[1] == 0
    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (1, 2, 4)
    assert (found.rdzv_endpoint, found.run_id) == ("us-0-0.us:29400", "us-0")
    assert found.rdzv_configs["join_timeout"] == "300"
    assert found.max_restarts == 1000
    assert os.environ.keys().isdisjoint(INTERFACES)
    assert os.environ[THREADS] == "4"


@pytest.mark.parametrize(
    ("arguments", "field", "problem"),
    [
        ([], "launch", "names no command"),
        (["train.py"], "launch", "names no command"),
        (["--", "no-such.py"], "launch", "there is no file no-such.py"),
        (["--", "pyton3", "x.py"], "launch", "there is no command pyton3"),  # a rank: 127, again
        (["--nproc-per-node", "x", "--", "true"], "launch", "nproc_per_node value: x"),
        (["--nproc-per-node", "0", "--", "true"], "PET_NPROC_PER_NODE", "is 0"),
        (["--nnodes", "two", "--", "true"], "launch", "two"),
        (["--nnodes", "2", "--", "true"], "PET_RDZV_ENDPOINT", "not set"),
        ([*TWO, "--", "true"], "ATOLL_HOST", "is not set, and PET_NNODES says that there are 2"),
        ([*TWO, "--node-rank", "2", "--", "true"], "ATOLL_HOST", "is 2"),
        ([*TWO, "--node-rank", "-1", "--", "true"], "ATOLL_HOST", "is -1"),
        (["--no-such-option", "--", "true"], "launch --no-such-option", "are not torchrun's"),
        (["--module", "--", "true"], "launch", "are torchrun's"),
    ],
)
def test_what_does_not_fit_has_a_remedy(arguments: list[str], field: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        launch.main(arguments)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert caught.value.remedy
