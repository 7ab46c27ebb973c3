"""How a run stands, in a few lines for a person."""

import pytest

from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.status.job_status import Status
from atoll_operator.local import local_status
from atoll_operator.local.show import status_text
from unit.local.test_local_status import MANIFEST, NOW, job, reply

RUN = run_file(parse(MANIFEST))


def words(status: Status, age_seconds: float = 1.0) -> str:
    return status_text.status_text(status, RUN.job, RUN.steps, age_seconds)


def training() -> Status:
    registrar = reply(training=("a-0", "b-0"))
    registrar.evaluation.loss, registrar.evaluation.tick = 1.25, 40
    return local_status.status(job(), [registrar, reply()], NOW)


def test_a_run_in_training_is_told_in_four_lines() -> None:
    assert words(training()).splitlines() == [
        "tiny: Training, step 50 of 200 (25%), about 15 s left",
        "  loss 2.0000, held out 1.2500 at step 40, 800 tokens",
        "  learners 2/3 (a 1/2, b 1/1), shards 2/2",
        "  Degraded: 1 of 3 learners are not in training: a-1",
    ]
    assert "no status for 2 min 5 s" in words(training(), age_seconds=125)


def test_a_run_that_is_stopped_says_so_and_how_it_goes_on() -> None:
    stopped = local_status.suspended(training(), "it was killed", "atoll run DIR --resume")
    assert words(stopped, age_seconds=5000).splitlines() == [
        "tiny: Suspended, step 50 of 200 (25%)",
        "  loss 2.0000, held out 1.2500 at step 40, 800 tokens",
        "  it was killed; atoll run DIR --resume continues",
    ]
    assert {each.live for each in stopped.regions or []} == {stopped.learners_live} == {0}
    assert stopped.columns is not None
    assert (stopped.columns.learners, stopped.columns.syncer) == ("0/3", "0/2")
    assert stopped.true_condition("Progressing") is None
    assert stopped.true_condition("Suspended") is not None


def test_a_run_that_failed_says_why_and_one_that_began_what_it_waits_for() -> None:
    failed = words(local_status.failed(training(), "StoreLost", "shard 1 has lost its state"))
    assert failed.startswith("tiny: Failed, step 50")
    assert "\n  Failed: shard 1 has lost its state" in failed
    starting = words(local_status.status(job(), [None, None], NOW))
    assert starting.startswith("tiny: Starting\n")
    assert "shard 0 silent" in starting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (130, "2 min 10 s"), (700, "11 min"), (7800, "2 h 10 min")],
)
def test_durations_are_in_units_that_a_person_reads(seconds: float, text: str) -> None:
    assert status_text.duration(seconds) == text
    left = "nearly done" if not seconds else f"about {text} left"
    assert status_text.time_left(int(seconds)) == left
