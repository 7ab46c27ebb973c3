"""What cannot start is said before anything starts, with the folder in which it was looked for."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoll_operator.local.process_plan import Planned
from atoll_operator.local.startable import check_startable, environment
from atoll_protos.errors import SpecError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, a shell script that is not executable, a package and a folder."""
    for file in ("train.py", "start.sh", "package/__main__.py", "data/text"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path


def planned(*command: str, folder: Path | str, role: str = "learner") -> Planned:
    return Planned(role=role, name="here-0", command=command, env={}, folder=str(folder))


@pytest.mark.parametrize(
    "command",
    [
        ("python",),
        (sys.executable,),
        ("python", "train.py", "--data", "no-such-file"),
        ("python3", "-u", "-X", "dev", "-Wignore::DeprecationWarning", "train.py"),
        ("python", "-c", "pass"),
        ("python", "-", "train"),
        ("python", "-um", "atoll_worker", "no.such:main"),
        ("python", "-m", "package"),
        ("python", "-m", "torch.distributed.run", "no-such-script.py"),
        ("python", "package"),
        ("python", "-m", "atoll_worker", "launch", "--nnodes", "1", "--", "train.py"),
        ("python", "-m", "atoll_worker", "launch", "--", "python", "-m", "package"),
        ("python", "-m", "atoll_worker", "launch"),  # it says itself what it lacks
        ("sh", "-c", "exec python no-such-script.py"),
        ("sh", "-e", "start.sh"),
        ("sh", "-o", "errexit", "start.sh"),
    ],
)
def test_a_command_that_is_there_may_start(command: tuple[str, ...], folder: Path) -> None:
    check_startable([planned(*command, folder=folder)])


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("no-such-command",), "no command no-such-command; fix command"),
        (("./train",), r"no command \./train in /"),
        (("./data",), r"the command \./data is a folder; name the program in it"),
        (("./start.sh",), r"\./start\.sh is not executable; chmod \+x .*\[python, \./start"),
        (("train.py",), r"no command train\.py in PATH; write \[python, train\.py\]"),
        (
            ("python", "-u", "trian.py"),
            r"no file trian\.py in /.*; fix command, or workingDir; a rel",
        ),
        (("python", "-m", "atoll_worker", "launch", "--", "trian.py"), r"no file trian\.py in /"),
        (("python", "-m", "atoll_worker", "launch", "--", "sh", "a.sh"), r"no file a\.sh in /"),
        (("python", "data"), "data is a folder; name the script in it"),
        (("bash", "strat.sh"), r"no file strat\.sh in /"),
        (("python", "-m", "no_such_module.train"), "no module no_such_module.train, also not in /"),
    ],
)
def test_what_is_not_there_is_named_with_the_folder(
    command: tuple[str, ...], problem: str, folder: Path
) -> None:
    with pytest.raises(SpecError, match=rf"spec\.learner\.template: .*{problem}"):
        check_startable([planned(*command, folder=folder)])


def test_a_module_is_also_looked_for_where_the_process_looks(folder: Path) -> None:
    (folder / "data" / "mine.py").touch()
    command = planned("python", "-m", "mine", folder=folder)
    with pytest.raises(SpecError, match="no module mine"):
        check_startable([command])
    check_startable([replace(command, env={"PYTHONPATH": "data"})])
    missing = planned("python", folder=folder / "no-such-folder", role="evaluator")
    with pytest.raises(SpecError, match=r"spec\.evaluator\.template: .*/no-such-folder is not a"):
        check_startable([missing])


def test_python_is_the_one_that_has_atoll_with_one_thread_unless_one_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def threads(**env: str) -> str:
        found = environment(replace(planned("python", folder=""), env=env))
        assert found["PATH"] == f"{os.path.dirname(sys.executable)}:/elsewhere"
        return found["OMP_NUM_THREADS"]

    monkeypatch.setenv("PATH", "/elsewhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads() == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert threads() == "8"
    assert threads(OMP_NUM_THREADS="2") == "2"


def test_a_learner_is_no_task_of_slurm_or_mpi_and_has_no_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_task = {
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES"),
        *("SLURM_NTASKS_PER_NODE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK"),
    }
    kept = {"SLURM_JOB_ID": "4", "SLURM_CPUS_PER_TASK": "8", "CUDA_VISIBLE_DEVICES": "0"}
    for name, value in ({**dict.fromkeys(of_a_task, "1"), **kept, "ATOLL_TOKEN": "t"}).items():
        monkeypatch.setenv(name, value)
    learner = planned("python", "train.py", folder=folder)
    found = environment(learner)
    assert not {*of_a_task, "ATOLL_TOKEN"} & found.keys()
    assert kept.items() <= found.items()
    own = environment(replace(learner, env={"SLURM_NTASKS": "1"}))
    assert own["SLURM_NTASKS"] == "1", "a manifest may say it"
