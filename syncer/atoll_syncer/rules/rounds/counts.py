"""What became of all tokens, as status, metrics and tape show it (rule 13)."""

from dataclasses import replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import COUNTER_MAX
from atoll_syncer.model.log import NOTHING_SETTLED, Settled
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
        before, present = slices * (each.before - each.parent), slices * each.now
        earlier, own = each.settled_before, each.settled
        if state.history.incomplete:
            earlier, own = _without_undone(earlier, before), _without_undone(own, present)
        settled = settled.plus(earlier).plus(own)
        rest = max(0, present - own.total)
        lost += max(0, before - earlier.total) + (rest if is_gone else 0)
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


def _without_undone(settled: Settled, trained: int) -> Settled:
    """What was merged in a version that is gone since one was taken back from a learner (rule 22).

    The learner counts it as late, so that both together would be more than it has trained.
    """
    merged = min(settled.merged, max(0, trained - settled.overlap - settled.late))
    return replace(settled, merged=merged)
