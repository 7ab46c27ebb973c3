"""The file that says how long the job is, read again and again: an edit restarts no shard.

On a cluster it is mounted from a ConfigMap that the operator changes in place; the kubelet brings
the change into the pod within about a minute. A file that is not there, or cannot be read, says
nothing: the run file has the length that the job began with, and learners tell a longer one.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from atoll_protos.errors import SpecError
from atoll_protos.length import Length, read
from atoll_syncer.background import Thread
from atoll_syncer.driver import Driver

READ_SECONDS: Final = 2.0

log = structlog.get_logger()


class LengthFile:
    """Reads the file at `path`. What is wrong with it is logged once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._said = ""

    def read(self) -> Length | None:
        """What it says now; None: nothing."""
        try:
            found = read(Path(self._path).read_text(encoding="utf-8"))
        except (OSError, ValueError, SpecError) as error:
            if str(error) != self._said:
                log.warning("the length of the job cannot be read", reason=str(error))
            self._said = str(error)
            return None
        self._said = ""
        return found


async def follow(driver: Driver, look: Callable[[], Length | None]) -> None:
    """Until cancelled: tell the shard what the file says whenever that has changed."""
    known: Length | None = None
    while True:
        found = await driver.background.run(Thread.TIDY, look)
        if found is not None and found != known:
            driver.feed(driver.shard.length_heard(found, driver.now()))
            known = found
        await asyncio.sleep(READ_SECONDS)
