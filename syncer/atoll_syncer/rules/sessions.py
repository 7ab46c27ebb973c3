"""Sessions: from a Join to its Welcome or its end, and what a lost one leaves (rules 3-5)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.layout import from_model
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, EndSession, Send, SetModel, Tape
from atoll_syncer.model.roster import Session, Slot
from atoll_syncer.model.state import State
from atoll_syncer.rules import clock as reports
from atoll_syncer.rules import ending, publishing, reign, runs, seeding
from atoll_syncer.rules import recovery as recovering
from atoll_syncer.rules.admission import admit, check, end_session, refuse
from atoll_syncer.rules.offers import drop


def opened(state: State, session: int, join: pb.Join, now: float) -> list[Effect]:
    """A Join; answered by Welcome or by the session's end."""
    runs.heard(state, join)
    layout_digest = state.layout.digest if state.layout else ""
    end = check(join, state.run_file, layout_digest, state.history.run)
    if end is None and state.reigning and (epoch := reign.higher_epoch(state, join)):
        again = refuse(pb.NOT_READY, "this reign begins anew", "try again", retry=True)
        return [reign.begin(state, epoch + 1), EndSession(session, again)]
    if end is None and not state.reigning:
        end = refuse(pb.NOT_READY, "this reign's record is not durable", "try again", retry=True)
    if end is None and not join.observer:
        end = recovering.refusal(state, join)
    if end is not None:
        return [EndSession(session, end)]
    state.sessions[session] = Session(number=session, join=join)
    if join.observer:
        return welcome(state, session, 0, now)
    return _admitted(state, session, join, now)


def _admitted(state: State, session: int, join: pb.Join, now: float) -> list[Effect]:
    answer = admit(
        join,
        state.history,
        shard=state.number,
        live_instance=live_instance(state, join.slot),
        pending=join.slot in state.pending,
    )
    if isinstance(answer, pb.End):
        del state.sessions[session]
        state.refused_zombies += answer.code == pb.SUPERSEDED
        return [EndSession(session, answer)]
    if answer.entry is not None:
        state.pending[join.slot] = session
        return [Append(answer.entry)]
    effects = _end_others(state, join.slot, session, pb.REPLACED)
    return [*effects, *welcome(state, session, answer.incarnation, now)]


def closed(state: State, session: int) -> list[Effect]:
    """Both streams are gone: Calls died with them, complete offers did not (rule 11)."""
    left = state.sessions.pop(session, None)
    if left is None:
        return []
    slot = state.slots.get(left.slot)
    if slot is not None and slot.session == session:
        slot.session = None
        for each in state.rounds.values():
            if left.slot not in each.complete:
                each.called.pop(left.slot, None)
    recovering.closed(state, session)
    return seeding.closed(state, session)


def taken(state: State, entry: log.Taken, now: float) -> list[Effect]:
    """A higher incarnation is durable: the lower one's session and open offers go (rule 5)."""
    session = state.pending.pop(entry.slot, None)
    effects = _end_others(state, entry.slot, session, pb.SUPERSEDED)
    for each in state.rounds.values():
        offer = each.complete.get(entry.slot)
        if offer is not None and each.closed_at is None:
            del each.complete[entry.slot]
            if len(each.complete) < state.quorum(now):
                each.quorum_at = None
            effects.append(drop(each.slice, offer))
    record = {"slot": entry.slot, "incarnation": entry.incarnation, "instance": entry.instance}
    effects.append(Tape({"event": "taken", **record}))
    if session in state.sessions:
        effects += welcome(state, session, entry.incarnation, now)
    return effects


def welcome(state: State, session: int, incarnation: int, now: float) -> list[Effect]:
    """Its incarnation is durable; it gets what it lacks."""
    joined, history = state.sessions[session], state.history
    joined.welcomed = True
    state.met.add(joined.join.instance)
    if joined.slot:
        state.slots.setdefault(joined.slot, Slot(name=joined.slot)).open(session, now)
    publishing.note_held(state, joined)
    recovery = recovering.heard(state, joined, now)
    if history.heads or state.recovery is not None:
        reports.raise_clock(state, joined.join.tick_seen)
    message = pb.Welcome(
        run=history.run,
        incarnation=incarnation,
        epoch=history.epoch,
        session=session,
        tick=state.clock.tick,
        cursor=history.cursors.get(joined.slot, 0),
        needs_model=state.layout is None,
        heads=state.heads(),
    )
    effects: list[Effect] = [*recovery, Send(session, pb.ToLearner(welcome=message))]
    effects += publishing.what_it_lacks(state, joined)
    if history.ended and state.recovery is None:
        effects.append(Send(session, ending.final(state)))
    return [*effects, *seeding.ask(state)]


def modelled(state: State, sender: Session, model: pb.Model) -> list[Effect]:
    """The first model makes the layout; every other one must be equal."""
    if state.layout is None:
        try:
            state.layout = from_model(model, state.sync.fragments, state.run_file.shards)
        except SpecError as error:
            return [end_session(sender.number, pb.OTHER_LAYOUT, str(error))]
        return [SetModel(model), *seeding.ask(state)]
    if model.layout_digest != state.layout.digest:
        reason = "another model than this run's"
        return [end_session(sender.number, pb.OTHER_LAYOUT, reason)]
    return []


def live_instance(state: State, slot: str) -> str:
    """Who has the slot's session; empty when nobody has."""
    known = state.slots.get(slot)
    if known is None or known.session is None:
        return ""
    return state.sessions[known.session].join.instance


def _end_others(state: State, slot: str, keep: int | None, code: pb.Code) -> list[Effect]:
    others = [n for n, s in state.sessions.items() if s.slot == slot and n != keep and s.welcomed]
    return [end_session(number, code, f"{slot} has a newer session") for number in others]
