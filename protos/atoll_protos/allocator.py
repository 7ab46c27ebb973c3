"""glibc's allocator tuned against page faults, before torch or grpc are imported (TRANSPORT.md)."""

import ctypes
from collections.abc import Mapping
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


def tune() -> bool:
    """Keep freed memory in the process instead of faulting it in anew; False without glibc."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(name, value) == 1 for name, value in SETTINGS.items()])


def child_environment() -> Mapping[str, str]:
    """For a process that is to be executed: huge pages for its heap."""
    return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
