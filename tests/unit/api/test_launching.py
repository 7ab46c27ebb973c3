"""Which commands start the processes of a learner themselves, and how others come under one."""

import pytest

from atoll_operator.api import launching

LAUNCHED = ["atoll-worker", "launch", "--", "python", "train.py"]


@pytest.mark.parametrize(
    ("command", "is_launched"),
    [
        (LAUNCHED, True),
        (["/opt/bin/atoll-worker", "launch", "--max-restarts", "3"], True),
        (["python", "-m", "atoll_worker", "launch", "--", "train.py"], True),
        (["atoll-worker", "train:main"], False),
        (["python", "-m", "atoll_worker", "train:main", "launch"], False),
        (["python", "launch"], False),
        ([], False),
    ],
)
def test_the_launcher_is_known_by_its_words(command: list[str], is_launched: bool) -> None:
    assert launching.is_launched(command) == is_launched


def test_what_the_launcher_starts_stands_behind_the_dashes() -> None:
    assert launching.within(LAUNCHED) == ["python", "train.py"]
    assert launching.within(LAUNCHED[:2]) == ()


@pytest.mark.parametrize(
    ("command", "under"),
    [
        (["train.sh", "--fast"], ["atoll-worker", "launch", "--", "train.sh", "--fast"]),
        (
            ["/venv/bin/python3.11", "train.py"],
            [
                "/venv/bin/python3.11",
                "-m",
                "atoll_worker",
                "launch",
                "--",
                "/venv/bin/python3.11",
                "train.py",
            ],
        ),
        (
            ["sh", "-c", "exec python3 train.py"],
            ["atoll-worker", "launch", "--", "sh", "-c", "exec python3 train.py"],
        ),
        (
            ["python3", "my_torchrun.py"],
            ["python3", "-m", "atoll_worker", "launch", "--", "python3", "my_torchrun.py"],
        ),
    ],
)
def test_a_command_comes_under_the_launcher(command: list[str], under: list[str]) -> None:
    assert launching.under_launcher(command) == under


@pytest.mark.parametrize(
    "command",
    [
        LAUNCHED,
        ["torchrun", "train.py"],
        ["/opt/conda/bin/torchrun", "--nproc-per-node=8", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["bash", "-c", "pip install x && exec torchrun train.py"],
        ["bash", "-c", "exec atoll-worker launch -- train.py"],
    ],
)
def test_a_command_that_is_a_launcher_stays_as_it_is(command: list[str]) -> None:
    assert launching.under_launcher(command) == command


def test_a_launcher_in_the_arguments_counts_too() -> None:
    command, args = ["bash", "-c"], ["torchrun train.py"]
    assert launching.under_launcher(command, args) == command
