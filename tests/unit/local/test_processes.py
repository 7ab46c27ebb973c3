"""The launcher in a container's command, and the number of processes beside it."""

import pytest

from atoll_operator.api.pods import Container, EnvVar
from atoll_operator.local import processes
from atoll_protos.errors import SpecError

LAUNCHED = ["atoll-worker", "launch", "--", "python", "train.py"]


def test_any_command_is_put_under_the_launcher_once() -> None:
    assert processes.launched(["python", "train.py"], 2, "field") == LAUNCHED
    assert processes.launched(LAUNCHED, 4, "field") == LAUNCHED


def test_one_process_needs_no_launcher() -> None:
    assert processes.launched(["python", "train.py"], 1, "field") == ["python", "train.py"]
    assert processes.launched(LAUNCHED, 1, "field") == LAUNCHED
    assert processes.launched([], 1, "field") == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["torchrun", "train.py"], "has a launcher of its own, torchrun"),
        (["python", "-m", "torch.distributed.run", "a.py"], "has a launcher of its own, python"),
        ([*LAUNCHED[:2], "--nproc_per_node=8", *LAUNCHED[2:]], "has --nproc-per-node itself"),
    ],
)
def test_a_command_that_cannot_be_several_processes_is_refused(
    command: list[str], problem: str
) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        processes.launched(command, 2, "spec.learner.template")
    assert caught.value.field == "--processes-per-learner"


def test_an_option_of_the_script_is_not_the_launchers() -> None:
    command = [*LAUNCHED, "--nproc-per-node", "8"]
    assert processes.launched(command, 2, "field") == command


def test_the_number_is_known_where_the_launcher_reads_it() -> None:
    env = [EnvVar(name=processes.NUMBER, value="4")]
    assert processes.of(Container(command=LAUNCHED, env=env)) == 4
    assert processes.of(Container(command=["python", "a.py"], env=env)) == 1
    assert processes.of(Container(command=LAUNCHED)) == 1
    auto = [EnvVar(name=processes.NUMBER, value="gpu")]
    assert processes.of(Container(command=LAUNCHED, env=auto)) == 1
