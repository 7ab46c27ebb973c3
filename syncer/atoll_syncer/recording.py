"""Writes the event tape: what every line says beside its event, and lines that a kill has cost.

The tape is a file for people and tools, one JSON object a line (docs/run-folder.md). A line waits
until the disk has room for it, and the shard waits for no line.
"""

from typing import Any

import structlog

from atoll_syncer.background import Background, Thread
from atoll_syncer.outside import Machine
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.store import StoreError

log = structlog.get_logger()


class Recording:
    """See the module. It also counts what this process has received and sent in bulk."""

    def __init__(self, shard: Shard, machine: Machine, background: Background) -> None:
        self._shard, self._machine, self._background = shard, machine, background
        self.bytes_received = 0  # of bulk frames, in this process
        self.bytes_sent = 0

    def received(self, byte_count: int) -> None:
        """Count bulk bytes from a learner."""
        self.bytes_received += byte_count
        self._machine.metrics.received_bytes.inc(byte_count)

    def sent(self, byte_count: int) -> None:
        """Count bulk bytes to a learner or observer."""
        self.bytes_sent += byte_count
        self._machine.metrics.sent_bytes.inc(byte_count)

    def write(self, record: dict[str, Any]) -> None:
        """Every line also says what this process has received and sent so far."""
        bytes_moved = {"bytes_up": self.bytes_received, "bytes_down": self.bytes_sent}
        run = self._shard.history.run
        trouble = self._machine.tape.write(run, {**record, **bytes_moved})
        if trouble is not None:
            log.warning("the tape waits", trouble=str(trouble))

    def close(self) -> None:
        """The last line of this process, and the end of the file."""
        self.write({"event": "end", "epoch": self._shard.state.term.epoch})
        self._machine.tape.close()

    async def fill(self) -> None:
        """Write the lines of commits whose process was killed before it wrote them (rule 29).

        The record of this term is durable, so no other process can add a commit any more.
        """
        journal = self._machine.journal
        lowest: dict[int, int] = {}
        commits = [(each.time, each.entry) for each in journal.commits]
        for _, entry in commits:
            lowest[entry.slice] = min(entry.number, lowest.get(entry.slice, entry.number))
        try:
            known = await self._background.run(
                Thread.TIDY, lambda: self._machine.tape.commits(lowest)
            )
        except StoreError as error:
            log.warning("the tape cannot be read", trouble=str(error))
            return
        for time, entry in commits:
            if (entry.slice, entry.number, entry.epoch) not in known:
                self.write({"time": time, **self._shard.commit_again(entry)})
        journal.commits.clear()
