"""Files as they are sent, put together again."""

import os
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.machines.server import file_sights
from atoll_operator.machines.server.file_sights import FileSight
from atoll_protos.errors import SpecError


def taken(sight: FileSight, had: dict[str, bytes]) -> dict[str, bytes]:
    """What a caller has who had this."""
    for piece in sight.pieces():
        had[piece.name] = (b"" if piece.begins else had[piece.name]) + piece.data
    return had


def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir(exist_ok=True)
    return tmp_path


def test_an_appended_file_goes_on_and_another_of_its_name_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sights, "PIECE_BYTES", 4)
    log, had = run_folder(tmp_path) / "logs/a.log", dict[str, bytes]()
    sight = FileSight(out=tmp_path, sight=pb.SIGHT_LOGS)
    log.write_bytes(b"0123456789\nbeg")
    assert taken(sight, had) == {"logs/a.log": b"0123456789\nbeg"}
    with log.open("ab") as file:
        file.write(b"un\n")
    assert taken(sight, had) == {"logs/a.log": b"0123456789\nbegun\n"}
    assert not [*sight.pieces()]
    (tmp_path / "new").write_bytes(b"another, and as long as it was")
    (tmp_path / "new").replace(log)
    assert taken(sight, had) == {"logs/a.log": b"another, and as long as it was"}
    log.write_bytes(b"")
    assert taken(sight, had) == {"logs/a.log": b""}


def test_a_file_that_is_written_as_a_whole_comes_as_a_whole(tmp_path: Path) -> None:
    file, had = tmp_path / "status.json", dict[str, bytes]()
    sight = FileSight(out=tmp_path, sight=pb.SIGHT_STATUS)
    for text in (b"{}", b"{1}", b"{2}"):
        file.write_bytes(text)
        os.utime(file, ns=(len(had), int(text[1:2] == b"2") + len(text)))
        assert taken(sight, had) == {"status.json": text}
    assert not [*sight.pieces()]


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from([b"\n", b"a", b"bc"]), max_size=30).map(b"".join),
    tail=st.none() | st.integers(0, 8),
    most=st.integers(1, 40),
)
def test_the_end_of_a_log_is_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, tail: int | None, most: int
) -> None:
    out = run_folder(tmp_path_factory.mktemp("run"))
    (out / "logs/a.log").write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sights, "LOG_BYTES_MAX", most)
        pieces = [*FileSight(out=out, sight=pb.SIGHT_LOGS, tail=tail).pieces()]
    cut = len(text) - most
    kept = text if cut <= 0 else text[cut:].partition(b"\n")[2]
    expected = b"".join(deque(kept.splitlines(keepends=True), maxlen=tail))
    assert b"".join(each.data for each in pieces) == expected
    assert pieces[0].left_out_bytes == len(text) - len(expected)


def test_more_than_may_be_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sights, "ALL_BYTES_MAX", 3 << 20)
    monkeypatch.setattr(file_sights, "LOG_BYTES_MAX", 1 << 20)
    (run_folder(tmp_path) / "logs/a.log").write_bytes(bytes(4 << 20))
    FileSight(out=tmp_path, sight=pb.SIGHT_LOGS).check()  # its end alone is sent
    (tmp_path / "evaluations.jsonl").write_bytes(bytes(4 << 20))
    with pytest.raises(SpecError, match="it has 4 MiB to look at, and 3 may be sent"):
        FileSight(out=tmp_path, sight=pb.SIGHT_CURVES).check()


def test_a_pipe_among_the_logs_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(run_folder(tmp_path) / "logs/a.log")
    assert not [*FileSight(out=tmp_path, sight=pb.SIGHT_LOGS).pieces()]
