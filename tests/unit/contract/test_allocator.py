"""The allocator keeps what was freed: memory that is used again causes no page faults."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from atoll_protos import allocator

FAULTS = """
import json, resource
from atoll_protos import allocator
tuned = allocator.tune()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (48 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(json.dumps([tuned, faults()]))
"""


def test_a_tuned_process_uses_freed_memory_again_without_page_faults() -> None:
    command = [sys.executable, "-c", FAULTS]
    tuned, faults = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert tuned
    assert faults < 100  # 12288 pages


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert not allocator.tune()


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": ""}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}, "glibc.malloc.hugetlb=2"),
        ({"GLIBC_TUNABLES": "glibc.rtld.nns=8"}, "glibc.rtld.nns=8:glibc.malloc.hugetlb=1"),
    ],
)
def test_a_child_gets_huge_pages_beside_the_tunables_that_are_set(
    given: dict[str, str], passed: str
) -> None:
    assert allocator.child_environment(given) == {"GLIBC_TUNABLES": passed}


def test_a_child_starts_in_that_environment() -> None:
    environment = {**os.environ, **allocator.child_environment()}
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
