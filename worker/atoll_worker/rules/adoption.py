"""Published values: candidates, adoption at a step boundary, new bases (rules 13, 15, 17, 21, 22).

    started(): it fits -> arrived(): newer than all known -> waiting
    adopt(): PlaceValue, Adopt -> adopting -> adopted(): the Boundary names it -> Promote

A slice has at most two candidates, the one that is being adopted and the newest after it, so the
memory is bounded however fast a shard publishes.
"""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt
from atoll_worker.rules import handover
from atoll_worker.rules.effects import Command, Discard, Effect, PlaceValue, Promote
from atoll_worker.rules.learner_state import LearnerState
from atoll_worker.rules.slice_state import SliceState, order, outcome


def started(state: LearnerState, shard: int, publish: pb.Publish, now: float) -> bool:
    """Whether the coming value fits: of a known slice, a difference to the base held."""
    each = state.slices.get((shard, publish.version.slice))
    if each is None:
        return False
    state.shards[shard].arriving[each.fragment, publish.version.version.number] = now
    return not publish.difference or (publish.base == each.number and not each.orphaned)


def arrived(state: LearnerState, shard: int, publish: pb.Publish, now: float) -> list[Effect]:
    each = state.slices[shard, publish.version.slice]
    version = publish.version.version
    began_at = state.shards[shard].arriving.pop((each.fragment, version.number), None)
    if began_at is not None:
        seconds = state.progress.publish_seconds
        state.progress.publish_seconds = seconds.add(now - began_at)
    candidates = [order(p.version.version) for p in (each.adopting, each.waiting) if p is not None]
    if order(version) in candidates:
        return []  # sent again in a newer session: the candidate is still needed
    if order(version) <= max(each.order, *candidates, (-1, 0)):
        return [Discard(*each.key, version.number)]
    effects: list[Effect] = []
    if each.waiting is not None and each.waiting.version.version.number != version.number:
        effects.append(Discard(*each.key, each.waiting.version.version.number))
    each.waiting = publish
    return [*effects, *adopt(state, each)]


def adopt(state: LearnerState, each: SliceState) -> list[Effect]:
    """Hand the newest value to the training process, unless one is on its way already."""
    if each.adopting is not None or each.waiting is None or not handover.may_adopt(state, each):
        return []
    each.adopting, each.waiting = each.waiting, None
    number = each.adopting.version.version.number
    has_own_work = each.held is not None and state.started and not state.configure.observer
    blend = state.sync.blend if has_own_work else 0.0
    command = Adopt(shard=each.shard, fragment=each.fragment, number=number, blend=blend)
    return [PlaceValue(*each.key, number), Command(command)]


def adopt_all(state: LearnerState) -> list[Effect]:
    return [effect for each in state.slices.values() for effect in adopt(state, each)]


def adopted(
    state: LearnerState, shard: int, fragment: int, number: int
) -> tuple[dict[str, Any], list[Effect]]:
    """The training process has taken a value: its part of the boundary's telemetry, and effects."""
    each = state.slices[shard, fragment]
    publish = each.adopting
    assert publish is not None, "adopted without a command"
    assert publish.version.version.number == number, "adopted another value"
    became = outcome(each, publish.merged, state.incarnation)
    each.adopt(publish)
    state.shards[shard].overlap += became["overlap"]
    state.shards[shard].late += became["late"]
    record = {"shard": shard, "slice": fragment, "version": number, **became}
    waiting = each.waiting
    if waiting is not None and waiting.version.version.number == number:
        each.orphaned = True  # the candidate of this number is another value already (rule 22)
        return record, adopt(state, each)
    return record, [Promote(shard, fragment, number), *adopt(state, each)]
