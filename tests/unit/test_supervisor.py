"""Local mode starts what a template names, as its image would."""

import sys
import time
from pathlib import Path

import pytest

from atoll_operator.local import Supervisor, check_startable
from atoll_operator.plan import Planned
from atoll_protos.errors import SpecError


def learner(*command: str, folder: str = "") -> Planned:
    """A planned process."""
    return Planned(role="learner", name="here-0", command=command, env={}, folder=folder)


def test_python_in_a_template_is_the_one_that_has_atoll(tmp_path: Path) -> None:
    planned = learner("python", "-c", "import sys; print(sys.prefix)")
    supervisor = Supervisor([planned], tmp_path, print)
    supervisor.look(time.monotonic(), final=False)
    process = supervisor.children[0].process
    assert process is not None
    assert process.wait(60) == 0
    assert supervisor.children[0].log.read_text().strip() == sys.prefix


def test_a_command_that_is_there_may_start() -> None:
    check_startable([learner("python"), learner(sys.executable)])


@pytest.mark.parametrize(
    ("planned", "problem"),
    [
        (learner("no-such-command"), "no command no-such-command"),
        (learner("./train"), "no command ./train"),
        (learner("python", folder="no-such-folder"), "no-such-folder is no folder"),
    ],
)
def test_a_command_or_folder_that_is_not_there_is_named(planned: Planned, problem: str) -> None:
    with pytest.raises(SpecError, match=rf"spec\.learner\.template: .*{problem}"):
        check_startable([planned])
