"""Writes the event tape: one JSON object a line, for people and tools (docs/run-folder.md).

A line waits until the disk has room for it, and the shard waits for no line.
"""

from collections import Counter
from typing import Any

import structlog

from atoll_protos.names import split_slot
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.rounds.records import commit_again
from atoll_syncer.storage.store import StoreError

log = structlog.get_logger()


class Recording:
    """It also counts what this process has received and sent in bulk."""

    def __init__(self, state: ShardState, machine: Machine, background: Background) -> None:
        self._state, self._machine, self._background = state, machine, background
        # Of bulk frames, in this process, by region; of observers and exports without one.
        self.received_bytes, self.sent_bytes = Counter[str](), Counter[str]()
        for region in ("", *(each.name for each in state.run_file.regions)):
            machine.metrics.received_bytes.labels(region)
            machine.metrics.sent_bytes.labels(region)

    @property
    def bytes_received(self) -> int:
        return self.received_bytes.total()

    @property
    def bytes_sent(self) -> int:
        return self.sent_bytes.total()

    @property
    def links(self) -> dict[str, tuple[int, int]]:
        """Bytes up and down, by region."""
        regions = sorted(self.received_bytes.keys() | self.sent_bytes.keys())
        return {each: (self.received_bytes[each], self.sent_bytes[each]) for each in regions}

    def region(self, session: int) -> str:
        """Of the learner that has this session; empty for an observer."""
        known = self._state.sessions.open.get(session)
        return split_slot(known.slot)[0] if known is not None and known.slot else ""

    def received(self, byte_count: int, region: str) -> None:
        self.received_bytes[region] += byte_count
        self._machine.metrics.received_bytes.labels(region).inc(byte_count)

    def sent(self, byte_count: int, region: str = "") -> None:
        self.sent_bytes[region] += byte_count
        self._machine.metrics.sent_bytes.labels(region).inc(byte_count)

    def write(self, record: dict[str, Any]) -> None:
        bytes_moved = {
            "bytes_up": self.bytes_received,
            "bytes_down": self.bytes_sent,
            "links": self.links,
        }
        run = self._state.history.run
        trouble = self._machine.tape.write(run, {**record, **bytes_moved})
        if trouble is not None:
            log.warning("the tape waits", trouble=str(trouble))

    def close(self) -> None:
        self.write({"event": "end", "epoch": self._state.term.epoch})
        self._machine.tape.close()

    async def fill(self) -> None:
        """Begin with the tape: the lines of commits whose process was killed first (rule 29).

        The record of this term is durable, so no other process can add a commit any more.
        """
        journal = self._machine.journal
        try:
            self._machine.tape.begin()
        except StoreError as error:
            log.warning("the tape cannot be opened", trouble=str(error))
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
                self.write({"time": time, **commit_again(self._state, entry)})
        journal.commits.clear()
