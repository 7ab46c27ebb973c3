"""Writes the event tape: one JSON object a line, for people and tools (docs/run-folder.md).

A line waits until the disk has room for it, and the shard waits for no line.
"""

from collections import Counter
from typing import Any, Final, NamedTuple

import structlog

from atoll_protos.names import split_slot
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.rounds.records import commit_again
from atoll_syncer.storage.store import StoreError

log = structlog.get_logger()


class LinkEnd(NamedTuple):
    """Whose bytes: of a region's learners, or without one of observers and exports.

    `machine` is the one that the peer's certificate names; empty where it names none (rule 41).
    """

    region: str = ""
    machine: str = ""


NO_LEARNER: Final = LinkEnd()


class Recording:
    """It also counts what this process has received and sent in bulk."""

    def __init__(self, state: ShardState, machine: Machine, background: Background) -> None:
        self._state, self._machine, self._background = state, machine, background
        # Of bulk frames, in this process.
        self.received_bytes, self.sent_bytes = Counter[LinkEnd](), Counter[LinkEnd]()
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
    def links(self) -> dict[LinkEnd, tuple[int, int]]:
        """Bytes up and down."""
        ends = sorted(self.received_bytes.keys() | self.sent_bytes.keys())
        return {each: (self.received_bytes[each], self.sent_bytes[each]) for each in ends}

    def end_of(self, session: int, machine: str) -> LinkEnd:
        """Of a stream of the learner that has this session, or of an observer."""
        known = self._state.sessions.open.get(session)
        if known is None or not known.slot:
            return NO_LEARNER
        return LinkEnd(split_slot(known.slot)[0], machine)

    def received(self, byte_count: int, end: LinkEnd) -> None:
        self.received_bytes[end] += byte_count
        self._machine.metrics.received_bytes.labels(end.region).inc(byte_count)

    def sent(self, byte_count: int, end: LinkEnd = NO_LEARNER) -> None:
        self.sent_bytes[end] += byte_count
        self._machine.metrics.sent_bytes.labels(end.region).inc(byte_count)

    def write(self, record: dict[str, Any]) -> None:
        by_region = dict[str, tuple[int, int]]()
        machines = dict[str, dict[str, tuple[int, int]]]()
        for (region, machine), (up, down) in self.links.items():
            before = by_region.get(region, (0, 0))
            by_region[region] = (before[0] + up, before[1] + down)
            if machine:
                machines.setdefault(region, {})[machine] = (up, down)
        bytes_moved = {
            "bytes_up": self.bytes_received,
            "bytes_down": self.bytes_sent,
            "links": by_region,
            **({"machines": machines} if machines else {}),
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
