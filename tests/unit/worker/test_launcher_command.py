"""The command line of the launcher, and the environment that it reads."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from atoll_protos.errors import SpecError
from atoll_protos.torchrun import Torchrun
from atoll_worker.launcher import command
from atoll_worker.launcher.command import configuration, split, words_of


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("PET_") or name in (Torchrun.OWN_STORE, command.THREADS):
            monkeypatch.delenv(name)
    for name in (Torchrun.OWN_STORE, command.THREADS):  # what is set meanwhile is undone
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_script_runs_in_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert split(["--nnodes", "2", "--", "train.py", "--", "x"]) == (
        ["--nnodes", "2"],
        ["train.py", "--", "x"],
    )
    assert words_of(["train.py", "--lr", "1"]) == [sys.executable, "-u", "train.py", "--lr", "1"]
    assert words_of(["python3", "-m", "train"]) == ["python3", "-m", "train"]


def test_processes_of_one_host_meet_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    found = configuration([])
    assert not list(tmp_path.iterdir()), "processes print through pipes of ours"
    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (1, 1, 3)
    assert (found.rdzv_backend, found.rdzv_endpoint) == ("c10d", "localhost:0")
    assert found.local_addr == "localhost"
    assert found.run_id != configuration([]).run_id
    assert found.max_restarts == 0
    assert (os.environ[Torchrun.OWN_STORE], os.environ[command.THREADS]) == ("1", "1")


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
    monkeypatch.setenv(command.THREADS, "4")
    found = configuration(["--nproc-per-node", "4"])
    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (1, 2, 4)
    assert (found.rdzv_endpoint, found.run_id) == ("us-0-0.us:29400", "us-0")
    assert found.rdzv_configs["join_timeout"] == "300"
    assert found.max_restarts == 1000
    assert os.environ[command.THREADS] == "4"


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
        (["--nnodes", "2", "--", "true"], "PET_RDZV_BACKEND", "is static"),
        (["--nnodes=2", "--rdzv-backend=c10d", "--", "true"], "PET_RDZV_ENDPOINT", "not set"),
        (["--no-such-option", "--", "true"], "launch --no-such-option", "are not torchrun's"),
        (["--module", "--", "true"], "launch", "are torchrun's"),
    ],
)
def test_what_does_not_fit_has_a_remedy(arguments: list[str], field: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        command.main(arguments)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert caught.value.remedy
