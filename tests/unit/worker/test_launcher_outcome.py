"""Which of several processes that have ended was the first cause."""

import pytest

from atoll_worker.launcher.launch import ends_launcher, first_cause
from atoll_worker.launcher.meeting import LocalRanks, OneHost


@pytest.mark.parametrize(
    ("codes", "rank"),
    [
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
    ],
)
def test_a_code_says_more_than_who_ended_first(codes: dict[int, int], rank: int) -> None:
    assert first_cause(codes) == rank


class Host(OneHost):
    """One of several hosts, which knows where the failure began."""

    def __init__(self, began_here: bool) -> None:
        super().__init__("us-0", LocalRanks())
        self.here = began_here

    def began_here(self, *, wait: bool) -> bool:
        """As it was made."""
        del wait
        return self.here


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
    assert ends_launcher(code, Host(began_here)) is ends
