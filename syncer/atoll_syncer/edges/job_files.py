"""The files that say what a running job may change: how long it is, and who its learners are.

The operator changes them in place (rules 27 and 41). A file that is not there, or cannot be read,
says nothing: what was known stays.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from atoll_protos.errors import SpecError
from atoll_syncer.driver import Driver
from atoll_syncer.duties.background import Thread
from atoll_syncer.model.effects import Effect

READ_SECONDS: Final = 0.5  # the kubelet changes mounted files, on file systems that tell nobody

T = TypeVar("T")

log = structlog.get_logger()


class JobFile(Generic[T]):
    """The file at `path`, of which `parse` makes a value. What is wrong with it is logged once.

    The same text is parsed once: reading is all that looking again costs.
    """

    def __init__(self, path: str, parse: Callable[[str], T]) -> None:
        self._path, self._parse = path, parse
        self._known: tuple[bytes, T] | None = None
        self._said = ""

    def read(self) -> T | None:
        try:
            content = Path(self._path).read_bytes()
            if self._known is None or self._known[0] != content:
                self._known = content, self._parse(content.decode())
        except (OSError, ValueError, SpecError) as error:
            if str(error) != self._said:
                log.warning("a file of the job cannot be read", file=self._path, reason=str(error))
            self._said = str(error)
            return None
        self._said = ""
        return self._known[1]


async def follow(
    driver: Driver, look: Callable[[], T | None], told: Callable[[T, float], list[Effect]]
) -> None:
    """Until cancelled: tell the shard what a file says whenever that has changed."""
    known: T | None = None
    while True:
        found = await driver.background.run(Thread.FILES, look)
        if found is not None and found != known:
            driver.feed(told(found, driver.now()))
            known = found
        await asyncio.sleep(READ_SECONDS)
