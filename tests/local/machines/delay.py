"""A cable between two network namespaces on which frames take so long: not every kernel has netem.

python delay.py PID DEVICE PID DEVICE MILLISECONDS

Each end is a device (TAP) in the namespace of a process. It says `ready` once both are there. It is
a program of its own, since it changes its namespace; it ends when it is killed.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Final

CLONE_NEWNET: Final = 0x40000000
TUNSETIFF: Final = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX: Final = 65_536
FRAMES_MAX: Final = 10_000  # on their way in one direction; the rest is lost, as in a full queue
READ_AT_ONCE: Final = 64


def end(pid: int, name: str) -> int:
    """The descriptor of a new device of that name in the network namespace of a process."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def carry(ends: tuple[int, int], seconds: float) -> None:
    """For ever."""
    other = dict(zip(ends, reversed(ends), strict=True))
    waiting = {each: deque[tuple[float, bytes]]() for each in ends}  # by where they go
    poll = select.poll()
    for each in ends:
        poll.register(each, select.POLLIN)
    while True:
        due = min((frames[0][0] for frames in waiting.values() if frames), default=None)
        ready = poll.poll(None if due is None else 1000 * max(0.0, due - time.monotonic()))
        for source, _ in ready:
            take(source, waiting[other[source]], seconds)
        now = time.monotonic()
        for target, frames in waiting.items():
            while frames and frames[0][0] <= now:
                with suppress(OSError):  # the device is down
                    os.write(target, frames.popleft()[1])


def take(source: int, frames: deque[tuple[float, bytes]], seconds: float) -> None:
    """Frames that have come, with the moment at which they may go on."""
    for _ in range(READ_AT_ONCE):
        try:
            frame = os.read(source, FRAME_BYTES_MAX)
        except OSError:  # none is there, or the device is down
            return
        if len(frames) < FRAMES_MAX:
            frames.append((time.monotonic() + seconds, frame))


def main() -> None:
    here, there = end(int(sys.argv[1]), sys.argv[2]), end(int(sys.argv[3]), sys.argv[4])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry((here, there), float(sys.argv[5]) / 1000)


if __name__ == "__main__":
    main()
