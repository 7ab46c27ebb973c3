"""The clock of the shards' answers: every job's shards are asked each second, beside the passes.

A shard that cannot be reached costs a call its whole deadline, for which no pass may wait. So each
job that has shards has one task here, which asks them all, notes the answers in the job's memory,
and asks again POLL_SECONDS after it began, or when the answers are there if that is later.

Credentials that a person has brought may be wrong, and a job that trains must not be lost from
sight for that: where no shard takes the newest ones, the last that one has taken are tried too.

Answers of before a pass's effects are not judged: a pass that has named an owner, or deleted a pod,
would see its own effect undone and do it again. `follow` tells whether a poll has begun after the
job's last effects (`JobMemory.acted_at`) and has ended. If not, it begins one at once, and its end
brings the next pass (`done`). Otherwise a poll asks for a pass when what the shards answer has
changed in more than its progress.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.observed.cache import Key
from atoll_operator.kube.observed.memory import LONG_AGO, JobMemory
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import ShardRefusal
from atoll_protos.network.credentials import Credentials

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
    """What of the answers may ask for an action or change a condition, and is not progress."""
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
                (each.slot, each.state, each.uid, each.owner_word, each.reason, each.trouble)
                for each in reply.slots
            ),
        )
        for reply in replies
    )
