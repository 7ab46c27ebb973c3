"""The transport process of a learner or observer: drives its rules over gRPC and shared memory."""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from typing import Any

import structlog
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import allocator, codecs, logs
from atoll_protos.frames import Buffer
from atoll_worker.link.messages import Boundary, Evaluated, Leaving
from atoll_worker.link.socket import TransportEnd, open_transport_end, outlive_signals
from atoll_worker.rules.effects import (
    Command,
    Dial,
    Discard,
    Effect,
    HangUp,
    Place,
    Promote,
    Record,
    SendHeld,
    SendMessage,
    SendOffer,
    SendSeed,
)
from atoll_worker.rules.exchange import Exchange
from atoll_worker.transport.client import ShardClient
from atoll_worker.transport.numbers import Base, Numbers, TorchNumbers
from atoll_worker.transport.telemetry import Telemetry

LEAVE_SECONDS_MAX = 3.0

log = structlog.get_logger()


class Transport:
    """Owns the machine and everything that it needs outside."""

    def __init__(self, end: TransportEnd) -> None:
        configure = end.configure
        self.end, self.layout = end, end.layout
        self.numbers: Numbers = TorchNumbers(end.memory, end.run_file.sync)
        self.exchange = Exchange(
            run_file=end.run_file,
            layout=end.layout,
            slot=configure.slot,
            uid=configure.uid,
            instance=configure.instance,
            observer=configure.observer,
        )
        self.clients = [
            ShardClient(shard, endpoint, self) for shard, endpoint in enumerate(configure.endpoints)
        ]
        self.telemetry = Telemetry(configure.telemetry_folder, configure.slot)
        self.bases: dict[tuple[int, int], Base] = {}
        self.candidates: dict[tuple[int, int, int], Base] = {}
        self.captures: dict[tuple[int, int], int] = {}  # counter that the newest mark belongs to
        self.over = asyncio.Event()
        self._timer = asyncio.Event()

    async def run(self) -> None:
        """Until the training process leaves or dies."""
        self.telemetry.open()
        if not self.end.configure.observer:
            self.captures = {key: self.numbers.counter(*key) for key in self.exchange.slices}
        self.end.attach(asyncio.get_running_loop(), self._from_training, self.over.set)
        self.feed(self.exchange.start(self.now()))
        keeper = asyncio.create_task(self._keep_time())
        await self.over.wait()
        keeper.cancel()
        for client in self.clients:
            await client.drained(LEAVE_SECONDS_MAX)
        for client in self.clients:
            client.hang_up()
        self.telemetry.close()

    @staticmethod
    def now() -> float:
        """Monotonic seconds, as the rules count them."""
        return time.monotonic()

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order."""
        for effect in effects:
            self._perform(effect)
        self._timer.set()

    # ------------------------------------------------------------ what the clients say

    def connected(self, shard: int) -> None:
        """See client.Listener."""
        self.feed(self.exchange.connected(shard, self.now()))

    def disconnected(self, shard: int, reason: str) -> None:
        """See client.Listener."""
        if not self.over.is_set():
            log.info("disconnected", shard=shard, reason=reason)
            self.feed(self.exchange.disconnected(shard, reason, self.now()))

    def message(self, shard: int, message: pb.ToLearner) -> None:
        """See client.Listener."""
        self.feed(self.exchange.message(shard, message, self.now()))

    def publish_started(self, shard: int, head: pb.Transfer) -> int | None:
        """See client.Listener."""
        if not head.HasField("publish"):
            return None
        if not self.exchange.publish_started(shard, head.publish, self.now()):
            return None
        part = self.layout.slice(shard, head.publish.version.slice)
        return codecs.encoded_size(part.element_count, head.encoding)

    async def published(self, shard: int, head: pb.Transfer, payload: bytearray) -> None:
        """See client.Listener."""
        publish = head.publish
        key = shard, publish.version.slice
        base = self.numbers.decode(publish, head.encoding, payload, self.bases.get(key))
        self.candidates[*key, publish.version.version.number] = base
        self.feed(self.exchange.published(shard, publish, self.now()))

    # ------------------------------------------------------------ performing

    def _from_training(self, message: Any) -> None:
        match message:
            case Boundary():
                for key in message.captured:
                    self.captures[key] += 2
                self.feed(self.exchange.boundary(message, self.now()))
            case Leaving(reason=reason):
                self.feed(self.exchange.leave(reason, self.now()))
                self.over.set()
            case Evaluated(tick=tick, loss=loss, tokens=tokens, seconds=seconds):
                evaluation = pb.Evaluation(tick=tick, loss=loss, tokens=tokens, seconds=seconds)
                self.feed(self.exchange.evaluated(evaluation))
                line = {"tick": tick, "loss": loss, "tokens": tokens, "seconds": seconds}
                self.telemetry.write({"run": self.exchange.run, **line})

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Command(command):
                self.end.send(command)
            case SendMessage(shard, message):
                self.clients[shard].send(message)
            case SendOffer(shard, offer):
                self._send_offer(shard, offer)
            case SendSeed(shard):
                self._send_seed(shard)
            case SendHeld(shard, held):
                self._send_held(shard, held)
            case Place(shard, fragment, number):
                self.numbers.place(shard, fragment, self.candidates[shard, fragment, number])
            case Promote(shard, fragment, number):
                self.bases[shard, fragment] = self.candidates.pop((shard, fragment, number))
            case Discard(shard, fragment, number):
                self.candidates.pop((shard, fragment, number), None)
            case Record(fields) if not self.end.configure.observer:
                exchange = self.exchange
                known = {
                    "run": exchange.run,
                    "slot": exchange.slot,
                    "incarnation": exchange.incarnation,
                }
                self.telemetry.write({**known, **fields})
            case Dial(shard):
                self.clients[shard].dial()
            case HangUp(shard):
                self.clients[shard].hang_up()

    def _send_offer(self, shard: int, offer: pb.Offer) -> None:
        """Rule 16: what has been captured again since the offer was made is not sent."""
        key = shard, offer.slice
        difference = self.numbers.difference(*key, self.bases[key])
        if self.numbers.counter(*key) != self.captures[key]:
            self.feed(self.exchange.capture_lost(shard, offer.slice, offer.base))
            return

        async def payload() -> tuple[pb.Transfer, Buffer]:
            encoding, data = await asyncio.to_thread(self.numbers.encode_difference, difference)
            return pb.Transfer(offer=offer, encoding=encoding, byte_count=len(data)), data

        self.clients[shard].send_bulk(payload)

    def _send_seed(self, shard: int) -> None:
        """The capture regions hold the model as it was made, until training begins."""
        for part in self.layout.shard_slices(shard):
            encoding, data = self.numbers.encode_seed(shard, part.fragment)
            seed = pb.Seed(slice=part.fragment)
            head = pb.Transfer(seed=seed, encoding=encoding, byte_count=len(data))
            self._send_bulk(shard, head, data)

    def _send_held(self, shard: int, held: pb.Held) -> None:
        """The base as it is held (rule 22)."""
        encoding, data = self.numbers.encode_base(self.bases[shard, held.version.slice])
        self._send_bulk(
            shard, pb.Transfer(held=held, encoding=encoding, byte_count=len(data)), data
        )

    def _send_bulk(self, shard: int, head: pb.Transfer, data: Buffer) -> None:
        async def payload() -> tuple[pb.Transfer, Buffer]:
            return head, data

        self.clients[shard].send_bulk(payload)

    async def _keep_time(self) -> None:
        while True:
            self._timer.clear()
            wait = self.exchange.deadline() - self.now()
            if wait > 0:
                try:
                    await asyncio.wait_for(self._timer.wait(), wait)
                    continue
                except TimeoutError:
                    pass
            self.feed(self.exchange.tick_time(self.now()))


def yield_to_training() -> None:
    """A message never takes the core from the training thread that has just sent it.

    The scheduler lets whoever is woken by a socket preempt its waker, except in this class.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; it only helps
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """`python -m atoll_worker.transport.transport`; started by the training process only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--memory-fd", type=int, required=True)
    flags = parser.parse_args()
    outlive_signals()
    yield_to_training()
    allocator.tune()
    logs.configure()
    torch.set_num_threads(1)
    try:
        end = open_transport_end(flags.link_fd, flags.memory_fd)
    except EOFError:
        sys.exit(0)

    async def serve() -> None:
        await Transport(end).run()

    asyncio.run(serve())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
