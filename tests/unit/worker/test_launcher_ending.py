"""Who started the launcher sees the end of its process."""

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("code", [0, 64, -int(signal.SIGKILL), -int(signal.SIGTERM)])
def test_the_launcher_ends_as_its_process_did(code: int) -> None:
    script = "import sys; from atoll_worker.launcher.ending import end_as"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; sys.exit(end_as({code}))"], check=False
    )
    assert done.returncode == code
