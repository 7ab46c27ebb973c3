"""Processes of a run, found by the folder that all of them have in their environment; memory."""

import os
import time
from contextlib import suppress
from pathlib import Path

SECONDS_MAX = 300.0
BLOCK_BYTES = 512  # of st_blocks
LANES = b"atoll_worker.transport_process"  # it, or a lane process


def of_run(out: Path) -> list[int]:
    """All learners' processes of the run in this folder, and what they have started."""
    wanted = f"ATOLL_TELEMETRY_DIR={out}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended
                continue
    return found


def beside(pid: int) -> int | None:
    """The transport process or lane process that a training process has started."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            for child in (thread / "children").read_text().split():
                if LANES in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
        except OSError:  # it has ended meanwhile
            continue
    return None


def check_none_is_left(out: Path) -> None:
    """After the end of a run nothing that it has started is there."""
    deadline = time.monotonic() + SECONDS_MAX
    while left := of_run(out):
        assert time.monotonic() < deadline, [*map(command_of, left)]
        time.sleep(0.1)


def command_of(pid: int) -> bytes:
    """Its command line; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def lives(pid: int) -> bool:
    """Whether it runs; a zombie that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def shared_bytes() -> int:
    """Of the memory that this process shares with the one beside it; of a file what is written."""
    blocks = dict[int, int]()  # by inode: a mapping has a descriptor of its own
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            if "memfd:atoll" in os.readlink(each):
                blocks[each.stat().st_ino] = each.stat().st_blocks
    return BLOCK_BYTES * sum(blocks.values())
