"""What the end of a process means, from all that is known of its ends."""

import pytest

from atoll_operator.api.words import LastWords
from atoll_operator.local.ends import End, Record, alike, returned, why_given_up

BOOM = LastWords(text="ValueError: boom", where="train.py:3")
OTHER = LastWords(text="KeyError: 'x'", where="train.py:9")


def after(*ends: End) -> Record:
    record = Record()
    for end in ends:
        record = record.after(end, returned=False)
    return record


def failure(
    words: LastWords = BOOM, *, worked: bool = False, seconds: float = 1.0, own_steps: int = 0
) -> End:
    worked = worked or own_steps > 0
    return End(code=1, words=words, worked=worked, seconds=seconds, own_steps=own_steps)


KILL = End(code=-9)
AGAIN = End(code=75, words=BOOM)


@pytest.mark.parametrize(
    ("ends", "given_up"),
    [
        ([failure()], False),
        ([failure(), failure()], True),
        ([failure(), failure(OTHER)], False),
        ([failure(), failure(OTHER), failure(OTHER)], True),
        ([failure(), KILL, failure()], False),
        ([failure(LastWords())] * 2, False),  # an empty log says nothing
        ([failure(LastWords())] * 5, True),
        ([failure(worked=True)] * 4, False),
        ([failure(worked=True)] * 5, True),
        ([failure(worked=True), failure(), failure()], False),  # it has trained before
        ([failure(), failure(seconds=100.0, worked=True), *[failure()] * 3], False),
        ([KILL] * 50, False),
        ([AGAIN] * 50, False),
        ([End(code=64, words=BOOM)], True),
        ([End(code=65)], True),
    ],
)
def test_a_process_is_given_up_when_another_start_cannot_help(
    ends: list[End], given_up: bool
) -> None:
    assert bool(why_given_up(after(*ends), "")) is given_up


def test_returns_count_in_all_starts_however_long_they_last() -> None:
    record, end = Record(), End(code=0, worked=True, seconds=4000.0)
    for expected in ("", "", "returned at tick 3"):
        record = record.after(end, returned=True)
        assert why_given_up(record, "returned at tick 3") == expected


def test_a_script_without_a_learner_is_not_run_a_third_time() -> None:
    record = Record()
    for expected in ("", "returned at tick 0"):
        record = record.after(End(code=0, seconds=4000.0), returned=True)
        assert why_given_up(record, "returned at tick 0") == expected


@pytest.mark.parametrize(
    ("end", "role", "said"),
    [
        (End(code=0, worked=True), "learner", 'tick 14 of 400; the job is not final: loop "while'),
        (End(code=0), "learner", "It made no step"),
        (End(code=0), "evaluator", 'loop "while not observer.finished"'),
        (End(code=0, left="terminated"), "learner", ""),
        (End(code=0, left="finished"), "learner", ""),
        (End(code=0), "shard", ""),
        (End(code=1), "learner", ""),
        (End(code=-15), "learner", ""),
    ],
)
def test_a_return_is_told_unless_it_was_asked_for(end: End, role: str, said: str) -> None:
    found = returned(end, role, 14, 400)
    assert said in found
    assert bool(found) == bool(said)


def test_the_clock_of_a_return_is_not_past_the_end_of_the_job() -> None:
    assert "tick 40 of 40" in returned(End(code=0, worked=True), "learner", 43, 40)
    assert "tick 43;" in returned(End(code=0, worked=True), "learner", 43, None)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([after(failure())], True),
        ([after(failure()), after(failure())], True),
        ([after(failure(), failure(OTHER)), after(failure())], True),
        ([after(failure()), Record()], False),  # the other one has not ended
        ([after(failure()), after(failure(OTHER))], False),
        ([after(failure()), after(KILL)], False),
        ([after(failure()), after(failure(worked=True))], False),
        ([after(AGAIN), after(AGAIN)], False),
        ([after(failure(LastWords()))] * 2, False),
        ([after(*[failure(own_steps=6)] * 2)] * 2, True),
        ([after(*[failure(own_steps=6)] * 2)], True),
        ([after(*[failure(own_steps=6)] * 2), after(failure(own_steps=6))], False),
        ([after(failure(own_steps=900), *[failure(own_steps=6)] * 2)] * 2, True),
        ([after(failure(own_steps=6), failure(own_steps=900))] * 2, False),  # memory that is short
        ([after(*[failure(own_steps=6)] * 2, KILL)] * 2, False),
        ([after(*[failure(OTHER, own_steps=6)] * 2), after(*[failure(own_steps=6)] * 2)], False),
        ([after(*[failure(LastWords(), own_steps=6)] * 2)] * 2, False),
        ([], False),
    ],
)
def test_learners_that_all_fail_alike_end_the_job_at_their_first_start_or_their_second(
    records: list[Record], found: bool
) -> None:
    assert (alike(records) is not None) is found
