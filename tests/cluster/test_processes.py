"""When a process of the lab has ended."""

import subprocess
import sys
from pathlib import Path

from cluster.kubectl import until
from cluster.lab.processes import kill, runs

OUTLIVES = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)  # exit, of one thread
"""


def test_a_process_runs_until_its_last_thread_has_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", OUTLIVES]) as process:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            until(
                "its first thread is a zombie",
                lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z",
            )
            assert runs(process.pid)
            kill(process.pid)
            until("it has ended", lambda: not runs(process.pid))
            kill(process.pid)  # no error
        finally:
            process.kill()
