"""How long a job is: the newest length counts, in whatever order a process hears of several."""

from itertools import permutations

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Region, RunFile
from atoll_protos.job.schedule import (
    ENDS_MAX,
    Length,
    LengthFile,
    at_start,
    heard,
    of_run_file,
    read,
)

JOB = RunFile(job="x", regions=(Region(name="a", learners=1),), steps=100)


def ticks(revision: int, steps: int) -> Length:
    return read(LengthFile(revision=revision, steps=steps).to_json())


def tokens(revision: int, count: int) -> Length:
    return read(LengthFile(revision=revision, tokens=count).to_json())


@pytest.mark.parametrize("order", [*permutations([(1, 100), (2, 1000), (3, 200)])])
def test_the_length_of_the_highest_revision_counts_and_all_ends_are_kept(
    order: tuple[tuple[int, int], ...],
) -> None:
    known, known_tokens = of_run_file(JOB), Length(tokens=5)
    for revision, length in order:
        known = known.also(ticks(revision, length))
        known_tokens = known_tokens.also(tokens(revision, length))
    assert known == Length(revision=3, steps=200, ends=(100, 200, 1000))
    assert known_tokens == Length(revision=3, tokens=200)
    assert [position for position in range(2000) if known.is_end(position)] == [100, 200, 1000]


def test_none_and_one_of_the_other_kind_say_nothing() -> None:
    for known in (ticks(1, 5), tokens(1, 5)):
        for nothing in (Length(), heard(pb.Length()), Length(revision=9)):
            assert known.also(nothing) == known
    assert ticks(1, 5).also(tokens(2, 7)) == ticks(1, 5)
    assert tokens(1, 7).also(ticks(2, 5)) == tokens(1, 7)
    assert ticks(2, 50).also(ticks(2, 60)).steps == 50  # of one revision, what is known stays


def test_it_travels_and_begins_with_the_run_file() -> None:
    for known in (ticks(3, 5).also(ticks(2, 9)), tokens(4, 9)):
        assert heard(known.message()) == known
    assert of_run_file(JOB) == Length(steps=100)


def test_a_learner_takes_the_ends_from_shards_alone() -> None:
    """An end that no shard knows of would be a hand-over that all of them refuse."""
    known = of_run_file(JOB)
    assert known.is_end(100)
    assert not known.also(ticks(1, 200)).is_end(100)


def test_the_largest_ends_are_kept() -> None:
    many = heard(pb.Length(steps=7, ends=range(1, 1000)))
    assert many.ends == tuple(range(1000 - ENDS_MAX, 1000))
    assert many.also(Length(steps=1, ends=(1,))) == many
    assert many.is_end(7)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", '{"revision": 1, "steps": "x"}', '{"revision": 1, "steps": 5, "more": 1}'),
        *('{"steps": 5}', '{"revision": -1, "steps": 5}'),
    ],
)
def test_a_file_that_does_not_say_one_length_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read(text)


@pytest.mark.parametrize(
    ("began", "file", "ends"),
    [
        (100, None, (100,)),
        (100, 100, (100,)),
        (100, 300, (100, 300)),  # the former end is a hand-over of all slices
        (300, 100, (100, 300)),
    ],
)
def test_a_shard_that_starts_takes_the_length_that_the_job_has_now(
    began: int, file: int | None, ends: tuple[int, ...]
) -> None:
    regions = (Region(name="a", learners=1),)
    job = RunFile(job="x", regions=regions, steps=began)
    found = at_start(job, None if file is None else ticks(1, file))
    assert (found.steps, found.ends) == (began if file is None else file, ends)
    job = RunFile(job="x", regions=regions, tokens=began)
    found = at_start(job, None if file is None else tokens(1, file))
    assert found.tokens == (began if file is None else file)
    assert at_start(job, ticks(1, 7)) == Length(tokens=began)
