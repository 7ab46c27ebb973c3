"""The runner of planted bugs cleans up after itself, also when it is told to end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from planted.bugs import FOLDER, load

SECONDS_MAX = 240.0


def test_a_runner_that_gets_sigterm_leaves_no_copy_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planted", "--workers", "1", load()[0].id]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=FOLDER.parent, env=environment) as runner:
        end = time.monotonic() + SECONDS_MAX
        while not list(tmp_path.glob("*/copy0/*")):
            assert runner.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        runner.terminate()
        assert runner.wait(SECONDS_MAX) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
