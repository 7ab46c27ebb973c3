"""The way from a transport process to its training process, as the transport sees it."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from atoll_protos.layout import Layout
from atoll_protos.run import RunFile
from atoll_worker.link.messages import Configure


class TrainingEnd(Protocol):
    """See link.socket.TransportEnd."""

    configure: Configure
    run_file: RunFile
    layout: Layout

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call back in the loop: every message, and once the end."""

    def send(self, command: Any) -> None:
        """Send one command; never waits."""

    def companion_part(self, part: int, byte_count: int, *, changed: bool) -> bytes:
        """One part of the companion that the training process has given."""

    def companion_sent(self) -> None:
        """The whole companion is sent, and may be forgotten."""
