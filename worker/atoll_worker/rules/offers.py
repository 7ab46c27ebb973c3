"""Calls and their answers: captures, captures ahead, one Offer for one credit (rule 10)."""

from collections.abc import Iterable

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Capture
from atoll_worker.rules import schedule
from atoll_worker.rules.effects import Command, Effect, SendOffer
from atoll_worker.rules.slices import Mark, SliceState
from atoll_worker.rules.state import State


def called(state: State, shard: int, call: pb.Call) -> list[Effect]:
    """A Call is the credit for one Offer on that base; on any other base nothing is owed."""
    each = state.slices.get((shard, call.slice))
    if each is None or each.number != call.base or each.disowned:
        return []
    each.call = call.base
    return [*answers(state), *captures(state)]


def captured(state: State, shard: int, fragment: int) -> None:
    """The capture region holds the slice as it is at this boundary, after its adoptions."""
    each, work = state.slices[shard, fragment], state.work
    each.capturing = False
    each.mark = Mark(
        boundary=work.boundaries,
        steps=each.steps,
        tokens=each.tokens,
        position=work.position,
        cursor=work.cursor,
    )


def answers(state: State) -> list[Effect]:
    """From the last finished step, where that is captured; else the next boundary answers."""
    effects: list[Effect] = []
    for each in state.slices.values():
        mark = each.mark
        if mark is None or each.call is None or each.call != each.number:
            continue
        if mark.boundary == state.work.boundaries and mark.steps >= 1:
            each.call = None
            effects.append(offer(each, mark))
    return effects


def captures(state: State) -> list[Effect]:
    """Ask for what is called and not answered, and ahead for what will be."""
    if not state.started or state.finished:
        return []
    soon = schedule.ahead(
        state.run_file.sync,
        state.clock.tick,
        state.clock.ticks_per_second,
        state.work.step_seconds,
    )
    wanted = {*soon}
    return ask(
        state,
        (e for e in state.slices.values() if e.call is not None or e.fragment in wanted),
    )


def ask(state: State, wanted: Iterable[SliceState]) -> list[Effect]:
    """One Capture command for those of which none is outstanding."""
    new = [each for each in wanted if not each.capturing]
    for each in new:
        each.capturing = state.captures_asked = True
    return [Command(Capture(slices=tuple(each.key for each in new)))] if new else []


def offer(each: SliceState, mark: Mark) -> Effect:
    """Named by slot, incarnation (the session's), slice, base and capture."""
    assert each.held is not None, "an offer on nothing"
    each.offered.add(mark.steps, mark.tokens)
    message = pb.Offer(
        slice=each.fragment,
        base=each.number,
        capture=mark.steps,
        counters=pb.Counters(steps=mark.steps, tokens=mark.tokens),
        t_m=mark.position,
        cursor=mark.cursor,
        base_digest=each.held.digest,
    )
    return SendOffer(each.shard, message)


def lost(state: State, shard: int, fragment: int, base: int) -> list[Effect]:
    """The region was overwritten before it was read: the credit stays, the next capture answers."""
    each = state.slices[shard, fragment]
    each.mark = None
    each.offered.take_back()
    if each.number != base:
        return []
    if not state.run_file.sync.lockstep:
        each.call = base
    return ask(state, [each])
