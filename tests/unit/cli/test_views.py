"""What verbs make of the answers of a cluster, without one."""

import sys

import pytest

from atoll_operator.cli import views
from atoll_protos.errors import SpecError


def test_the_last_line_of_a_program_that_fails_in_a_pod_is_the_problem() -> None:
    program = "import sys; print('{\"shard\": 1}'); sys.stderr.write('first\\nlast\\n');"
    assert views.in_pod([sys.executable, "-c", program]) == [{"shard": 1}]
    with pytest.raises(SpecError) as caught:
        views.in_pod([sys.executable, "-c", f"{program} sys.exit(7)"])
    assert caught.value.problem == "last"
