"""Modes of what a run writes, and where its sockets are."""

import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from atoll_operator.local.run_files import Files
from atoll_operator.local.run_folder import UMASK, make_folder, private, socket_folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def _usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_folder_is_private_and_those_above_it_are_as_usual(tmp_path: Path) -> None:
    make_folder(tmp_path / "runs" / "one")
    assert (mode(tmp_path / "runs"), mode(tmp_path / "runs" / "one")) == (0o755, 0o700)


def test_what_a_run_makes_is_private_in_a_folder_that_others_may_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for folder in (out, out / "mine"):
        folder.mkdir(mode=0o755)
    (out / "mine.txt").touch(0o644)
    with private(out) as umask:
        (out / "loss.png").touch()
        assert umask == 0o022
    (out / "loss.jpg").touch()  # the umask is as it was
    closed = ("commits", "export", "syncer", "loss.png")
    assert [mode(out / name) & UMASK for name in closed] == [0] * len(closed)
    kept = (out, out / "mine", out / "mine.txt", out / "loss.jpg")
    assert [*map(mode, kept)] == [0o755, 0o755, 0o644, 0o644]


def test_what_commands_write_beside_a_run_is_private(tmp_path: Path) -> None:
    (tmp_path / "length.json").touch(0o644)
    assert Files(tmp_path, pytest.fail).write("length.json", "{}")
    assert mode(tmp_path / "length.json") == 0o600


@pytest.mark.parametrize("name", ["plain", "long" * 30, "a, b"])
def test_sockets_are_in_a_private_folder_with_a_path_that_can_be_dialled(
    name: str,
) -> None:
    with TemporaryDirectory() as above:  # pytest's own have long paths
        check_sockets(Path(above, name), in_it=name == "plain")


def check_sockets(out: Path, *, in_it: bool) -> None:
    left = out / "sockets-of-one-that-was-killed"
    left.mkdir(parents=True)
    with socket_folder(out) as folder, socket.socket(socket.AF_UNIX) as shard:
        shard.bind(str(folder / "shard-999-b-12345"))
        assert mode(folder) == 0o700
        assert folder.is_relative_to(out) == in_it
        assert "," not in str(folder)
        assert not left.exists()
    assert not folder.exists()
