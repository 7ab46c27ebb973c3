"""Renews a shard's heartbeat, and looks whether another process has followed (rule 20)."""

import asyncio
from functools import partial

import structlog

from atoll_syncer.background import Background, Thread
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.journal import Heartbeat, Journal
from atoll_syncer.storage.store import StoreError
from atoll_syncer.storage.takeover import HEARTBEAT_SECONDS

log = structlog.get_logger()


async def until_deposed(shard: Shard, journal: Journal, background: Background) -> None:
    """Beat once every HEARTBEAT_SECONDS; returns when another process has followed this one.

    A beat that the store does not take is left out: the next one comes by itself.
    """
    count = 0
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        count += 1
        beat = Heartbeat(
            pod=shard.pod, instance=shard.instance, epoch=shard.history.epoch, count=count
        )
        try:
            if await background.run(Thread.LOG, partial(_beat, journal, beat)):
                return
        except StoreError as error:
            log.warning("no heartbeat", trouble=str(error))


def _beat(journal: Journal, beat: Heartbeat) -> bool:
    """In the thread. Whether another process has followed."""
    if journal.is_deposed():
        return True
    journal.beat(beat)
    return False
