"""How long a job is: lengths only grow, in whatever order a process hears of them."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.length import Length, LengthFile, at_start, heard, of_run_file, read
from atoll_protos.run import Region, RunFile


def test_lengths_in_ticks_are_all_kept_and_the_largest_is_the_end() -> None:
    known = Length(steps=(100,)).also(Length(steps=(300,))).also(Length(steps=(200, 300)))
    assert known == Length(steps=(100, 200, 300))
    assert known.end == 300


def test_of_lengths_in_tokens_the_largest_counts() -> None:
    known = Length(tokens=100).also(Length(tokens=300)).also(Length(tokens=200))
    assert known == Length(tokens=300)
    assert known.end is None


def test_what_is_of_the_other_kind_or_of_an_earlier_version_says_nothing() -> None:
    for known in (Length(steps=(5,)), Length(tokens=5)):
        assert known.also(Length()) == known
        assert heard(pb.Length()) == Length()
    assert Length(steps=(5,)).also(Length(tokens=7)) == Length(steps=(5,))
    assert Length(tokens=7).also(Length(steps=(5,))) == Length(tokens=7)


def test_it_travels_and_begins_with_the_run_file() -> None:
    for known in (Length(steps=(3, 5)), Length(tokens=9)):
        assert heard(known.message()) == known
    job = RunFile(job="x", regions=(Region(name="a", learners=1),), steps=7)
    assert of_run_file(job) == Length(steps=(7,))


@pytest.mark.parametrize("given", [LengthFile(steps=200), LengthFile(tokens=10**12)])
def test_the_file_says_one_of_the_two(given: LengthFile) -> None:
    found = read(given.to_json())
    assert (found.end, found.tokens) == (given.steps, given.tokens or 0)


@pytest.mark.parametrize("text", ["", "{", '{"steps": "x"}', '{"more": 1}'])
def test_a_file_that_says_nothing_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read(text)


@pytest.mark.parametrize(
    ("began", "file", "known"),
    [
        (100, None, (100,)),
        (100, 100, (100,)),
        (100, 300, (100, 300)),  # the former end is a hand-over of all slices
        (300, 100, (100,)),  # what was taken back is known to nobody
    ],
)
def test_a_shard_that_starts_takes_the_length_that_the_job_has_now(
    began: int, file: int | None, known: tuple[int, ...]
) -> None:
    regions = (Region(name="a", learners=1),)
    now = None if file is None else Length(steps=(file,))
    job = RunFile(job="x", regions=regions, steps=began)
    assert at_start(job, now) == Length(steps=known)
    now = None if file is None else Length(tokens=file)
    job = RunFile(job="x", regions=regions, tokens=began)
    assert at_start(job, now) == Length(tokens=began if file is None else file)
    assert at_start(job, Length(steps=(7,))) == Length(tokens=began)
