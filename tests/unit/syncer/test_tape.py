import json
from pathlib import Path

import pytest

from atoll_syncer.storage.store import StoreFull, StoreUnavailable
from atoll_syncer.storage.tape import WAITING_LINES_MAX, Tape


def opened(path: Path) -> Tape:
    tape = Tape(path, lambda: 1.5)
    tape.open()
    return tape


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_has_run_and_time(tmp_path: Path) -> None:
    path = tmp_path / "syncer" / "0.tape.jsonl"
    tape = opened(path)
    assert tape.write("r1", {"kind": "commit", "slice": 3}) is None
    tape.close()
    assert lines(path) == [{"run": "r1", "time": 1.5, "kind": "commit", "slice": 3}]


def test_values_that_json_lacks_become_null(tmp_path: Path) -> None:
    tape = opened(tmp_path / "t.jsonl")
    tape.write("r1", {"loss": float("nan"), "waits": (1.0, {"x": float("inf")})})
    tape.close()
    (line,) = lines(tmp_path / "t.jsonl")
    assert line["loss"] is None
    assert line["waits"] == [1.0, {"x": None}]


@pytest.mark.parametrize("whole", [b"", b'{"a":1}\n', b'{"a":1}\n' * 20_000])
def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(whole + b'{"run": "r1", "ti')
    tape = opened(path)
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


def test_a_place_that_cannot_be_written_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"):
        Tape(tmp_path / "file" / "t.jsonl", lambda: 0.0).open()


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


def test_lines_that_wait_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tape = opened(tmp_path / "t.jsonl")

    def full(handle: int, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tape, "_append", full)
        tape.write("r", commit(0, 1))
        assert tape.waiting_lines == 1
    tape.flush()
    assert tape.waiting_lines == 0
    tape.close()
