"""Where a slot's data goes on, and the data state that its script gave with that cursor (rule 28).

A cursor that came without a data state leaves none behind.
"""

from collections.abc import Mapping

from atoll_syncer.model.log import Committed
from atoll_syncer.model.state import ShardState


def cursor(state: ShardState, slot: str) -> tuple[int, bytes | None]:
    """The largest cursor of any version, also of one whose entry is not durable yet.

    A successor may be welcomed meanwhile, and must not train on that data again.
    """
    known: list[tuple[int, bytes | None]] = [
        (state.history.cursors.get(slot, 0), state.data_states.kept.get(slot))
    ]
    for each in state.rounds.open.values():
        if each.closed_at is not None and slot in each.complete:
            known.append((each.complete[slot].cursor, each.data_states.get(slot)))
    return max(known, key=lambda pair: (pair[0], pair[1] is not None))


def keep(state: ShardState, entry: Committed, new: Mapping[str, bytes]) -> None:
    kept, named = state.data_states.kept, state.history.data_states
    for slot, data_state in new.items():
        if slot in named and named[slot] == entry.data_states.get(slot):
            kept[slot] = data_state
    for slot in kept.keys() - named.keys():
        del kept[slot]


def read(state: ShardState, data_states: Mapping[str, bytes]) -> None:
    state.data_states.kept = dict(data_states)
