"""Memory: how much there is, and glibc's allocator, tuned before torch or grpc are imported.

glibc gives large freed blocks back to the kernel, which must clear every fresh page that the next
transfer gets; for buffers of some megabytes that took longer than the copy itself.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8

SETTINGS: Final = {
    M_TRIM_THRESHOLD: 1 << 30,
    M_TOP_PAD: 64 << 20,
    M_MMAP_THRESHOLD: 1 << 30,
    M_ARENA_MAX: 1,
}
MMAP_THRESHOLD_OLD: Final = 32 << 20  # the most that an older glibc takes
TUNABLES: Final = "GLIBC_TUNABLES"
HUGE_PAGES: Final = "glibc.malloc.hugetlb"
LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def tune() -> bool:
    """Keep freed memory in the process, in one arena. False where that is not to be had."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    taken = {name: mallopt(name, value) == 1 for name, value in SETTINGS.items()}
    if not taken[M_MMAP_THRESHOLD]:
        taken[M_MMAP_THRESHOLD] = mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_OLD) == 1
    return all(taken.values())


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Ask for huge pages for the heap of a process to be executed; its own choices stay."""
    given = [tunable for tunable in environment.get(TUNABLES, "").split(":") if tunable]
    if not any(tunable.startswith(f"{HUGE_PAGES}=") for tunable in given):
        given.append(f"{HUGE_PAGES}=1")
    return {TUNABLES: ":".join(given)}


def memory_byte_count_max() -> int:
    """Bytes that this process can have: of the machine, or what its container is limited to.

    A larger allocation may well succeed, and kill the process when it uses what it was promised.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [Path(path).read_text().strip() for path in LIMITS if Path(path).exists()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])
