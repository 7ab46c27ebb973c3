"""What a shard asks the registrar."""

import asyncio

import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.edges.registrar_client import RegistrarClient


def test_a_registrar_that_is_away_gives_no_reply_and_raises_nothing() -> None:
    async def ask() -> object:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            return await RegistrarClient(lambda _: channel).ask(pb.MarkBegunRequest())

    assert asyncio.run(ask()) is None
