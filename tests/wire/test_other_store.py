"""A shard's process on a store that it cannot use: of another manifest, damaged, or no folder."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from atoll_protos.exits import ExitCode
from wire.fixtures import RUN_FILE, SECONDS_MAX, shard, shard_command


def test_a_process_does_not_carry_on_the_store_of_another_manifest(tmp_path: Path) -> None:
    with shard(tmp_path):
        pass  # its log names the run
    other = dataclasses.replace(RUN_FILE, seed=2)
    (tmp_path / "other.json").write_text(other.to_json())
    entries = sorted(tmp_path.glob("store/log/*"))
    flags = ["--run-file", str(tmp_path / "other.json")]
    command = shard_command(tmp_path, "127.0.0.1:0", *flags)
    process = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)
    assert process.returncode == ExitCode.OTHER_JOB
    output = (process.stdout + process.stderr).decode()
    assert RUN_FILE.hash in output
    assert other.hash in output
    assert sorted(tmp_path.glob("store/log/*")) == entries


# ------------------------------------------------------------ a store that cannot be used


@pytest.mark.parametrize("flag", ["store", "tape", "export"])
def test_a_place_that_cannot_be_used_is_named_with_its_flag_and_a_remedy(
    tmp_path: Path, flag: str
) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "below")
    command = shard_command(tmp_path, "127.0.0.1:0", f"--{flag}", place)
    process = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)
    assert process.returncode == ExitCode.BAD_INPUT
    said = process.stderr.decode().splitlines()[-1]
    assert said.startswith(f"--{flag}: {place}")
    assert "Not a directory" in said
    assert "give a folder" in said
    assert "Traceback" not in process.stderr.decode()
