"""One end of the side channel: messages over one TCP stream, with beats and a limit for silence.

Each end says something every few seconds. An end is lost when its stream ends before it has said
that it leaves, or when it says nothing for too long: its process is stopped, or its host is gone.

Silence is counted in the own beats and not by the clock. A process that was stopped itself makes
one beat when it goes on, and has then heard what had come meanwhile before it makes the next one.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atoll_worker.link.codec import LinkError
from atoll_worker.transport.side import BEAT_SECONDS, HELLO_BYTES_MAX, SIDE, Beat, Hello, Left

READ_BYTES = 1 << 18
BEATS_OF_SILENCE = 4  # at least so many fit into the limit


@dataclass(slots=True)
class Patience:
    """How long the other end has said nothing, in beats of this one."""

    silence_seconds_max: float
    beats: int = 0  # since it was heard

    @property
    def beat_seconds(self) -> float:
        """Between two beats."""
        return min(BEAT_SECONDS, self.silence_seconds_max / BEATS_OF_SILENCE)

    def heard(self) -> None:
        """Something has come."""
        self.beats = 0

    def beat(self) -> bool:
        """Count one beat; true when it has been silent for too long."""
        self.beats += 1
        return self.beats > math.ceil(self.silence_seconds_max / self.beat_seconds)


class SideStream:
    """One end. `send` never waits; `run` is its life."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        silence_seconds_max: float,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._received = bytearray()
        self._patience = Patience(silence_seconds_max)
        self._other_leaves = False

    def send(self, message: Any) -> None:
        """Put one message in line; what cannot be sent is seen by who reads."""
        if not self._writer.is_closing():
            self._writer.write(SIDE.encode(message))

    async def hello(self) -> Hello:
        """The first message of who has connected. Raises LinkError if it is not a Hello."""
        while (message := SIDE.take_first(self._received, HELLO_BYTES_MAX)) is None:
            data = await self._reader.read(HELLO_BYTES_MAX)
            if not data:
                raise LinkError("it has ended")
            self._received += data
        if not isinstance(message, Hello):
            raise LinkError(f"{type(message).__name__} came first")
        lanes: tuple[object, ...] = (message.first, message.stop, message.lanes)
        secret: object = message.secret
        plain = isinstance(secret, str) and secret.isascii()
        if not plain or not all(type(each) is int for each in lanes):
            raise LinkError("its Hello has a field of another type")
        return message

    async def run(self, on_message: Callable[[Any], None]) -> str:
        """Until the stream ends: how the other end was lost, empty if it has left in order."""
        works = [asyncio.create_task(w) for w in (self._read(on_message), self._beat())]
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            return next(work.result() for work in works if work in done)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await self.turn_away()

    async def leave(self, seconds_max: float) -> None:
        """End in order: what was sent has left, and the other end knows that this is no loss."""
        self.send(Left())
        self._writer.close()
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(self._writer.wait_closed(), seconds_max)

    def abort(self) -> None:
        """End at once: the other end has lost this one."""
        self._writer.transport.abort()

    async def turn_away(self) -> None:
        """End at once, and return when the socket is closed."""
        self.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self, on_message: Callable[[Any], None]) -> str:
        try:
            while True:
                while (message := SIDE.take_first(self._received)) is not None:
                    self._other_leaves = self._other_leaves or isinstance(message, Left)
                    if not isinstance(message, (Beat, Left)):
                        on_message(message)
                data = await self._reader.read(READ_BYTES)
                if not data:
                    break
                self._patience.heard()
                self._received += data
        except OSError:
            pass
        except LinkError as error:
            return f"has said what is no message ({error})"
        return "" if self._other_leaves else "has ended"

    async def _beat(self) -> str:
        while True:
            await asyncio.sleep(self._patience.beat_seconds)
            self.send(Beat())
            if self._patience.beat():
                limit = self._patience.silence_seconds_max
                return f"has said nothing for {limit:g} s: it is stopped, or its host is gone"
