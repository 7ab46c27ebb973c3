"""The edge to the shards: Status and SetOwner over gRPC, with a deadline on every call.

A shard that does not answer is a fact, not an error: every failure of gRPC, a deadline included,
becomes None, and the caller decides what silence means. Shards are asked all at once, so that one
that hangs costs a pass CALL_SECONDS_MAX and not a multiple of it. Channels are kept per address and
identity, and closed when no pod of the job has the address any more. A job's operator speaks for
one region at a time (a shard takes the owner of a slot only from the operator of its region), so
each call is given the credentials to make it with; None means plain text.

Why a shard could not be reached is in `reasons`, as far as a look at it has shown: TLS on one side
only, or credentials of another job or run.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.fence import Fence
from atoll_protos import channels, diagnosis
from atoll_protos.channels import Options, control_options
from atoll_protos.credentials import Credentials
from atoll_protos.diagnosis import MismatchError
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub, SyncerStub

CALL_SECONDS_MAX = 2.0
RECONNECT: Options = [
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
]

Key = tuple[str, str]  # address and identity; empty in plain text

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Syncers:
    """One channel per address and identity; renewed credentials get a new one."""

    fence: Fence | None = None  # before every word; None: for tests
    channels: dict[Key, tuple[grpc.aio.Channel, Credentials | None]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # by address, since its last answer
    _looks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def close(self) -> None:
        """Close all channels."""
        for look in self._looks.values():
            look.cancel()
        for channel, _ in self.channels.values():
            await channel.close()
        self.channels.clear()

    async def forget(self, addresses: Sequence[str]) -> None:
        """Close channels to pods that are gone."""
        gone = {*addresses}
        for key in [each for each in self.channels if each[0] in gone]:
            channel, _ = self.channels.pop(key)
            await channel.close()
        for address in gone:
            self.reasons.pop(address, None)

    async def status(
        self,
        addresses: Sequence[str],
        request: pb.StatusRequest | None = None,
        credentials: Credentials | None = None,
    ) -> list[pb.StatusReply | None]:
        """Ask every address for its Status at the same time; None where no answer came.

        `request`: what the shards are told with the question (`plan.elsewhere`); with an intent
        the credentials have to be those of the operator of the syncer's region. A replica that
        does not lead any more, or does not know it yet, asks and tells nothing.
        """
        asked = request or pb.StatusRequest()
        replies = (self._status(each, asked, credentials) for each in addresses)
        return list(await asyncio.gather(*replies))

    async def _status(
        self, address: str, request: pb.StatusRequest, credentials: Credentials | None
    ) -> pb.StatusReply | None:
        if not address:
            return None
        stub: Any = SyncerStub(await self._channel(address, credentials))
        if self.fence is not None and not self.fence.is_open:
            request = pb.StatusRequest()  # an intent is a word too, and has no number
        try:
            reply: pb.StatusReply = await stub.Status(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            self._failed(address, credentials, error)
            return None
        self.reasons.pop(address, None)
        return reply

    async def set_owner(
        self, address: str, slot: str, uid: str, word: int, credentials: Credentials | None = None
    ) -> int | None:
        """Say that from now on the pod `uid` owns the slot; an empty UID retires its owner.

        `word` is the number of the slot's last word (see `plan.sessions`). Returns the slot's last
        word afterwards: word + 1 if this one was taken, another number if it was refused, None
        when the registrar does not answer. `credentials`: of the operator of the slot's region.
        Raises NotLeaderError.
        """
        stub: Any = RegistrarStub(await self._channel(address, credentials))
        request = pb.SetOwnerRequest(slot=slot, uid=uid, word=word)
        if self.fence is not None:
            self.fence.check()
        try:
            reply: pb.SetOwnerReply = await stub.SetOwner(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            self._failed(address, credentials, error)
            return None
        return reply.word

    async def _channel(self, address: str, credentials: Credentials | None) -> grpc.aio.Channel:
        key = address, credentials.identity.uri if credentials else ""
        channel, used = self.channels.get(key, (None, None))
        if channel is not None and used == credentials:
            return channel
        options = [*control_options(), *RECONNECT]
        new = channels.open_channel(address, options, credentials)
        self.channels[key] = new, credentials
        if channel is not None:
            await channel.close(CALL_SECONDS_MAX)  # what is under way may end
        return new

    def _failed(
        self, address: str, credentials: Credentials | None, error: grpc.aio.AioRpcError
    ) -> None:
        """Note why; where nothing could be connected, look once for each outage."""
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            self._note(address, str(error.details()))
        looks = address in self._looks and not self._looks[address].done()
        unknown = address not in self.reasons and not looks
        if error.code() is grpc.StatusCode.UNAVAILABLE and unknown:
            self._looks[address] = asyncio.create_task(self._look(address, credentials))

    async def _look(self, address: str, credentials: Credentials | None) -> None:
        seen = await diagnosis.look(address, credentials)
        error = diagnosis.judge(seen, credentials, time.time())
        if error is not None:
            self._note(address, error.problem if isinstance(error, MismatchError) else str(error))

    def _note(self, address: str, reason: str) -> None:
        if self.reasons.get(address) != reason:
            log.warning("shard does not answer", address=address, reason=reason)
        self.reasons[address] = reason
