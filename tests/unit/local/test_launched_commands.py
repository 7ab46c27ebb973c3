"""The launcher in a container's command, and the number of processes beside it."""

import pytest

from atoll_operator.api.job.fields import Container, EnvVar
from atoll_operator.local.gpus import processes_of
from atoll_operator.local.run_manifest import launched
from atoll_protos.environment import Torchrun
from atoll_protos.errors import SpecError

LAUNCHED = ["atoll-worker", "launch", "--", "python", "train.py"]


def test_any_command_is_put_under_the_launcher_once() -> None:
    assert launched(["python", "train.py"], 2, "field") == LAUNCHED
    of_the_script = [*LAUNCHED, "--nproc-per-node", "8"]
    for unchanged in (LAUNCHED, of_the_script):
        assert launched(unchanged, 4, "field") == unchanged
    for alone in (["python", "train.py"], LAUNCHED, []):  # one process needs no launcher
        assert launched(alone, 1, "field") == alone


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["torchrun", "train.py"], "has a launcher of its own, torchrun"),
        (["python", "-m", "torch.distributed.run", "a.py"], "has a launcher of its own, python"),
        ([*LAUNCHED[:2], "--nproc_per_node=8", *LAUNCHED[2:]], "has --nproc-per-node itself"),
    ],
)
def test_what_cannot_be_several_processes_is_refused(command: list[str], problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        launched(command, 2, "spec.learner.template")
    assert caught.value.field == "--processes-per-learner"


def test_the_number_is_known_where_the_launcher_reads_it() -> None:
    env = [EnvVar(name=Torchrun.PROCESSES, value="4")]
    assert processes_of(Container(command=LAUNCHED, env=env)) == 4
    assert processes_of(Container(command=["python", "a.py"], env=env)) == 1
    assert processes_of(Container(command=LAUNCHED)) == 1
    auto = [EnvVar(name=Torchrun.PROCESSES, value="gpu")]
    assert processes_of(Container(command=LAUNCHED, env=auto)) == 1
