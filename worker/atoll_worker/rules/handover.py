"""Captures and offers: how a learner hands its work over (rules 10, 13 and 15).

An offer is formed from a *capture*, a copy of the slice at one step boundary; the training process
makes it on command.

**Where no learner waits** (Decoupled DiLoCo, arXiv 2604.21428), a shard's Call is the credit for
exactly one offer: of the capture of the newest boundary, or else of the next one. Slices that come
due before the next boundary are captured ahead (`due_soon`), or slow learners would answer a whole
step late.

**In lock-step modes** (DiLoCo, arXiv 2311.08105, and Streaming DiLoCo, 2501.18512) a learner hands
over by itself at a slice's due *position*, and `step()` waits for the Publish `overlap` steps
later. Only the position decides, never the tick that a shard happens to report: so learners at one
position hand over the same slices, and never wait for each other's.

    begin_wait: Capture --> Boundary --> hand_over: SendOffer ... `overlap` more steps ...
    step() at awaited_from: waits --> Publish --> Adopt --> Boundary --> proceed: Proceed

A hand-over that died with its session is sent again in the next one, as long as its base is still
the newest version (`hand_over_again`); without lock-step the shard repeats the Call instead.
"""

from collections.abc import Collection, Iterable, Mapping

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_worker.link.messages import Capture, Proceed
from atoll_worker.rules.effects import Command, Effect, SendOffer
from atoll_worker.rules.learner_state import LearnerState
from atoll_worker.rules.slice_state import Captured, SliceState

# ---------------------------------------------------------------- captures and offers in all modes


def ask(state: LearnerState, wanted: Iterable[SliceState]) -> list[Effect]:
    new = [each for each in wanted if not each.capturing]
    for each in new:
        each.capturing = state.captures_asked = True
    return [Command(Capture(slices=tuple(each.key for each in new)))] if new else []


def captured(state: LearnerState, shard: int, fragment: int) -> None:
    """The capture region holds the slice as it is at this boundary, after its adoptions."""
    each, progress = state.slices[shard, fragment], state.progress
    each.capturing = False
    each.captured = Captured(
        boundary=progress.boundaries,
        steps=each.steps,
        tokens=each.tokens,
        position=progress.position,
        cursor=progress.cursor,
        data_state=progress.data_state,
    )


def offer(each: SliceState, capture: Captured) -> Effect:
    """With the session's slot and incarnation, its fields name it."""
    assert each.held is not None, "an offer needs a base"
    each.offered.add(capture.steps, capture.tokens)
    message = pb.Offer(
        slice=each.fragment,
        base=each.number,
        capture=capture.steps,
        counters=pb.Counters(steps=capture.steps, tokens=capture.tokens),
        t_m=capture.position,
        cursor=capture.cursor,
        base_digest=each.held.digest,
        data_state=capture.data_state,
    )
    return SendOffer(each.shard, message)


def lost(state: LearnerState, shard: int, fragment: int, base: int, capture: int) -> list[Effect]:
    """The region was overwritten before it was read. The credit stays; a new capture answers it."""
    each = state.slices[shard, fragment]
    if each.number != base:
        return []
    each.offered.take_back(capture)
    if each.captured is not None and each.captured.steps == capture:
        each.captured = None
    if state.sync.lockstep:
        return ask(state, [each])
    each.call = base
    return [*answers(state), *captures(state)]


# ---------------------------------------------------------------- modes in which no learner waits


def called(state: LearnerState, shard: int, call: pb.Call) -> list[Effect]:
    """A Call is the credit for one offer on that base; on any other base nothing is owed."""
    each = state.slices.get((shard, call.slice))
    if each is None or each.number != call.base or each.orphaned:
        return []
    each.call = call.base
    return [*answers(state), *captures(state)]  # the slices due soon were asked for at a boundary


def answers(state: LearnerState) -> list[Effect]:
    effects: list[Effect] = []
    for each in state.slices.values():
        capture = each.captured
        if capture is None or each.call is None:
            continue
        if capture.boundary == state.progress.boundaries and capture.steps >= 1:
            each.call = None
            effects.append(offer(each, capture))
    return effects


def captures(state: LearnerState, soon: Collection[int] = ()) -> list[Effect]:
    if not state.started or state.finished:
        return []
    slices = state.slices.values()
    return ask(state, (each for each in slices if each.call is not None or each.fragment in soon))


def due_soon(state: LearnerState, now: float) -> list[int]:
    return schedule.ahead(
        state.sync,
        state.clock.estimate(now),
        state.clock.ticks_per_second,
        state.progress.step_seconds.or_else(0.0),
    )


# ---------------------------------------------------------------- lock-step modes


def catch_up(state: LearnerState) -> None:
    """After an absence of a round or more, take the position from the tick, as a joiner does."""
    progress, tick = state.progress, state.clock.tick
    if tick > progress.position + state.sync.period:
        progress.position = tick


def begin_wait(state: LearnerState) -> list[Effect]:
    if not state.started:
        return []
    state.step_waits = True
    return ask(state, (each for each in state.slices.values() if is_due(state, each)))


def is_due(state: LearnerState, each: SliceState) -> bool:
    """Whether the slice is handed over at this position; at the job's length every slice is.

    At a former length too: another learner may not have heard of the present one, and would wait.
    Not on a base that is about to be replaced, and not what is final, since its shard has ended.
    """
    if each.awaited_from is not None or each.steps < 1 or each.adopting or each.waiting:
        return False
    if state.is_final(each):
        return False
    position = state.progress.position
    return state.length.is_end(position) or schedule.hands_over(state.sync, each.fragment, position)


def hand_over(state: LearnerState, keys: tuple[tuple[int, int], ...]) -> list[Effect]:
    """Offer what was just captured; step() waits for its Publish `overlap` steps from here."""
    effects: list[Effect] = []
    for key in keys:
        each = state.slices[key]
        if each.captured is None or each.captured.steps < 1:
            continue
        each.awaited_from = state.progress.position + state.sync.overlap
        if state.shards[each.shard].welcomed:
            effects.append(offer(each, each.captured))
    return effects


def hand_over_again(state: LearnerState, shard: int, newest: Mapping[int, int]) -> list[Effect]:
    """`newest` is the newest version number of every fragment at the shard."""
    return [
        offer(each, each.captured)
        for each in state.of(shard)
        if each.awaited_from is not None
        and each.captured is not None
        and newest.get(each.fragment) == each.number
        and not each.orphaned
    ]


def may_adopt(state: LearnerState, each: SliceState) -> bool:
    """Always, but in lock-step modes only inside step().

    There a slice that was handed over is adopted `overlap` steps later, not before, so that all
    learners adopt at the same position. At the end of the job it is adopted at once.
    """
    if not state.sync.lockstep or not state.started or state.configure.observer:
        return True
    if not state.step_waits:
        return False
    reached = each.awaited_from is None or state.progress.position >= each.awaited_from
    return reached or state.at_the_end


def proceed(state: LearnerState) -> list[Effect]:
    """Let step() return if nothing of this boundary is outstanding; at the end Finished does it."""
    if not state.step_waits or state.at_the_end:
        return []
    for each in state.slices.values():
        awaited = each.awaited_from is not None and state.progress.position >= each.awaited_from
        awaited = awaited and not state.is_final(each)
        if each.capturing or each.adopting is not None or awaited:
            return []
    state.step_waits = False
    return [Command(Proceed())]
