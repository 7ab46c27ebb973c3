"""`python log_keeper.py LOG`: appends what comes to its standard input to a log.

A process that wrote its log itself would end where the disk is full: `print` raises OSError. This
program keeps what the disk does not take, at most the newest 64 KiB, and tries again. It ends when
all who write have ended, and not by SIGTERM: systemd and Slurm may send it to all processes at
once, and who writes then has its last words yet to say. It imports next to nothing: each process
has one.
"""

import os
import signal
import sys

READ_BYTES = 65_536
WAITING_BYTES_MAX = 65_536  # the newest, since the last words are what people look for


def keep(source: int, path: str) -> None:
    waiting = b""
    while chunk := os.read(source, READ_BYTES):
        waiting = written(path, waiting + chunk)[-WAITING_BYTES_MAX:]
    written(path, waiting)


def written(path: str, text: bytes) -> bytes:
    """Append as much as the disk takes; returns the rest."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            while text:
                text = text[os.write(file.fileno(), text) :]
    except OSError:
        return text
    return b""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep(sys.stdin.fileno(), sys.argv[1])
