"""What a process imports is what it needs: start-up time and memory depend on it."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "grpc", "kopf", "kubernetes", "matplotlib", "rich", "safetensors")
TESTS = Path(__file__).parents[1]
SIM = ", ".join(f"sim.{path.stem}" for path in sorted(TESTS.glob("sim/*.py")))


@pytest.mark.parametrize(
    ("module", "not_imported"),
    [
        ("atoll_worker.transport.transport", {"torch", "safetensors", "kopf", "matplotlib"}),
        ("atoll_worker.transport.control_stream", {"torch", "cryptography.x509"}),
        pytest.param(SIM, {"torch"}, id="sim"),
        ("atoll_worker.__main__", {"torch", "numpy", "grpc"}),
        ("atoll_syncer.__main__", {"torch", "numpy", "grpc"}),
        ("atoll_syncer.numbers.values, atoll_syncer.edges.exporting", {"torch", "safetensors"}),
        ("atoll_operator.cli", {"torch", "numpy", "grpc", "kopf", "kubernetes", "matplotlib"}),
        ("atoll_operator.__main__", {"torch", "numpy", "matplotlib"}),
        (
            "atoll",
            {"grpc", "kopf", "matplotlib", "safetensors", "torch._dynamo", "cryptography.x509"},
        ),
    ],
)
def test_a_program_imports_nothing_heavy_that_it_does_not_need(
    module: str, not_imported: set[str]
) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert not_imported.isdisjoint(done.stdout.split())
