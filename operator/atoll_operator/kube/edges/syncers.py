"""The edge to the shards: Status and SetOwner over gRPC, with a deadline on every call.

A shard that does not answer is a fact, not an error: every failure of gRPC, a deadline included,
becomes None, and the caller decides what silence means. Shards are asked all at once, so that one
that hangs costs a pass CALL_SECONDS_MAX and not a multiple of it. Channels are kept per address
and closed when no pod of the job has the address any more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.fence import Fence
from atoll_protos.channels import control_options
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub, SyncerStub

CALL_SECONDS_MAX = 2.0


@dataclass(slots=True, kw_only=True)
class Syncers:
    """One channel per address."""

    fence: Fence | None = None  # before every word; None: for tests
    channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    async def close(self) -> None:
        """Close all channels."""
        for channel in self.channels.values():
            await channel.close()
        self.channels.clear()

    async def forget(self, addresses: Sequence[str]) -> None:
        """Close channels to pods that are gone."""
        for address in addresses:
            channel = self.channels.pop(address, None)
            if channel is not None:
                await channel.close()

    async def status(
        self, addresses: Sequence[str], request: pb.StatusRequest | None = None
    ) -> list[pb.StatusReply | None]:
        """Ask every address for its Status at the same time; None where no answer came.

        `request`: what the shards are told with the question (`plan.elsewhere`).
        """
        asked = request or pb.StatusRequest()
        return list(await asyncio.gather(*(self._status(each, asked) for each in addresses)))

    async def _status(self, address: str, request: pb.StatusRequest) -> pb.StatusReply | None:
        if not address:
            return None
        stub: Any = SyncerStub(self._channel(address))
        try:
            reply: pb.StatusReply = await stub.Status(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError:
            return None
        return reply

    async def set_owner(self, address: str, slot: str, uid: str, word: int) -> int | None:
        """Say that from now on the pod `uid` owns the slot; an empty UID retires its owner.

        `word` is the number of the slot's last word (see `plan.sessions`). Returns the slot's last
        word afterwards: word + 1 if this one was taken, another number if it was refused, None
        when the registrar does not answer. Raises NotLeaderError.
        """
        if self.fence is not None:
            self.fence.check()
        stub: Any = RegistrarStub(self._channel(address))
        request = pb.SetOwnerRequest(slot=slot, uid=uid, word=word)
        try:
            reply: pb.SetOwnerReply = await stub.SetOwner(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError:
            return None
        return reply.word

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self.channels.get(address)
        if channel is None:
            options = [
                *control_options(),
                ("grpc.initial_reconnect_backoff_ms", 500),
                ("grpc.max_reconnect_backoff_ms", 2000),
            ]
            channel = grpc.aio.insecure_channel(address, options=options)
            self.channels[address] = channel
        return channel
