"""The server that most tests here speak to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.machines.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "served")
    with found.server.open(found.said.append):
        yield found
