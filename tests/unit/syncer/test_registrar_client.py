"""What a shard asks the registrar."""

import asyncio
from typing import Any

import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.edges.registrar_client import RegistrarClient


def test_a_registrar_that_is_away_gives_no_reply_and_is_dialled_anew() -> None:
    """A process that stands keeps its connection, and another one may have the shard by now."""
    dialled: list[grpc.aio.Channel] = []

    def dial(_: Any) -> grpc.aio.Channel:
        dialled.append(grpc.aio.insecure_channel("127.0.0.1:1"))
        return dialled[-1]

    async def ask() -> list[object]:
        client = RegistrarClient(dial)
        return [await client.ask(pb.MarkBegunRequest()) for _ in range(2)]

    assert asyncio.run(ask()) == [None, None]
    assert len(dialled) == 2
