"""The edge to the shards: Status and SetOwner over gRPC, with a deadline on every call.

A shard that does not answer is a fact, not an error: every failure of gRPC becomes None. Channels
are kept per address and credentials, and closed when no pod of the job has the address, or nobody
the credentials, any more. A shard takes the owner of a slot only from the operator of its region,
so each call is given its credentials; None means plain text. Why a shard could not be reached is in
`reasons`, as far as a look at it has shown.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.fence import Fence
from atoll_operator.kube.observed.observation import ShardRefusal
from atoll_protos.network import channels, diagnosis
from atoll_protos.network.channels import control_options
from atoll_protos.network.credentials import Credentials
from atoll_protos.network.diagnosis import MismatchError, OtherRunError
from atoll_protos.network.services import Service, client_of

CALL_SECONDS_MAX = 2.0

Key = tuple[str, Credentials | None]  # address, and None in plain text

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Syncers:
    """One channel per address and credentials."""

    fence: Fence | None = None  # before every word; None: for tests
    channels: dict[Key, grpc.aio.Channel] = field(default_factory=dict)
    reasons: dict[Key, ShardRefusal] = field(default_factory=dict)  # since its last answer
    _looks: dict[Key, asyncio.Task[None]] = field(default_factory=dict)

    async def close(self) -> None:
        for look in self._looks.values():
            look.cancel()
        for channel in self.channels.values():
            await channel.close()
        self.channels.clear()

    async def retain(
        self, addresses: Collection[str], used: Collection[Credentials | None]
    ) -> None:
        """Close the channels to `addresses` for which none of these credentials are used."""
        keys = [*self.channels, *self.reasons]
        for key in [each for each in keys if each[0] in addresses and each[1] not in used]:
            self.reasons.pop(key, None)
            channel = self.channels.pop(key, None)
            if channel is not None:
                await channel.close(CALL_SECONDS_MAX)  # what is under way may end

    async def forget(self, addresses: Collection[str]) -> None:
        await self.retain(addresses, ())

    async def status(
        self,
        addresses: Sequence[str],
        request: pb.StatusRequest | None = None,
        credentials: Credentials | None = None,
    ) -> list[pb.StatusReply | None]:
        """Ask every address for its Status at the same time; None where no answer came.

        `request` is what the shards are told (`manifest.elsewhere`); with an intent the credentials
        have to be those of the operator of the syncer's region. A replica that does not lead any
        more, or does not know it yet, asks and tells nothing.
        """
        asked = request or pb.StatusRequest()
        replies = (self._status(each, asked, credentials) for each in addresses)
        return list(await asyncio.gather(*replies))

    async def _status(
        self, address: str, request: pb.StatusRequest, credentials: Credentials | None
    ) -> pb.StatusReply | None:
        if not address:
            return None
        stub: Any = client_of(Service.SYNCER, self._channel(address, credentials))
        if self.fence is not None and not self.fence.is_open:
            request = pb.StatusRequest()  # an intent is a word too, and has no number
        try:
            reply: pb.StatusReply = await stub.Status(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            self._failed((address, credentials), error)
            return None
        self.reasons.pop((address, credentials), None)
        return reply

    async def set_owner(
        self, address: str, slot: str, uid: str, word: int, credentials: Credentials | None = None
    ) -> int | None:
        """Say that from now on the pod `uid` owns the slot; an empty UID retires its owner.

        `word` is the number of the slot's last word (see `sessions`). Returns the number
        afterwards: word + 1 if this one was taken, another if it was refused, None without an
        answer. `credentials`: of the operator of the slot's region. Raises NotLeaderError.
        """
        stub: Any = client_of(Service.REGISTRAR, self._channel(address, credentials))
        request = pb.SetOwnerRequest(slot=slot, uid=uid, word=word)
        if self.fence is not None:
            self.fence.check()
        try:
            reply: pb.SetOwnerReply = await stub.SetOwner(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            self._failed((address, credentials), error)
            return None
        return reply.word

    def _channel(self, address: str, credentials: Credentials | None) -> grpc.aio.Channel:
        key = address, credentials
        if key not in self.channels:
            self.channels[key] = channels.open_channel(address, control_options(), credentials)
        return self.channels[key]

    def _failed(self, key: Key, error: grpc.aio.AioRpcError) -> None:
        """Note why; where nothing could be connected, look once for each outage."""
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            self._note(key, ShardRefusal(text=str(error.details())))
        looks = key in self._looks and not self._looks[key].done()
        unknown = key not in self.reasons and not looks
        if error.code() is grpc.StatusCode.UNAVAILABLE and unknown:
            self._looks[key] = asyncio.create_task(self._look(key))

    async def _look(self, key: Key) -> None:
        address, credentials = key
        seen = await diagnosis.look(address, credentials)
        error = diagnosis.judge(seen, credentials, time.time())
        if error is not None:
            text = error.problem if isinstance(error, MismatchError) else str(error)
            other_run = isinstance(error, OtherRunError)
            self._note(key, ShardRefusal(text=text, other_run=other_run))

    def _note(self, key: Key, reason: ShardRefusal) -> None:
        if self.reasons.get(key) != reason:
            log.warning("shard does not answer", address=key[0], reason=reason.text)
        self.reasons[key] = reason
