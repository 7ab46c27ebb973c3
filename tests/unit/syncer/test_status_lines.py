"""What a person asks shards for: their answers."""

import asyncio
from typing import Any

import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import PLAIN_TEXT
from atoll_protos.v1.atoll_pb2_grpc import SyncerServicer, add_SyncerServicer_to_server
from atoll_syncer.edges import status_lines


class Shard(SyncerServicer):
    """Answers one question."""

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        slot = pb.SlotStatus(slot="a-0", state=pb.SLOT_TRAINING, loss=float("nan"), tokens=7)
        return pb.StatusReply(run="r", tick=5, commits=2, slots=[slot], must_equal="x" * 100)


def test_every_shard_answers_or_is_said_to_be_silent() -> None:
    async def ask() -> list[dict[str, Any]]:
        server = grpc.aio.server()
        add_SyncerServicer_to_server(Shard(), server)  # type: ignore[abstract]
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
