"""Who started the launcher sees the end of its process."""

import signal
import subprocess
import sys

import pytest

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
