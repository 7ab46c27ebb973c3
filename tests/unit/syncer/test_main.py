"""How a shard's process ends where its places on the disk cannot be used."""

import argparse
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from atoll_protos import allocator, logs
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_syncer import __main__ as program
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.storage.files import FileStore, StoreFull, StoreUnavailable


def trouble(*, permanent: bool) -> StoreUnavailable:
    error = StoreUnavailable("/data/s", "Permission denied", "let this user write there")
    error.is_permanent = permanent
    return error


def ended_with(error: Exception, patch: pytest.MonkeyPatch) -> int:
    """The exit code of a process whose start raises this."""

    async def serve(_: argparse.Namespace) -> int:
        raise error

    codes = list[int]()
    patch.setattr(program, "serve", serve)
    patch.setattr(program, "parse", argparse.Namespace)
    patch.setattr(allocator, "tune", lambda: None)
    patch.setattr(logs, "configure", lambda: None)
    patch.setattr(os, "_exit", codes.append)
    program.main()
    return codes[0]


def test_a_full_disk_at_the_start_is_said_in_a_line_and_worth_another_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = StoreFull("/data/s", "the disk is full", "make room there")
    assert ended_with(error, monkeypatch) == ExitCode.TRY_AGAIN
    assert capsys.readouterr().err == "/data/s: the disk is full; make room there\n"


def test_a_place_that_only_an_edit_makes_usable_is_bad_input_with_the_flags_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreUnavailable), program.opening("--store"):
        raise trouble(permanent=False)
    with pytest.raises(SpecError) as caught, program.opening("--store"):
        raise trouble(permanent=True)
    assert ended_with(caught.value, monkeypatch) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("--store: /data/s: Permission denied")
    assert "let this user write there" in said


def test_a_start_on_a_full_volume_takes_the_room_of_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a tape that has filled the volume of its log would end every start."""
    tape = tmp_path / "tape.jsonl"
    tape.write_bytes(bytes(2 << 20))
    places = ["--store", str(tmp_path / "s"), "--tape", str(tape), "--export", str(tmp_path / "e")]
    opens, metrics = FileStore.open, ShardMetrics(CollectorRegistry())

    def full(store: FileStore) -> None:
        if tape.stat().st_size:
            raise StoreFull(str(store.root), "the disk is full", "make room there")
        opens(store)

    monkeypatch.setattr(FileStore, "open", full)
    with pytest.raises(StoreFull):
        program.open_places(program.parse([*places, "--tape-bytes", "0"]), metrics)
    _, found, _ = program.open_places(program.parse(places), metrics)
    found.close()
    assert tape.read_bytes() == b""
