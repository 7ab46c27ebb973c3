"""The edge to the shards: Status and SetOwner over gRPC, every job's shards each second.

A shard that cannot be reached costs a call its whole deadline, for which no pass may wait. So each
job that has shards has one task (`Poll`), which asks them all, notes the answers in the job's
memory, and asks again POLL_SECONDS after it began, or when the answers are there if that is later.

Answers of before a pass's effects are not judged: a pass that has named an owner, or deleted a pod,
would see its own effect undone and do it again. `follow` tells whether a poll has begun after the
job's last effects (`JobMemory.acted_at`) and has ended. If not, it begins one at once, and its end
brings the next pass (`done`). Otherwise a poll asks for a pass when what the shards answer has
changed in more than its progress.

A shard that does not answer is a fact, not an error: every failure of gRPC becomes None, and
`reasons` has why, as far as a look at it has shown. Channels are kept per address and credentials,
and closed when no pod of the job has the address, or nobody the credentials, any more. A shard
takes the owner of a slot only from the operator of its region, so each call is given its
credentials; None means plain text. Credentials that a person has brought may be wrong: where no
shard takes the newest ones, the last that one has taken are tried too.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.election import Fence
from atoll_operator.kube.observed.cache import Key
from atoll_operator.kube.observed.memory import LONG_AGO, JobMemory
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import ShardRefusal
from atoll_protos.network import channels
from atoll_protos.network.channels import (
    MismatchError,
    OtherRunError,
    control_options,
    details_of,
    judge,
    probe,
)
from atoll_protos.network.credentials import Credentials
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub, SyncerStub

CALL_SECONDS_MAX = 2.0

SyncerKey = tuple[str, Credentials | None]  # address, and None in plain text

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Syncers:
    """One channel per address and credentials."""

    fence: Fence | None = None  # before every change; None: for tests
    channels: dict[SyncerKey, grpc.aio.Channel] = field(default_factory=dict)
    reasons: dict[SyncerKey, ShardRefusal] = field(default_factory=dict)  # since its last answer
    _looks: dict[SyncerKey, asyncio.Task[None]] = field(default_factory=dict)

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

        `request` is what the shards are told (`plan.phase`); with an intent the credentials
        have to be those of the operator of the syncer's region. A replica that does not lead any
        more, or does not know it yet, asks and tells nothing.
        """
        asked = request or pb.StatusRequest()
        replies = (self._status(address, asked, credentials) for address in addresses)
        return list(await asyncio.gather(*replies))

    async def _status(
        self, address: str, request: pb.StatusRequest, credentials: Credentials | None
    ) -> pb.StatusReply | None:
        if not address:
            return None
        stub = SyncerStub(self._channel(address, credentials))
        if self.fence is not None and not self.fence.is_open:
            request = pb.StatusRequest()  # an intent has no generation
        try:
            reply: pb.StatusReply = await stub.Status(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            self._failed((address, credentials), error)
            return None
        self.reasons.pop((address, credentials), None)
        return reply

    async def set_owner(
        self,
        address: str,
        slot: str,
        uid: str,
        generation: int,
        credentials: Credentials | None = None,
    ) -> int | None:
        """Say that from now on the pod `uid` owns the slot; an empty UID retires its owner.

        `generation` is that of the slot's owner (see `sessions`). Returns the one
        afterwards: generation + 1 if this one was taken, another if it was refused, None without an
        answer. `credentials`: of the operator of the slot's region. Raises NotLeaderError.
        """
        stub = RegistrarStub(self._channel(address, credentials))
        request = pb.SetOwnerRequest(slot=slot, uid=uid, generation=generation)
        if self.fence is not None:
            self.fence.check()
        try:
            reply: pb.SetOwnerReply = await stub.SetOwner(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            self._failed((address, credentials), error)
            return None
        return reply.generation

    def _channel(self, address: str, credentials: Credentials | None) -> grpc.aio.Channel:
        key = address, credentials
        if key not in self.channels:
            self.channels[key] = channels.open_channel(address, control_options(), credentials)
        return self.channels[key]

    def _failed(self, key: SyncerKey, error: grpc.aio.AioRpcError) -> None:
        """Note why; where nothing could be connected, look once for each outage."""
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            self._note(key, ShardRefusal(text=details_of(error)))
        looks = key in self._looks and not self._looks[key].done()
        unknown = key not in self.reasons and not looks
        if error.code() is grpc.StatusCode.UNAVAILABLE and unknown:
            self._looks[key] = asyncio.create_task(self._look(key))

    async def _look(self, key: SyncerKey) -> None:
        address, credentials = key
        seen = await probe(address, credentials)
        error = judge(seen, credentials, time.time())
        if error is not None:
            text = error.problem if isinstance(error, MismatchError) else str(error)
            other_run = isinstance(error, OtherRunError)
            self._note(key, ShardRefusal(text=text, other_run=other_run))

    def _note(self, key: SyncerKey, reason: ShardRefusal) -> None:
        if self.reasons.get(key) != reason:
            log.warning("shard does not answer", address=key[0], reason=reason.text)
        self.reasons[key] = reason


POLL_SECONDS = 1.0

Said = tuple[tuple[object, ...] | None, ...]


@dataclass(slots=True, kw_only=True)
class Poll:
    """The task of one job."""

    memory: JobMemory
    addresses: Mapping[int, str]
    offered: tuple[Credentials | None, ...] = (None,)  # in the order of trial; None: plain text
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    begun_at: float = LONG_AGO  # the last one that has ended
    awaited: bool = False  # a pass waits for its end
    said: Said = ()
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, kw_only=True)
class Polls:
    """One task per job that has shards with known addresses."""

    syncers: Syncers
    done: Callable[[Key], None]  # asks for a pass
    polls: dict[Key, Poll] = field(default_factory=dict)

    async def follow(
        self, key: Key, memory: JobMemory, addresses: Mapping[int, str], *, tls: bool = False
    ) -> bool:
        """Ask these shards from now on; whether they have answered since the job's last effects."""
        offered = memory.certificates.offered if tls else (None,)
        if not offered:
            addresses = dict.fromkeys(addresses, "")
        poll = self.polls.get(key)
        if poll is not None and (poll.memory is not memory or poll.addresses != addresses):
            await self._stop(key, keep=frozenset(addresses.values()))
            poll = None
        if not any(addresses.values()):
            memory.answered_at.clear()  # shards that do not exist are not silent
            return True
        if poll is None:
            poll = self.polls[key] = Poll(memory=memory, addresses=dict(addresses))
            poll.task = asyncio.create_task(self._run(key, poll))
        if poll.offered != offered:
            poll.offered = offered
            used = memory.certificates.used if tls else offered
            await self.syncers.retain(addresses.values(), used)
        if poll.begun_at > memory.acted_at:
            return True
        poll.awaited = True
        poll.hurry.set()
        return False

    def refusals(self, key: Key) -> dict[int, ShardRefusal]:
        """By shard: why it and this operator refuse each other's newest credentials, if known."""
        poll, reasons = self.polls.get(key), self.syncers.reasons
        if poll is None:
            return {}
        asked = {n: (address, poll.offered[0]) for n, address in poll.addresses.items()}
        return {n: reasons[each] for n, each in asked.items() if each in reasons}

    async def forget(self, key: Key) -> None:
        """Ask no more, and close the channels: the job is gone, or not run here."""
        await self._stop(key, keep=frozenset())

    async def close(self) -> None:
        for key in list(self.polls):
            await self.forget(key)
        await self.syncers.close()

    async def _stop(self, key: Key, keep: frozenset[str]) -> None:
        poll = self.polls.pop(key, None)
        if poll is None:
            return
        if poll.task is not None:
            poll.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await poll.task
        await self.syncers.forget(sorted(set(poll.addresses.values()) - keep))

    async def _run(self, key: Key, poll: Poll) -> None:
        while True:
            began, wall = time.monotonic(), rfc3339(time.time())
            poll.hurry.clear()
            replies = await self._ask(poll)
            poll.memory.take(replies, time.monotonic(), wall)
            said, poll.begun_at = said_by(replies), began
            judged = began > poll.memory.acted_at
            if (poll.awaited and judged) or said != poll.said:
                poll.awaited, poll.said = poll.awaited and not judged, said
                self.done(key)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began + POLL_SECONDS - time.monotonic())):
                    await poll.hurry.wait()

    async def _ask(self, poll: Poll) -> list[pb.StatusReply | None]:
        """Ask all shards with the first credentials that one of them takes."""
        addresses = [poll.addresses[n] for n in sorted(poll.addresses)]
        replies: list[pb.StatusReply | None] = []
        for each in poll.offered:
            replies = await self.syncers.status(addresses, poll.memory.intent, each)
            if any(reply is not None for reply in replies):
                poll.memory.certificates.note_worked(each)
                break
        return replies


def said_by(replies: Sequence[pb.StatusReply | None]) -> Said:
    """Leave out progress: what is left may ask for an action or change a condition."""
    return tuple(
        None
        if reply is None
        else (
            reply.state,
            reply.run,
            reply.intent,
            reply.reason,
            reply.steps,
            reply.shard,
            reply.must_equal,
            reply.evaluation.final,
            tuple(
                (slot.slot, slot.state, slot.uid, slot.owner_generation, slot.reason, slot.trouble)
                for slot in reply.slots
            ),
        )
        for reply in replies
    )
