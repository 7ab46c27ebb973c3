"""What became of all tokens, as status, metrics and tape show it (rule 13)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import COUNTER_MAX
from atoll_syncer.model.log import NOTHING_SETTLED
from atoll_syncer.model.state import ShardState


def counts(state: ShardState, now: float) -> pb.Tokens:
    """What became of all tokens of this run, each counted for every slice of the shard (rule 13).

    A report may come after the commit of an offer that was made later: then `merged` counts.
    """
    slices, slots = len(state.fragments), state.sessions.slots
    settled, lost, pending = NOTHING_SETTLED, 0, 0
    trained = state.history.trained | {name: slot.trained for name, slot in slots.items()}
    for name, each in trained.items():
        known = slots.get(name)
        is_gone = known is None or known.state(now) == pb.SLOT_LOST
        settled = settled.plus(each.settled_before).plus(each.settled)
        before = slices * (each.before - each.parent) - each.settled_before.total
        rest = max(0, slices * each.now - each.settled.total)
        lost += max(0, before) + (rest if is_gone else 0)
        pending += 0 if is_gone else rest
    return pb.Tokens(
        trained=min(settled.total + lost + pending, COUNTER_MAX),
        merged=settled.merged,
        overlap=settled.overlap,
        late=settled.late,
        lost=min(lost, COUNTER_MAX),
        pending=min(pending, COUNTER_MAX),
        slices=slices,
    )
