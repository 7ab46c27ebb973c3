"""What ranks print is passed on in whole lines, with the rank before each."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_worker.launcher.meeting import LINE_BYTES_MAX, Lines


class Told:
    """What was written, by descriptor."""

    def __init__(self) -> None:
        self.text = {1: b"", 2: b""}
        self.written = threading.Condition()

    def __call__(self, descriptor: int, data: bytes) -> None:
        with self.written:
            self.text[descriptor] += data
            self.written.notify_all()

    def until(self, descriptor: int, end: bytes) -> None:
        with self.written:
            assert self.written.wait_for(lambda: self.text[descriptor].endswith(end), 60)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def lines(told: Told) -> Iterator[Lines]:
    made = Lines(told)
    yield made
    made.finish()


def test_two_ranks_never_share_a_line(lines: Lines, told: Told) -> None:
    with open(lines.open(0, 1), "wb", 0) as first, open(lines.open(1, 1), "wb", 0) as second:
        lines.start()
        first.write(b"one ")
        second.write(b"two\n")
        told.until(1, b"[rank1]: two\n")
        first.write(b"more\nrest")
        told.until(1, b"[rank0]: one more\n")
    lines.finish()
    assert told.text[1] == b"[rank1]: two\n[rank0]: one more\n[rank0]: rest\n"


def test_errors_stay_errors_and_a_rank_is_named_once(lines: Lines, told: Told) -> None:
    with open(lines.open(3, 1), "wb", 0) as out, open(lines.open(3, 2), "wb", 0) as errors:
        lines.start()
        out.write(b" 10%\r 20%\r\n\nend\n")
        errors.write(b"[rank3]: ValueError: no\n")
    lines.finish()
    assert told.text[1] == b"[rank3]:  10%\r[rank3]:  20%\r\n[rank3]: \n[rank3]: end\n"
    assert told.text[2] == b"[rank3]: ValueError: no\n"


def test_a_line_without_an_end_is_passed_on_in_pieces(lines: Lines, told: Told) -> None:
    with open(lines.open(0, 1), "wb", 0) as out:
        lines.start()
        out.write(b"x" * (3 * LINE_BYTES_MAX))
    lines.finish()
    assert told.text[1].count(b"x") == 3 * LINE_BYTES_MAX
    assert max(map(len, told.text[1].splitlines())) <= LINE_BYTES_MAX + 10


def test_a_process_that_a_rank_has_left_behind_is_not_waited_for(lines: Lines, told: Told) -> None:
    with open(lines.open(0, 1), "wb", 0) as out:
        lines.start()
        out.write(b"last words\n")
        lines.finish()
        assert told.text[1] == b"[rank0]: last words\n"


def test_the_last_lines_of_a_rank_are_said_again_only_under_those_of_others(told: Told) -> None:
    lines = Lines(told)
    with open(lines.open(0, 2), "wb", 0) as first, open(lines.open(1, 2), "wb", 0) as second:
        lines.start()
        second.write(b"the cause\n")
        told.until(2, b"cause\n")
        first.write(b"lost rank 1\n")
    lines.finish()
    lines.repeat(0, "again:")
    assert b"again:" not in told.text[2]
    lines.repeat(1, "again:")
    assert told.text[2].endswith(b"lost rank 1\nagain:\n[rank1]: the cause\n")


def test_a_learner_of_one_process_keeps_the_output_of_its_launcher(lines: Lines) -> None:
    assert lines.reify({0: {"RANK": "0", "WORLD_SIZE": "1"}}).stdouts == {0: ""}
    two = {local: {"RANK": str(4 + local), "WORLD_SIZE": "8"} for local in (0, 1)}
    places = lines.reify(two)
    paths = [*places.stdouts.values(), *places.stderrs.values()]
    assert len({Path(path).resolve() for path in paths}) == 4
