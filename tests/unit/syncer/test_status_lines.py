"""What a person asks shards for: their answers, and the lines of the tape that hold losses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import PLAIN_TEXT
from atoll_protos.network.services import Service, add_handlers
from atoll_syncer.edges import status_lines


class Shard:
    """Answers one question."""

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        slot = pb.SlotStatus(slot="a-0", state=pb.SLOT_TRAINING, loss=float("nan"), tokens=7)
        return pb.StatusReply(run="r", tick=5, commits=2, slots=[slot], must_equal="x" * 100)


def test_every_shard_answers_or_is_said_to_be_silent() -> None:
    async def ask() -> list[dict[str, Any]]:
        server = grpc.aio.server()
        add_handlers(Service.SYNCER, Shard(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await status_lines.ask([f"127.0.0.1:{port}", "127.0.0.1:1"], PLAIN_TEXT)
        finally:
            await server.stop(0)

    first, second = asyncio.run(ask())
    assert (first["shard"], first["tick"], first["commits"]) == (0, "5", "2")  # as JSON has them
    assert first["slots"][0]["loss"] == "NaN"
    assert "must_equal" not in first
    assert second["shard"] == 1
    assert "127.0.0.1:1 does not answer (UNAVAILABLE" in second["problem"]


def test_of_a_tape_the_whole_lines_with_losses_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = tmp_path / "tape.jsonl"
    lines = [
        {"event": "seeded"},
        {"event": "commit", "tick": 3, "losses": [{"slot": "a-0", "loss": 2.0}]},
        {"event": "evaluation", "tick": 4, "loss": 1.5},
    ]
    whole = [json.dumps(line) + "\n" for line in lines]
    (tmp_path / "tape.jsonl.1").write_text("".join(whole[:2]))  # the tape has rotated
    tape.write_text(whole[2] + whole[1][:-5])  # a kill has cut the last one
    monkeypatch.setattr("sys.argv", ["status_lines", "--curves", "--tape", str(tape)])
    status_lines.main()
    assert capsys.readouterr().out == "".join(whole[1:])


def test_a_tape_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["status_lines", "--curves", "--tape", str(tmp_path / "no")])
    with pytest.raises(SystemExit) as ended:
        status_lines.main()
    assert ended.value.code == 75
    assert capsys.readouterr().err.count("\n") == 1
