"""Which commands start the processes of a learner themselves, and how others come under one."""

import shlex

import pytest

from atoll_operator.api.job import parsing


@pytest.mark.parametrize(
    ("command", "under"),
    [
        ("train.sh --fast", "atoll-worker launch -- train.sh --fast"),
        ("/v/python3.11 a.py", "/v/python3.11 -m atoll_worker launch -- /v/python3.11 a.py"),
        ("sh -c 'exec python3 a.py'", "atoll-worker launch -- sh -c 'exec python3 a.py'"),
        ("python3 my_torchrun.py", "python3 -m atoll_worker launch -- python3 my_torchrun.py"),
        ("atoll-worker launch -- python train.py", ""),  # it is a launcher, and stays as it is
        ("torchrun train.py", ""),
        ("/opt/conda/bin/torchrun --nproc-per-node=8 train.py", ""),
        ("python -m torch.distributed.run train.py", ""),
        ("accelerate launch train.py", ""),
        ("bash -c 'pip install x && exec torchrun train.py'", ""),
        ("bash -c 'exec atoll-worker launch -- train.py'", ""),
    ],
)
def test_a_command_comes_under_the_launcher_once(command: str, under: str) -> None:
    first, *args = shlex.split(command)
    assert parsing.under_launcher([first, *args]) == shlex.split(under or command)
    if not under:  # it counts in the arguments too
        assert parsing.under_launcher([first], args) == [first]
