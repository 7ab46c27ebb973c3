"""The report of sizes (tests/journeys.py) sees what runs, in threads too, and all packages."""

from typing import Any

import pytest

from atoll_operator.kube.plan.planner import plan
from atoll_syncer.rules.rounds import look
from atoll_worker.learner import Learner
from journeys import JOURNEYS, PROGRAMS, ROOT, follow, sizes

# The operator plans in a thread that an earlier pass has started.
RUN = (plan, plan, look, Learner.step, look)


@pytest.mark.parametrize(("name", "runs"), list(zip(JOURNEYS, RUN, strict=True)))
def test_a_journey_counts_its_files_and_the_functions_in_them(name: str, runs: Any) -> None:
    trace = follow(JOURNEYS[name][0])
    assert trace.files(*PROGRAMS) > 1
    assert trace.calls[runs.__code__] >= 1


def test_no_file_of_a_program_is_outside_the_packages() -> None:
    files = [file.name for name in PROGRAMS for file in (ROOT / name).rglob("*.py")]
    written = sum("_pb2" not in name for name in files)
    assert {name: count for name, count, _ in sizes()}["product"] == written > 0
