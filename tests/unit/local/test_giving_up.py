"""What the end of a process means, from all that is known of its ends."""

import pytest

from atoll_operator.api.status.crash_reason import LastWords
from atoll_operator.local.child import End, EndRecord, alike, returned, why_given_up

BOOM = LastWords(text="ValueError: boom", where="train.py:3")
OTHER = LastWords(text="KeyError: 'x'", where="train.py:9")


def after(*ends: End) -> EndRecord:
    record = EndRecord()
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
def test_what_another_start_cannot_help_is_given_up(ends: list[End], given_up: bool) -> None:
    assert bool(why_given_up(after(*ends), "")) is given_up


@pytest.mark.parametrize(("worked", "starts"), [(True, 3), (False, 2)])
def test_returns_count_in_all_starts_however_long_they_last(worked: bool, starts: int) -> None:
    record, end = EndRecord(), End(code=0, worked=worked, seconds=4000.0)
    for number in range(1, starts + 1):
        record = record.after(end, returned=True)
        assert why_given_up(record, "returned") == ("returned" if number == starts else "")


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
    if role == "learner" and said:  # the clock is not past the end of the job
        assert "tick 40 of 40" in returned(end, role, 43, 40)
        assert "tick 43;" in returned(end, role, 43, 0)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([after(failure())], True),
        ([after(failure()), after(failure())], True),
        ([after(failure(), failure(OTHER)), after(failure())], True),
        ([after(failure()), EndRecord()], False),  # the other one has not ended
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
def test_learners_that_all_fail_alike_end_the_job(records: list[EndRecord], found: bool) -> None:
    assert (alike(records) is not None) is found
