"""The generated code is what the one pinned generator writes from the .proto."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import grpc_tools
import pytest

PROTOS = Path(__file__).parents[3] / "protos"
PROTO = "atoll_protos/v1/atoll.proto"
GENERATOR = "1.76.0"
KINDS = ("python", "pyi", "grpc_python", "mypy_grpc")
OUT = " ".join(f"--{kind}_out=protos" for kind in KINDS)
REMEDY = f"run python -m grpc_tools.protoc -Iprotos {OUT} {PROTO}"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    includes = Path(grpc_tools.__file__).parent / "_proto"
    outputs = [f"--{kind}_out={folder}" for kind in KINDS]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{includes}"]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # with mypy-protobuf's
    subprocess.run([*command, *outputs, PROTO], check=True, env={**os.environ, "PATH": programs})
    return folder / "atoll_protos/v1"


def test_the_generator_is_the_pinned_one() -> None:
    assert importlib.metadata.version("grpcio-tools") == GENERATOR


@pytest.mark.parametrize("suffix", [".py", ".pyi", "_grpc.py", "_grpc.pyi"])
def test_the_checked_in_file_is_current(suffix: str, fresh: Path) -> None:
    name = f"atoll_pb2{suffix}"
    checked_in = (PROTOS / "atoll_protos/v1" / name).read_text()
    assert checked_in == (fresh / name).read_text(), f"{name} is stale; {REMEDY}"


def test_every_enum_begins_unspecified() -> None:
    """Zero is what an absent field reads as: it must not be taken for a choice."""
    text = (PROTOS / PROTO).read_text()
    firsts = re.findall(r"^enum \w+ \{\n\s*(\w+) = (\d+)", text, re.MULTILINE)
    assert len(firsts) == text.count("\nenum ")
    assert all(name.endswith("_UNSPECIFIED") and number == "0" for name, number in firsts)
