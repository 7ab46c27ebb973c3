"""A round begins, and learners are called (rules 9, 10, 14): steps 1 and 2 of rounds.py."""

from operator import attrgetter
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.roster import CallCredit, Session, Slot
from atoll_syncer.model.round import Round
from atoll_syncer.model.state import ShardState
from atoll_syncer.model.state_parts import RefusedOffers
from atoll_syncer.rules.rounds import offers, reading

DAMAGED_OFFERS_MAX: Final = 3  # in a row of one slot, until a round does without it

# ------------------------------------------------------------ 1: a round begins


def start_due(state: ShardState, now: float) -> list[Effect]:
    if state.sync.lockstep or state.ending.began_at is not None:
        return []
    effects: list[Effect] = []
    for fragment, due in schedule.starts(state.sync, state.clock.tick, state.rounds.starts):
        open_round = state.rounds.open.get(fragment)
        if open_round is not None and open_round.closed_at is not None:
            continue  # its commit is under way: the round of this tick begins after it
        if open_round is None and not reading.may_begin(state, fragment):
            continue
        state.rounds.starts[fragment] = due
        if open_round is None:
            effects += begin(state, fragment, due, now)
        else:
            open_round.due = due  # one round, for the newest due tick
    return effects


def begin(state: ShardState, fragment: int, due: int, now: float) -> list[Effect]:
    """A round on the slice's head, and its first Calls."""
    base = state.history.heads[fragment].number
    each = Round(slice=fragment, due=due, base=base, opened_at=now)
    state.rounds.open[fragment] = each
    return [] if state.sync.lockstep else call(state, each, now)


def begin_last(
    state: ShardState, fragment: int, due: int, deadline: float, now: float
) -> list[Effect]:
    """A slice's last round; one that is open becomes it. Neither K nor rule 9's distance apply."""
    effects: list[Effect] = []
    if fragment not in state.rounds.open:
        effects += begin(state, fragment, due, now)
    each = state.rounds.open[fragment]
    each.last, each.deadline = True, deadline
    if not state.sync.lockstep:
        effects += call(state, each, now)
    return effects


def put_off_last(state: ShardState) -> None:
    """The job has become longer: its last rounds are rounds like others, and none is finished.

    One that closed with nothing was none: its slice is due again.
    """
    for fragment in state.rounds.finished:
        state.rounds.starts[fragment] = state.history.due.get(fragment, 0)
    state.rounds.finished.clear()
    for each in state.rounds.open.values():
        each.last, each.deadline = False, None


# ------------------------------------------------------------ 2: learners are called


def call(
    state: ShardState, each: Round, now: float, only: Slot | None = None, *, newcomers: bool = False
) -> list[Effect]:
    """Every usable learner that has no Call of this round, or `only` that one of them."""
    effects: list[Effect] = []
    slots = state.sessions.slots.values() if only is None else [only]
    uncalled = [slot for slot in slots if slot.name not in each.called]
    for slot in sorted(uncalled, key=attrgetter("name")):
        if slot.name in each.refused or slot.session is None:
            continue
        if not offers.usable(state, slot, each, now):
            continue
        if newcomers and not offers.is_newcomer(state, slot):
            continue
        session = state.sessions.open[slot.session]
        coming = session.receiving.get(each.slice)
        if coming is not None and coming.head.HasField("offer"):
            continue
        each.called[slot.name] = now
        session.credits[each.slice] = CallCredit(base=each.base, called_at=now, t_m=slot.report.t_m)
        message = pb.Call(slice=each.slice, base=each.base, due=each.due)
        effects.append(Send(session.number, pb.ToLearner(call=message)))
    return effects


def spend_credit(sender: Session, fragment: int) -> CallCredit | None:
    return sender.credits.pop(fragment, None)


def refused(state: ShardState, slot: str, fragment: int, reason: str, *, final: bool) -> None:
    """Its round does without it if it is `final`, or damaged on its way too often (rule 11)."""
    count = note_refused(state, slot, reason)
    each = state.rounds.open.get(fragment)
    if each is not None and (final or count >= DAMAGED_OFFERS_MAX):
        each.refused.add(slot)


def note_refused(state: ShardState, slot: str, reason: str) -> int:
    """How many offers of a slot in a row were refused, until one of them is merged."""
    before = state.rounds.refused.get(slot)
    count = 1 if before is None else before.count + 1
    state.rounds.refused[slot] = RefusedOffers(reason=reason, count=count)
    return count
