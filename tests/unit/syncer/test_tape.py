import errno
import json
import os
from pathlib import Path

import pytest

from atoll_syncer.storage.files import StoreFull, StoreUnavailable
from atoll_syncer.storage.tape import BYTES_MAX, GIVEN_BYTES_MIN, WAITING_LINES_MAX, Tape


def opened(path: Path, bytes_max: int = BYTES_MAX) -> Tape:
    tape = Tape(path, lambda: 1.5, bytes_max)
    tape.open()
    return tape


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_has_run_and_time_and_what_json_lacks_is_null(tmp_path: Path) -> None:
    path = tmp_path / "syncer" / "0.tape.jsonl"
    tape = opened(path)
    record = {"kind": "commit", "loss": float("nan"), "waits": (1.0, {"x": float("inf")})}
    assert tape.write("r1", record) is None
    tape.close()
    plain = {"kind": "commit", "loss": None, "waits": [1.0, {"x": None}]}
    assert lines(path) == [{"run": "r1", "time": 1.5, **plain}]
    with pytest.raises(StoreUnavailable, match=r"0\.tape"):  # a file is in the folder's place
        opened(path / "t.jsonl")


@pytest.mark.parametrize("whole", [b"", b'{"a":1}\n', b'{"a":1}\n' * 20_000])
def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(whole + b'{"run": "r1", "ti')
    tape = opened(path)
    assert path.read_bytes() != whole, "another process may be writing that line"
    tape.begin()
    tape.write("r1", {})
    tape.close()
    assert path.read_bytes() == whole + b'{"run": "r1", "time": 1.5}\n'


def test_a_full_disk_delays_lines_and_tears_none(small_disk: Path) -> None:
    tape = opened(small_disk / "t.jsonl")
    filler = small_disk / "filler"
    filler.write_bytes(bytes((1 << 20) - 8192))
    written = 0
    while (trouble := tape.write("r1", {"n": written, "text": "x" * 100})) is None:
        written += 1
    assert isinstance(trouble, StoreFull)
    assert trouble.path == str(small_disk / "t.jsonl")
    assert [line["n"] for line in lines(tape.path)] == list(range(written))
    filler.unlink()
    assert tape.write("r1", {"n": written + 1}) is None
    assert [line["n"] for line in lines(tape.path)] == list(range(written + 2))
    assert tape.dropped_lines == 0
    tape.close()


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(small_disk: Path) -> None:
    tape = opened(small_disk / "t.jsonl")
    (small_disk / "filler").write_bytes(bytes((1 << 20) - 4096))
    while tape.write("r1", {"text": "x" * 1000}) is None:
        pass
    for _ in range(WAITING_LINES_MAX + 2):
        tape.write("r1", {"text": "x" * 1000})
    assert tape.dropped_lines == 3
    tape.close()


# ------------------------------------------------------------ commits that are on it


def commit(fragment: int, version: int, epoch: int = 1, **more: object) -> dict[str, object]:
    return {"event": "commit", "slice": fragment, "version": version, "epoch": epoch, **more}


@pytest.mark.parametrize("padding", [0, 100_000])
def test_the_last_commits_are_found_from_the_end(tmp_path: Path, padding: int) -> None:
    tape = opened(tmp_path / "t.jsonl")
    for version in range(1, 9):
        for fragment in (0, 1):
            tape.write("r", commit(fragment, version, reason="x" * padding))
        tape.write("r", {"event": "late", "slice": 0})
    found = tape.commits({0: 7, 1: 5})
    assert {(0, 8, 1), (0, 7, 1), (1, 8, 1), (1, 7, 1), (1, 6, 1), (1, 5, 1)} <= found
    assert (1, 2, 1) not in found, "it reads no further than it must"
    assert tape.commits({0: 1}) >= {(0, version, 1) for version in range(1, 9)}
    assert tape.commits({}) == set()
    tape.close()


def test_lines_that_are_not_of_a_commit_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"event": "commit"}\n"commit"\nnot JSON "commit"\n')
    tape = opened(path)
    tape.write("r", commit(0, 1))
    assert tape.commits({0: 1}) == {(0, 1, 1)}
    tape.close()


# ------------------------------------------------------------ rotation, and a full volume


def test_a_file_that_is_full_becomes_the_older_one_and_two_are_kept(tmp_path: Path) -> None:
    tape = opened(tmp_path / "t.jsonl", 1000)
    for version in range(1, 101):
        tape.write("r", commit(0, version))
        assert tape.path.stat().st_size <= 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl", "t.jsonl.1"]
    kept = [line["version"] for line in [*lines(tape.older), *lines(tape.path)]]
    assert kept == list(range(101 - len(kept), 101))
    assert tape.commits({0: 1}) == {(0, version, 1) for version in kept}
    tape.sync()
    tape.close()


def test_without_a_limit_one_file_has_every_line_and_nothing_gives_way(tmp_path: Path) -> None:
    tape = opened(tmp_path / "t.jsonl", 0)
    tape.write("r", {"text": "x" * GIVEN_BYTES_MIN})
    tape.write("r", {})
    assert tape.give_way(str(tmp_path)) == 0
    tape.close()
    assert len(lines(tape.path)) == 2
    assert not tape.older.exists()


def test_on_a_full_volume_the_older_file_gives_way_first(small_disk: Path) -> None:
    tape = opened(small_disk / "t.jsonl", 400_000)
    while not tape.older.exists():
        tape.write("r", {"text": "x" * 1000})
    older, newer = tape.older.stat().st_size, tape.path.read_bytes()
    assert tape.give_way(str(small_disk / "log" / "1")) == older
    assert tape.path.read_bytes() == newer
    assert tape.give_way(str(small_disk / "log" / "1")) == 0, "less than helps"
    tape.close()


def test_then_what_the_newer_file_has_gives_way_and_the_tape_goes_on(
    tmp_path: Path, small_disk: Path
) -> None:
    tape = opened(tmp_path / "t.jsonl")
    tape.write("r", {"text": "x" * GIVEN_BYTES_MIN})
    assert tape.give_way(str(small_disk / "export")) == 0, "it is not on that volume"
    assert tape.give_way(str(tmp_path / "objects")) > GIVEN_BYTES_MIN
    tape.write("r", {})
    tape.close()
    assert lines(tape.path) == [{"run": "r", "time": 1.5}]


def test_a_rotation_that_finds_no_room_is_tried_again_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = opened(tmp_path / "t.jsonl", 100)
    tape.write("r", {"n": 0, "text": "x" * 50})
    opens = os.open

    def full(path: object, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "open", full)
    assert isinstance(tape.write("r", {"n": 1, "text": "x" * 50}), StoreFull)
    assert tape.waiting_lines == 1
    monkeypatch.setattr(os, "open", opens)
    assert tape.flush() is None
    assert [line["n"] for line in [*lines(tape.older), *lines(tape.path)]] == [0, 1]
    tape.close()
