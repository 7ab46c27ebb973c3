"""What several files of this folder begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_operator.local.process_plan import Planned
from unit.local.supervised import Run, Start


@pytest.fixture
def run_of(tmp_path: Path) -> Iterator[Start]:
    """Makes a run that leaves no process behind."""
    runs: list[Run] = []

    def make(*planned: Planned) -> Run:
        runs.append(Run(planned, tmp_path))
        return runs[-1]

    yield make
    for run in runs:
        run.supervisor.stop()
        for keeper in (each for one in run.supervisor.children for each in one.closing):
            keeper.wait(60)
