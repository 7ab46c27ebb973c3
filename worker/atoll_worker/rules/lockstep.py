"""Modes that wait: hand-overs by the position, step() waits for the Publish (rule 15)."""

from atoll_worker.link.messages import Proceed
from atoll_worker.rules import offers, schedule
from atoll_worker.rules.effects import Command, Effect
from atoll_worker.rules.slices import SliceState
from atoll_worker.rules.state import State


def catch_up(state: State) -> None:
    """One that was away for a round or more takes its position from the tick, as a joiner does."""
    work, tick = state.work, state.clock.tick
    if tick > work.position + state.run_file.sync.period:
        work.position = tick


def begin_wait(state: State) -> list[Effect]:
    """A step is finished: the training thread waits, and copies what is due."""
    if not state.started:
        return []
    state.waits = True
    return offers.ask(state, (each for each in state.slices.values() if is_due(state, each)))


def is_due(state: State, each: SliceState) -> bool:
    """Whether the slice is handed over at this position; at T every slice is.

    Not on a base that a newer one is about to replace; and not beyond T, where one that joined
    at the end may come: nobody waits for it.
    """
    if each.awaits_at is not None or each.steps < 1 or each.adopting or each.waiting:
        return False
    sync, position, steps = state.run_file.sync, state.work.position, state.run_file.steps
    if steps is not None and position >= steps:
        return position == steps
    return schedule.hands_over(sync, each.fragment, position)


def hand_over(state: State, captured: tuple[tuple[int, int], ...]) -> list[Effect]:
    """Offer what was just copied; step() waits for its Publish `overlap` steps from here."""
    effects: list[Effect] = []
    for key in captured:
        each = state.slices[key]
        if each.mark is None or each.mark.steps < 1:
            continue
        each.awaits_at = state.work.position + state.run_file.sync.overlap
        if state.sides[each.shard].welcomed:
            effects.append(offers.offer(each, each.mark))
    return effects


def hand_over_again(state: State, shard: int, heads: dict[int, int]) -> list[Effect]:
    """A hand-over that died with its session is sent again, if its base is still the head."""
    return [
        offers.offer(each, each.mark)
        for each in state.of(shard)
        if each.awaits_at is not None
        and each.mark is not None
        and heads.get(each.fragment) == each.number
        and not each.disowned
    ]


def may_adopt(state: State, each: SliceState) -> bool:
    """In lock-step only while step() waits, at hand-over + overlap; at the end at once."""
    if not state.run_file.sync.lockstep or not state.started or state.observer:
        return True
    if not state.waits:
        return False
    return each.awaits_at is None or state.work.position >= each.awaits_at or state.at_the_end


def proceed(state: State) -> list[Effect]:
    """Let step() return when nothing of this boundary is outstanding; at T it stays for Final."""
    if not state.waits or state.at_the_end:
        return []
    for each in state.slices.values():
        awaited = each.awaits_at is not None and state.work.position >= each.awaits_at
        if each.capturing or each.adopting is not None or awaited:
            return []
    state.waits = False
    return [Command(Proceed())]
