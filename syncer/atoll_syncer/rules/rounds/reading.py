"""A term begins before its values are read; slices come back one after the other (rule 45).

    unread --read from the store--> here: merged, published
       |
       +--its object is gone or damaged--> lost (rules/recovery)

Meanwhile the log says all that a Welcome and a Call need. Offers on an unread slice are staged as
always, and its round closes once the slice is here.
"""

from typing import Final

from atoll_protos.job import schedule
from atoll_syncer.model.effects import Effect
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.rounds import publishing

OPEN_MAX: Final = 4  # rounds of unread slices: their offers wait in memory


def next_unread(state: ShardState) -> int | None:
    """The slice to be read next: whose round waits for it, or that is due first."""

    def due(fragment: int) -> tuple[int, int]:
        each = state.rounds.open.get(fragment)
        tick = schedule.next_due(state.sync, fragment, state.clock.tick)
        return (tick if each is None else each.due), fragment

    return min(state.reading.unread, key=due, default=None)


def may_begin(state: ShardState, fragment: int) -> bool:
    """Whether a round may begin: of an unread slice only while few others wait."""
    unread = state.reading.unread
    return fragment not in unread or len(unread & state.rounds.open.keys()) < OPEN_MAX


def is_here(state: ShardState, fragment: int) -> list[Effect]:
    state.reading.unread.discard(fragment)
    return [] if state.is_lost(fragment) else publishing.to_lacking(state, fragment)


def are_lost(state: ShardState, fragments: set[int]) -> None:
    state.reading.unread -= fragments
