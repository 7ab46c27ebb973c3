"""How a launcher ends: by its first cause, as its process did."""

import signal
import subprocess
import sys

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


ABORTED_BY_TORCH = "terminate called"


@pytest.mark.parametrize("code", [0, 64, -int(signal.SIGKILL), -int(signal.SIGTERM)])
def test_the_launcher_ends_as_its_process_did(code: int) -> None:
    script = "from atoll_worker.launcher.launch import end_as"
    done = subprocess.run([sys.executable, "-c", f"{script}; end_as({code})"], check=False)
    assert done.returncode == code


IN_THE_STORE = """
import threading
from torch.distributed import TCPStore
from atoll_worker.launcher.launch import end_as
here = TCPStore("127.0.0.1", 0, is_master=True)
asked = threading.Semaphore(0)
def ask():
    while True:
        here.add("said", 1)
        asked.release()
for _ in range(8):
    threading.Thread(target=ask, daemon=True).start()
for _ in range(100):
    asked.acquire()
print("all is said")
end_as(0)
"""


def test_a_thread_that_asks_the_store_of_host_0_does_not_abort_a_launcher_at_its_end() -> None:
    """It goes to and fro between torch and Python while the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_STORE], check=False, capture_output=True, text=True
    )
    assert ABORTED_BY_TORCH not in done.stderr
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all is said" in done.stdout
