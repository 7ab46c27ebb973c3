"""The allocator keeps what was freed: memory that is used again causes no page faults."""

import json
import subprocess
import sys
from pathlib import Path

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


def test_a_process_can_have_what_its_container_or_its_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, unlimited = tmp_path / "limit", tmp_path / "unlimited"
    unlimited.write_text("max\n")
    monkeypatch.setattr(allocator, "LIMITS", (str(unlimited), str(tmp_path / "absent")))
    machine = allocator.memory_byte_count_max()
    assert machine > 1 << 28
    limit.write_text(f"{1 << 20}\n")
    monkeypatch.setattr(allocator, "LIMITS", (str(unlimited), str(limit)))
    assert allocator.memory_byte_count_max() == 1 << 20
