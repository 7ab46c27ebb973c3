"""Local mode starts what a template names, as its image would."""

import sys
import time
from pathlib import Path

import pytest

from atoll_operator.local import Supervisor
from atoll_operator.plan import Planned
from atoll_protos.errors import SpecError


def learner(*command: str, folder: str = "") -> Planned:
    """A planned process."""
    return Planned(role="learner", name="here-0", command=command, env={}, folder=folder)


def test_python_in_a_template_is_the_one_that_has_atoll(tmp_path: Path) -> None:
    supervisor = Supervisor([learner("python", "-c", "import sys; print(sys.prefix)")], tmp_path)
    supervisor.look(time.monotonic())
    process = supervisor.children[0].process
    assert process is not None
    assert process.wait(60) == 0
    assert supervisor.children[0].log.read_text().strip() == sys.prefix


@pytest.mark.parametrize(
    "planned", [learner("no-such-command"), learner("python", folder="no-such-folder")]
)
def test_a_command_or_folder_that_is_not_there_names_template_and_remedy(
    planned: Planned, tmp_path: Path
) -> None:
    supervisor = Supervisor([planned], tmp_path)
    with pytest.raises(SpecError, match=r"template of here-0.*mend its command or workingDir"):
        supervisor.look(time.monotonic())
