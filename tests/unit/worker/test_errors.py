"""Any script, started by `python train.py`, exits with the codes of Atoll's errors."""

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import sys, torch, atoll
from atoll_worker.errors import LearnerError, install_excepthook
"""
HOOK = """
before = sys.excepthook
def mine(*given):
    print("mine was called", file=sys.stderr)
    before(*given)
sys.excepthook = mine
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + script]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_spec_error_is_one_line_and_exit_code_64() -> None:
    done = run("with atoll.Learner(torch.nn.Linear(2, 2)) as learner:\n    learner.step(tokens=0)")
    assert done.returncode == 64
    assert done.stderr.splitlines()[1:] == [
        "SpecError: tokens: is 0; give the tokens trained since the last step"
    ]


def test_a_spec_error_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{PRELUDE}\n\nwith atoll.Learner(torch.nn.Linear(2, 2)) as learner:\n"
        "    learner.step(tokens=0)\n"
    )
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    line = len(script.read_text().splitlines())
    assert done.stderr.endswith(f"since the last step ({script}:{line})\n")


def test_job_installs_it_too() -> None:
    done = run("import os\nos.environ['ATOLL_SLOT'] = 'us-0'\natoll.job()")
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert done.stderr.startswith("SpecError: ATOLL_RUN_FILE: is not set; start this under")


@pytest.mark.parametrize("code", [65, 75, 77])
def test_a_learner_error_keeps_its_traceback_and_has_its_exit_code(code: int) -> None:
    done = run(f"atoll.Learner(None)\nraise LearnerError({code}, 'because')")
    assert done.returncode == code
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert done.stderr.endswith("LearnerError: because\n")


def test_every_other_error_is_as_python_has_it() -> None:
    done = run("atoll.Learner(None)\nraise ValueError('mine')")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: mine")
    assert run("atoll.Learner(None)\nsys.exit(3)").returncode == 3


def test_the_hook_that_was_there_before_is_called_too_and_once() -> None:
    done = run(f"{HOOK}\ninstall_excepthook()\natoll.Learner(None)\natoll.Learner(None).step()")
    assert done.stderr.count("mine was called") == 1
    assert done.returncode == 1
    done = run(f"{HOOK}\natoll.Learner(torch.nn.Linear(2, 2)).open().step(tokens=-1)")
    assert done.stderr.count("mine was called") == 1
    assert done.stderr.endswith(
        "SpecError: tokens: is -1; give the tokens trained since the last step\n"
    )
    assert done.returncode == 64


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            "atoll.SpecError('--data', 'names no folder', 'give one')",
            64,
            "SpecError: --data: names",
        ),
        ("LearnerError(77, 'another has the slot')", 77, "LearnerError: another has the slot"),
    ],
)
def test_the_hook_of_torch_distributed_swallows_nothing(error: str, code: int, said: str) -> None:
    group = "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), "
    done = run(f"install_excepthook()\n{group}rank=0, world_size=1)\nraise {error}")
    assert done.returncode == code
    assert done.stderr.count(said) == 1


def test_a_spec_error_of_a_rank_is_one_line_too() -> None:
    group = "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), "
    error = "atoll.SpecError('tokens', 'is 0', 'give more')"
    done = run(f"{group}rank=0, world_size=1)\ninstall_excepthook()\nraise {error}")
    assert (done.returncode, done.stderr) == (64, "SpecError: tokens: is 0; give more\n")
    done = run(f"{HOOK}\n{group}rank=0, world_size=1)\ninstall_excepthook()\nraise {error}")
    assert done.stderr.count("mine was called") == 1  # that of the user, under torch's
    assert done.returncode == 64
