"""This process's reign over its shard: its record, and epochs seen elsewhere (rule 20)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, WritePart
from atoll_syncer.model.state import State
from atoll_syncer.rules import recovery as recovering
from atoll_syncer.rules import seeding


def begin(state: State, epoch: int) -> Effect:
    """Append the record; what was under way in an older reign of this process stops counting."""
    state.epoch, state.reigning = epoch, False
    state.met.clear()
    return Append(log.Reign(epoch=epoch, pod=state.pod, instance=state.instance))


def begun(state: State, now: float) -> list[Effect]:
    """The record is durable: from now on this process may welcome and commit."""
    state.reigning = True
    known = state.history.heads or state.recovery is not None
    if state.registrar and state.number in state.history.begun:
        known = True
    effects: list[Effect] = []
    if known:
        effects += [*seeding.mark(state), *recovering.found_empty(state, now)]
    if state.history.ended and state.recovery is None:
        effects.append(WritePart())
    return effects


def higher_epoch(state: State, join: pb.Join) -> int:
    """An epoch of another reign, not below this one, that the learner has seen; 0 without one.

    Either this process is deposed, and appending tells it so, or its store was lost. [An equal
    one is another reign's too, when this one has not met the learner: the log began afresh.]
    """
    seen = join.epochs_seen[state.number] if len(join.epochs_seen) > state.number else 0
    if join.run != state.history.run or seen < max(1, state.history.epoch):
        return 0
    return 0 if seen == state.history.epoch and join.instance in state.met else seen
