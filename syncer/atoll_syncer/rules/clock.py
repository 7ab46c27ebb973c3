"""Reports move the clock; everybody hears of a new tick (rules 7 and 8)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import State
from atoll_syncer.rules.publishing import note_progress


def reported(state: State, sender: Session, report: pb.Report, now: float) -> bool:
    """The newest of a slot's session; says whether it counts."""
    slot = state.slots[sender.slot]
    if slot.session != sender.number:
        return False
    slot.take(report, now)
    for each in report.slices:
        note_progress(state, sender, each)
    if slot.name in state.clock.positions and report.t_m > slot.t_m_counted:
        state.clock.advance(slot.name, report.t_m - slot.t_m_counted)
    slot.t_m_counted = max(slot.t_m_counted, report.t_m)
    return True


def move_clock(state: State, now: float) -> list[Effect]:
    """The tick, as the Training learners' positions have it."""
    state.clock.set_training(state.training(now))
    if all_wait_at_the_end(state, now):
        state.clock.raise_to(state.run_file.steps or 0)
    if state.clock.update(state.quorum(now)):
        state.tick_times.append((now, state.clock.tick))
    return tell_tick(state)


def all_wait_at_the_end(state: State, now: float) -> bool:
    """In lock-step nobody steps beyond T: if a hand-over there was lost, no other will come."""
    steps, training = state.run_file.steps, state.training(now)
    if not state.sync.lockstep or steps is None or not training:
        return False
    return all(
        state.slots[name].report.waiting and state.slots[name].report.t_m >= steps
        for name in training
    )


def raise_clock(state: State, tick: int) -> None:
    """To what somebody has seen elsewhere; a jump says nothing about the clock's rate."""
    if tick > state.clock.tick:
        state.clock.raise_to(tick)
        state.tick_times.clear()


def tell_tick(state: State) -> list[Effect]:
    """To every session, whatever moved it: reports, a commit, or what a joiner has seen."""
    if state.clock.tick <= state.told_tick:
        return []
    state.told_tick = state.clock.tick
    message = pb.ToLearner(tick=pb.Tick(tick=state.clock.tick))
    return [Send(number, message) for number in state.welcomed]
