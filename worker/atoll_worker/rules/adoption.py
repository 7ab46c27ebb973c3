"""Values that arrive: candidates, adoptions at a step boundary, new bases (rules 15, 17, 21)."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt
from atoll_worker.rules import counters, lockstep
from atoll_worker.rules.effects import Command, Discard, Effect, Place, Promote
from atoll_worker.rules.slices import SliceState, order
from atoll_worker.rules.state import State


def started(state: State, shard: int, publish: pb.Publish, now: float) -> bool:
    """Whether the coming value fits: of this run, a known slice, a difference to the base held.

    The streams are not ordered against each other: it may come before the session's Welcome.
    """
    each = state.slices.get((shard, publish.version.slice))
    if each is None or (state.run and publish.version.version.run != state.run):
        return False
    state.sides[shard].publish_began_at = now
    return not publish.difference or (publish.base == each.number and not each.disowned)


def arrived(state: State, shard: int, publish: pb.Publish, now: float) -> list[Effect]:
    """The value is whole and decoded; the transport keeps it as a candidate.

    At most two candidates a slice: the one being adopted, and the newest after it.
    """
    side = state.sides[shard]
    if side.publish_began_at is not None:
        state.work.published_in(now - side.publish_began_at)
        side.publish_began_at = None
    each = state.slices[shard, publish.version.slice]
    version = publish.version.version
    kept = [order(p.version.version) for p in (each.adopting, each.waiting) if p is not None]
    if order(version) in kept:
        return []  # sent again in a newer session: the candidate is still needed
    if order(version) <= max(each.order, *kept, (-1, 0)):
        return [Discard(*each.key, version.number)]
    effects: list[Effect] = []
    if each.waiting is not None and each.waiting.version.version.number != version.number:
        effects.append(Discard(*each.key, each.waiting.version.version.number))
    each.waiting = publish
    return [*effects, *adopt(state, each)]


def adopt(state: State, each: SliceState) -> list[Effect]:
    """Hand the newest value to the training process, one at a time a slice."""
    if each.adopting is not None or each.waiting is None or not lockstep.may_adopt(state, each):
        return []
    each.adopting, each.waiting = each.waiting, None
    number = each.adopting.version.version.number
    keeps = each.held is not None and state.started and not state.observer
    blend = state.run_file.sync.blend if keeps else 0.0
    command = Adopt(shard=each.shard, fragment=each.fragment, number=number, blend=blend)
    return [Place(*each.key, number), Command(command)]


def adopt_all(state: State) -> list[Effect]:
    """Whatever may be adopted now."""
    return [effect for each in state.slices.values() for effect in adopt(state, each)]


def adopted(
    state: State, shard: int, fragment: int, number: int
) -> tuple[dict[str, Any], list[Effect]]:
    """The training process has taken a value: it is the base now. Returns its telemetry too."""
    each = state.slices[shard, fragment]
    publish = each.adopting
    assert publish is not None, "adopted without a command"
    assert publish.version.version.number == number, "adopted another value"
    resolved = counters.resolve(
        each.offered,
        tokens=each.tokens,
        merged=publish.merged if publish.HasField("merged") else None,
        incarnation=state.incarnation,
        base=each.number,
    )
    each.adopt(publish)
    record = {
        "shard": shard,
        "slice": fragment,
        "version": number,
        "merged": resolved.merged,
        "overlap": resolved.overlap,
        "late": resolved.late,
    }
    waiting = each.waiting
    if waiting is not None and waiting.version.version.number == number:
        each.disowned = True  # rule 22: the candidate of this number is another value already
        return record, adopt(state, each)
    return record, [Promote(shard, fragment, number), *adopt(state, each)]
