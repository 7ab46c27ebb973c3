"""Which of several processes that have ended was the first cause."""

import pytest

from atoll_worker.launcher import first_cause


@pytest.mark.parametrize(
    ("codes", "rank"),
    [
        ({0: 0, 1: 0}, None),
        ({0: 75, 1: 1}, 1),  # who has noticed it ended before who has failed
        ({0: 75, 1: -9}, 1),
        ({1: -9, 0: 1}, 1),  # a kill, and an error of torch in a collective
        ({0: 1, 1: 70}, 0),
        ({0: 75, 1: 64, 2: 1}, 1),
        ({0: 1, 1: 65}, 1),
        ({0: -6, 1: 74, 2: 1}, 1),  # torch's watchdog may see it before it is known to be the GPU
        ({0: 74, 1: 65}, 1),
        ({1: 75, 0: 77}, 0),
        ({1: 75, 0: -15}, 1),
        ({0: 0, 1: 75}, 1),
    ],
)
def test_a_code_says_more_than_who_ended_first(codes: dict[int, int], rank: int | None) -> None:
    assert first_cause.first_cause(codes) == rank
    assert first_cause.code_of(codes) == (0 if rank is None else codes[rank])


def test_a_launcher_that_was_told_to_end_has_ended_in_order_if_any_process_has() -> None:
    assert first_cause.code_after_signal(15, {0: 0, 1: 75}) == 0
    assert first_cause.code_after_signal(15, {0: -15, 1: -15}) == -15
    assert first_cause.code_after_signal(2, {}) == -2


@pytest.mark.parametrize(
    ("code", "began_here", "ends"),
    [
        (64, False, True),  # wherever it began, another start cannot help
        (1, True, True),
        (1, False, False),
        (-11, True, True),  # of its own making, as 1 is
        (-9, True, False),
        (77, True, True),
        (77, False, False),
        (75, True, False),
        (74, False, True),  # no start in place heals a GPU
    ],
)
def test_a_host_ends_with_its_own_failure_alone(code: int, began_here: bool, ends: bool) -> None:
    assert first_cause.ends_launcher(code, began_here) is ends


def test_ends_are_told_in_words() -> None:
    words = [first_cause.words(code) for code in (64, -9, -36)]
    assert words == ["exit code 64", "SIGKILL", "signal 36"]
    assert first_cause.ended_before([]) == ""
    assert first_cause.ended_before([3]) == "; rank 3 had ended before it (exit code 0)"
    more = "; rank 1 and 2 more had ended before it (exit code 0)"
    assert first_cause.ended_before([4, 1, 2]) == more
