"""A proxy of TCP between learners and shards, with which a plan cuts and slows their links.

It runs in a thread of `atoll run`, for those pairs of a learner and a shard that the plan's faults
hit; all others speak directly. While a link is cut its connections stay open, and what was sent
waits, as when packets are lost and sent again.
"""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from atoll_operator.local.chaos.plan import LINKS, DrawnFault, FaultWord
from atoll_operator.local.planning.process_plan import Planned, shard_process
from atoll_protos.environment import Env
from atoll_protos.network.addresses import OR, endpoints_of, joined, processes_of, split

LOOPBACK: Final = "127.0.0.1"
PACKET_BYTES: Final = 1400  # of which one in so many is corrupted
CHUNK_BYTES: Final = 64 << 10
CHUNKS_MAX: Final = 64  # under way in one direction of a connection
LOOK_SECONDS: Final = 0.02  # whether a link that is cut works again


@dataclass(slots=True)
class Direction:
    """One direction of a link: when its last byte is through, and how far the next bad one is."""

    free_at: float = 0.0
    good_bytes: float = 0.0


@dataclass(slots=True, kw_only=True)
class FaultyLink:
    """Between a learner and a shard. Another thread sets `faults`, the amount by the word.

    `endpoint` is the shard's, and `proxied` the learner's, with a port for each of its addresses.
    A cut may meet one of the shard's processes, the one with `cut_port`; 0: all.
    """

    endpoint: str
    draw: random.Random
    proxied: str = ""
    faults: dict[FaultWord, float] = field(default_factory=dict)
    cut_port: int = 0
    directions: tuple[Direction, Direction] = field(
        default_factory=lambda: (Direction(), Direction())
    )

    @contextlib.contextmanager
    def fault(self, word: FaultWord, amount: float, port: int = 0) -> Iterator[None]:
        """The fault lasts inside; `port`: of the process that a cut meets."""
        if word is FaultWord.CUT:
            self.cut_port = port
        self.faults[word] = amount
        try:
            yield
        finally:
            self.faults.pop(word, None)  # another one of the same kind may have ended it

    def altered(self, data: bytes, direction: Direction) -> bytes:
        """The bytes, with one bit of a packet changed now and then."""
        if not (one_of := self.faults.get(FaultWord.CORRUPT)):
            return data
        changed = bytearray(data)
        at = direction.good_bytes
        while at < len(changed):
            changed[int(at)] ^= 1 << self.draw.randrange(8)
            at += 1 + self.draw.expovariate(1 / (one_of * PACKET_BYTES))
        direction.good_bytes = at - len(changed)
        return bytes(changed)


class Links:
    """The proxied links of a run, by learner and shard."""

    def __init__(self, faults: Iterable[DrawnFault], endpoints: Sequence[str]) -> None:
        by_shard = {shard_process(number): each for number, each in enumerate(endpoints)}
        self._links = {
            (fault.target, fault.shard): FaultyLink(
                endpoint=by_shard[fault.shard],
                draw=random.Random(str(fault)),
            )
            for fault in faults
            if fault.word in LINKS
        }

    @contextlib.contextmanager
    def open(self) -> Iterator["Links"]:
        """The proxy works inside; there is none where the plan has no faults of links."""
        if not self._links:
            yield self
            return
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        servers = asyncio.run_coroutine_threadsafe(self._listen(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(_closed(servers), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def of(self, learner: str, shard: str) -> FaultyLink:
        return self._links[learner, shard]

    def through(self, planned: Sequence[Planned]) -> list[Planned]:
        """The processes of a run, of which learners dial the proxy where they have one."""
        return [replace(each, env={**each.env, **self._endpoints(each)}) for each in planned]

    def _endpoints(self, planned: Planned) -> dict[str, str]:
        links = self._links.items()
        proxied = {
            each.endpoint: each.proxied for (slot, _), each in links if slot == planned.whole
        }
        given = endpoints_of(planned.env[Env.ENDPOINTS])
        return {Env.ENDPOINTS: ",".join(proxied.get(each, each) for each in given)}

    async def _listen(self) -> list[asyncio.Server]:
        servers = []
        for link in self._links.values():
            ports = []
            for address in processes_of(link.endpoint):
                serving = Serving(link, split(address)[1])
                servers.append(await asyncio.start_server(serving, LOOPBACK, 0))
                ports.append(servers[-1].sockets[0].getsockname()[1])
            link.proxied = OR.join(joined(LOOPBACK, port) for port in ports)
        return servers


async def _closed(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Serving:
    """What happens to a connection that was meant for a port of the shard."""

    link: FaultyLink
    port: int

    async def __call__(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the run is over: nothing to report
            await self._serve(client, to_client)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            shard, to_shard = await asyncio.open_connection(LOOPBACK, self.port)
        except OSError:
            to_client.transport.abort()
            return
        up, down = self.link.directions
        ways = [
            asyncio.create_task(self._carry(client, to_shard, up)),
            asyncio.create_task(self._carry(shard, to_client, down)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for writer in (to_client, to_shard):
                writer.close()

    @property
    def _is_cut(self) -> bool:
        return FaultWord.CUT in self.link.faults and self.link.cut_port in (0, self.port)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Until one side ends."""
        loop, faults = asyncio.get_running_loop(), self.link.faults
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)

        async def read() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    await chunks.put((loop.time() + faults.get(FaultWord.DELAY, 0.0), data))
            await chunks.put((0.0, b""))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, data = await chunks.get()
                if rate := faults.get(FaultWord.RATE):
                    direction.free_at = max(loop.time(), direction.free_at) + len(data) / rate
                    due = max(due, direction.free_at)
                await asyncio.sleep(due - loop.time())
                while self._is_cut:  # noqa: ASYNC110 - another thread sets it
                    await asyncio.sleep(LOOK_SECONDS)
                if not data:
                    return
                writer.write(self.link.altered(data, direction))
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()
