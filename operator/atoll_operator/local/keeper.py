"""`python keeper.py LOG`: appends what comes to its standard input to a log.

A process that wrote its log itself would end where the disk is full: `print` raises OSError. It
writes into a pipe, and this program keeps what the disk does not take, at most the newest 64 KiB,
and tries again. It ends when all who write have ended, so it needs nobody to stop it.

It imports nothing but what Python has loaded anyway, since one is started with every process.
"""

import os
import sys

READ_BYTES = 65_536
WAITING_BYTES_MAX = 65_536  # the newest, since the last words are what people look for


def keep(source: int, path: str) -> None:
    """Append what can be read to the file, to the end of what is read."""
    waiting = b""
    while chunk := os.read(source, READ_BYTES):
        waiting = written(path, waiting + chunk)[-WAITING_BYTES_MAX:]
    written(path, waiting)


def written(path: str, text: bytes) -> bytes:
    """Append as much as the disk takes; returns the rest."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return text
    try:
        while text:
            text = text[os.write(file, text) :]
    except OSError:
        pass
    finally:
        os.close(file)
    return text


if __name__ == "__main__":
    keep(sys.stdin.fileno(), sys.argv[1])
