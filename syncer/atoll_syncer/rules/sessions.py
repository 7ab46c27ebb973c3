"""Sessions: from a Join to its Welcome or refusal; reports; what a closed one leaves (rules 3-7).

    Join --check--> --admit--> (entry Taken, durable) --> Welcome --> reports ... --> closed
           |          |
           +- End     +- End: superseded, slot held, not ready

`check` compares what must be equal everywhere (rule 3). `admit` decides on the incarnation
(rules/runs); a higher one is a log entry, and the Welcome waits for it.

Before that, `opened` notes what the Join says about the run, for a registrar that has lost its
store. If the learner has seen a higher epoch of this shard, a still higher term begins, and the
learner joins again; while the record of the term is not durable, it does so too.

When a session closes, or a rule ends it, a seed or a held version that was on its way is asked for
at another learner.

Whether a transfer may come, and where it goes once it is whole (rules 10, 12 and 25).

    head arrives --started--> Accept --all bytes, values examined--> verified
                     |                                  |
                     +--> the session ends              +--rejected--> the session ends, or the
                                                                       offer is late

Slice, permission and encoding are checked when the head arrives, before any memory is allocated;
the number of bytes follows from the layout alone. Where a session has several lanes, `started` is
asked with the first head, and `verified` follows when all stripes are here (rule 33).
"""

from dataclasses import replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError, printable
from atoll_protos.exits import exit_code_of, is_permanent
from atoll_protos.job.run_file import RunFile
from atoll_protos.names import LANES_MAX, PROTOCOL, split_slot
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_syncer.model.effects import (
    Accept,
    Append,
    Effect,
    EndSession,
    Send,
    TapeLine,
    end_session,
    refuse,
)
from atoll_syncer.model.history import NONE_TRAINED, History
from atoll_syncer.model.log import Committed, Taken, Trained, Uptime
from atoll_syncer.model.roster import Certificate, Coming, Session, Slot
from atoll_syncer.model.state import ShardState, Standing
from atoll_syncer.rules import (
    calls,
    ending,
    offers,
    publishing,
    recovery,
    rounds,
    runs,
    seeding,
    shut_out,
    validation,
)

UNSEEN_SECONDS: Final = 5.0  # between two looks at who trains
REASON_LETTERS_MAX: Final = 500  # of a Leave, as Status shows it

# ------------------------------------------------------------ a Join


def opened(
    state: ShardState, session: int, join: pb.Join, certificate: Certificate, now: float
) -> list[Effect]:
    if (out := shut_out.refusal(state, join, certificate, now)) is not None:
        return [EndSession(session, out)]
    runs.note_join(state, join, now)
    end = check(join, state.run_file, state.history)
    if not join.observer:
        state.sessions.refused.discard(join.slot)
    if end is None and state.term.durable and (epoch := runs.higher_epoch(state, join)):
        recovery.turned_away(state, join)
        again = refuse(pb.NOT_READY, "this shard begins a higher epoch")
        return [runs.begin_term(state, epoch + 1, join.slot), EndSession(session, again)]
    if end is None and not state.term.durable:
        recovery.turned_away(state, join)
        end = refuse(pb.NOT_READY, "this shard's epoch is not durable yet")
    if end is None and not join.observer:
        end = recovery.refusal(state, join)
    if end is not None and end.code == pb.NOT_READY and not state.history.run:
        state.sessions.early[session] = join, certificate
        return runs.mint(state, now)
    if end is not None:
        _note_refusal(state, join, end)
        return [EndSession(session, end)]
    state.sessions.open[session] = Session(number=session, join=join, certificate=certificate)
    if join.observer:
        return welcome(state, session, 0, now)
    return _admitted(state, session, join, now)


def admit_early(state: ShardState, now: float) -> list[Effect]:
    early, state.sessions.early = state.sessions.early, {}
    return [
        effect
        for session, (join, certificate) in early.items()
        for effect in opened(state, session, join, certificate, now)
    ]


def _admitted(state: ShardState, session: int, join: pb.Join, now: float) -> list[Effect]:
    answer = runs.admit(
        join,
        state.history,
        shard=state.number,
        live_instance=live_instance(state, join.slot),
        pending=join.slot in state.sessions.pending,
        proved=runs.is_proved(state, join),
    )
    if isinstance(answer, pb.End):
        del state.sessions.open[session]
        state.sessions.zombies_refused += answer.code == pb.SUPERSEDED
        return [EndSession(session, answer)]
    if answer.entry is not None:
        state.sessions.pending[join.slot] = session
        known = state.sessions.slots.get(join.slot)
        trained = known.trained if known else state.history.trained.get(join.slot, NONE_TRAINED)
        # A shard that has lost its log may know tokens of this very incarnation: not from before.
        trained = trained.also(Trained(incarnation=answer.entry.incarnation))
        settled = trained.settled_before
        return [Append(replace(answer.entry, tokens=trained.before, settled=settled))]
    effects = _end_others(state, join.slot, session, pb.REPLACED)
    return [*effects, *welcome(state, session, answer.incarnation, now)]


def taken(state: ShardState, entry: Taken, standing: Standing, now: float) -> list[Effect]:
    session = state.sessions.pending.pop(entry.slot, None)
    effects = _end_others(state, entry.slot, session, pb.SUPERSEDED)
    effects += rounds.withdraw(state, entry.slot, standing)
    record = {"slot": entry.slot, "incarnation": entry.incarnation, "instance": entry.instance}
    effects.append(TapeLine({"event": "taken", **record}))
    if session in state.sessions.open:
        effects += welcome(state, session, entry.incarnation, now)
    return effects


def welcome(state: ShardState, session: int, incarnation: int, now: float) -> list[Effect]:
    sessions, history = state.sessions, state.history
    joined = sessions.open[session]
    joined.welcomed = True
    sessions.welcomed_in[joined.join.instance] = state.term.epoch
    if joined.slot:
        trained = history.trained.get(joined.slot, NONE_TRAINED)
        known = Slot(name=joined.slot, trained=trained, restored=trained.total)
        slot = sessions.slots.setdefault(joined.slot, known)
        slot.open(session, now, incarnation)
        sessions.training.note(slot, now)
        if max(state.clock.tick, joined.join.tick_seen) == 0:
            sessions.founders.add(joined.slot)
    publishing.note_held(state, joined)
    lost = recovery.versions_claimed(state, joined, now)
    calls.catch_up(state, now)
    cursor, data_state = publishing.cursor(state, joined.slot)
    message = pb.Welcome(
        run=history.run,
        incarnation=incarnation,
        epoch=history.epoch,
        session=session,
        tick=state.clock.tick,
        cursor=cursor,
        data_state=data_state if joined.join.starting else None,
        needs_model=not joined.join.observer and seeding.needs_model(state, joined),
        newest=state.heads(),
        length=state.ending.length.message(),
        proof=runs.proof(state, joined.join, incarnation),
    )
    effects: list[Effect] = [*lost, Send(session, pb.ToLearner(welcome=message))]
    if not (joined.slot and state.seed.kept_back):
        effects += publishing.lacking(state, joined)
    effects += seeding.ask(state)
    if history.ended and state.is_whole:
        effects.append(Send(session, ending.final(state)))
    return effects


def live_instance(state: ShardState, slot: str) -> str:
    """Return the instance that has the slot's session; empty without one."""
    known = state.sessions.slots.get(slot)
    if known is None or known.session is None:
        return ""
    return state.sessions.open[known.session].join.instance


def _end_others(state: ShardState, slot: str, keep: int | None, code: pb.Code) -> list[Effect]:
    """End the slot's welcomed sessions, but for the one to keep; they count no more from now on."""
    sessions = state.sessions.open.items()
    others = [n for n, s in sessions if s.slot == slot and n != keep and s.welcomed]
    effects: list[Effect] = []
    for number in others:
        effects.append(end_session(number, code, f"{slot} has a newer session"))
        effects += closed(state, number)
    return effects


# ------------------------------------------------------------ an open session


def reported(state: ShardState, sender: Session, report: pb.Report, now: float) -> bool:
    """Take a learner's report (rule 7); return whether it counts: not from a replaced session."""
    slot = state.sessions.slots[sender.slot]
    if slot.session != sender.number:
        return False
    tokens = slot.tokens
    steps = slot.take(report, now, offers.tokens_per_step_max(state, slot.name))
    state.sessions.tokens += slot.tokens - tokens
    state.sessions.training.note(slot, now)
    for each in report.slices:
        publishing.note_progress(state, sender, each)
    calls.advance(state, slot.name, steps, now)
    return True


def recovered(state: ShardState) -> None:
    """Take a version that came back, with what its learner knew of all slots' tokens."""
    slots, trained = state.sessions.slots, state.history.trained
    away = sum(each.total for name, each in trained.items() if name not in slots)
    state.sessions.tokens = away + sum(slot.tokens for slot in slots.values())
    for name, slot in state.sessions.slots.items():
        before, here = slot.tokens, slot.tokens - slot.restored
        slot.trained = slot.trained.also(state.history.trained.get(name, NONE_TRAINED))
        slot.restored = slot.tokens - here
        state.sessions.tokens += slot.tokens - before


def merged(state: ShardState, entry: Committed) -> None:
    """Take a durable version, with what became of the tokens of its offers."""
    for part in entry.participants:
        slot = state.sessions.slots.get(part.slot)
        if slot is not None:
            slot.trained = slot.trained.also(state.history.trained[part.slot])


def time_passed(state: ShardState, now: float) -> None:
    """Count the time in which the job trains; not one in which this process stood still."""
    sessions, known = state.sessions, state.sessions.uptime
    passed, sessions.looked_at = now - sessions.looked_at, now
    trains = bool(sessions.training.at(now))
    if state.history.ended or passed > UNSEEN_SECONDS or not (trains or known.seconds):
        return
    sessions.uptime = Uptime(
        seconds=known.seconds + passed,
        training_seconds=known.training_seconds + (passed if trains else 0.0),
    )


def leaves(state: ShardState, sender: Session, leave: pb.Leave) -> None:
    reason = printable(" ".join(leave.reason.split()), REASON_LETTERS_MAX)
    state.sessions.slots[sender.slot].left = reason or "left"


def evaluated(state: ShardState, evaluation: pb.Evaluation) -> list[Effect]:
    state.sessions.evaluation = evaluation
    return [TapeLine({"event": "evaluation", "tick": evaluation.tick, "loss": evaluation.loss})]


def ended(state: ShardState, effect: EndSession) -> list[Effect]:
    """End a session as the rules say; of a Join that they refuse there is nothing open."""
    known = state.sessions.open.get(effect.session)
    if known is not None:
        _note_refusal(state, known.join, effect.end)
        slot = state.sessions.slots.get(known.slot)
        if slot is not None and effect.end.code in (pb.UNKNOWN_SLOT, pb.NOT_ALLOWED):  # shut out
            slot.left = effect.end.reason
    return closed(state, effect.session)


def _note_refusal(state: ShardState, join: pb.Join, end: pb.End) -> None:
    """Who was refused for good holds nobody up, until a learner dials in the slot again."""
    for_good = not end.retry and end.code != pb.UNKNOWN_SLOT  # a name that nobody waits for
    if not join.observer and for_good and is_permanent(exit_code_of(end.code)):
        state.sessions.refused.add(join.slot)


def closed(state: ShardState, session: int) -> list[Effect]:
    """Both streams are gone, or the rules have ended the session: it counts no more."""
    state.sessions.early.pop(session, None)
    left = state.sessions.open.pop(session, None)
    runs.note_absence(state)
    if left is None:
        return []
    slot = state.sessions.slots.get(left.slot)
    if slot is not None and slot.session == session:
        slot.session = None
        state.sessions.training.remove(slot.name)
        rounds.session_closed(state, left.slot)
    recovery.session_closed(state, session)
    return seeding.session_closed(state, session)


# ------------------------------------------------------------ may it join?


def check(join: pb.Join, run_file: RunFile, history: History) -> pb.End | None:
    run = history.run
    if (end := _check_form(join)) is not None:
        return end
    if join.run_hash != run_file.hash:
        return refuse(
            pb.OTHER_RUN_HASH, "spec.sync, seed or syncer.shards differ from this shard's"
        )
    if history.layout_digest not in ("", join.layout_digest):
        return seeding.of_another_model(history)
    if seeding.has_other_frozen(history.frozen_digest, join):
        return refuse(pb.OTHER_FROZEN, seeding.OTHER_FROZEN)
    if not run:
        return refuse(pb.NOT_READY, "no run has started yet")
    if join.run and join.run != run:
        return runs.of_another_run(f"it holds state of run {join.run}; this job is in run {run}")
    if join.observer:
        return None
    try:
        region, _ = split_slot(join.slot)
    except SpecError as error:
        return refuse(pb.UNKNOWN_SLOT, str(error), error.remedy)
    if not run_file.has_region(region):  # a learner's own run file has it: see read_job
        known = ", ".join(each.name for each in run_file.regions)
        return refuse(
            pb.UNKNOWN_SLOT,
            f"slot {join.slot}: region {region} is not in this shard's run file, which has {known}",
            "start this shard with the newest run file; the learner tries again",
            retry=True,
        )
    return None


def _check_form(join: pb.Join) -> pb.End | None:
    """Whether the Join is one of this protocol, for as many lanes as a session may have."""
    if join.protocol != PROTOCOL:
        return refuse(
            pb.OTHER_PROTOCOL,
            f"the learner has protocol {join.protocol}, this shard has {PROTOCOL}",
        )
    most = 1 if join.observer else LANES_MAX
    if join.lanes > most:
        who = "an observer" if join.observer else "a learner"
        reason = f"it asks for {join.lanes} lanes; {who} has at most {most}"
        return refuse(pb.TOO_MANY_LANES, reason, "" if most > 1 else "join with one lane")
    return None


SECONDS_MAX_LEAST: Final = 300.0  # of a whole transfer
TIMES_USUAL_MAX: Final = 10.0  # as long as the moving transfer time
BYTES_PER_SECOND_MIN: Final = 250e3  # a slower link is of no use
OVERLONG: Final = "a transfer goes on for much longer than others take, and is not whole"


def started(state: ShardState, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
    sender = _sender(state, session)
    if sender is None or state.layout is None:
        return _end(session, "a transfer came before the Welcome")
    if objection := validation.of_transfer(state, transfer):
        recovery.rejected(state, session, transfer)
        return _end(session, objection)
    kind = transfer.WhichOneof("kind")
    fragment = slice_of(transfer)
    if fragment not in state.fragments:
        return _end(session, f"slice {fragment} is unknown")
    encoding = pb.F32
    match kind:
        case "offer":
            encoding = encoding_of(state.sync.wire_up)
            reason = offers.objection(state, sender, transfer.offer)
        case "seed":
            reason = seeding.objection(state, session)
        case "held":
            base = base_encoding(state.sync.wire_down)
            final = state.layout.final_encoding(state.layout.slice(state.number, fragment), base)
            encoding = transfer.encoding if transfer.encoding in (base, final) else base
            reason = recovery.objection(state, session, transfer.held)
        case _:
            reason = f"a learner does not send a transfer of kind {kind}"
    if reason:
        return _end(session, reason)
    if transfer.encoding != encoding:
        return _end(session, "the encoding is not the run file's")
    data_state = offers.data_state(sender, transfer.offer)
    if data_state is not None:
        sender.data_state = data_state
    credit = calls.spend_credit(sender, fragment) if kind == "offer" else None
    asked_at, sender.heard_at = credit.called_at if credit else now, now
    byte_count = state.layout.slice(state.number, fragment).form.byte_count(encoding)
    sender.receiving[fragment] = Coming(
        head=transfer,
        asked_at=asked_at,
        until=now + seconds_max(state, byte_count),
        data_state=data_state,
    )
    return [Accept(session, byte_count)]


def seconds_max(state: ShardState, byte_count: int) -> float:
    """How long a whole transfer may take: a frame now and then does not make it go on for ever."""
    usual = TIMES_USUAL_MAX * state.rounds.timings.transfer.or_else(0.0)
    return max(SECONDS_MAX_LEAST, usual, byte_count / BYTES_PER_SECOND_MIN)


def overlong(state: ShardState, now: float) -> list[Effect]:
    """End the sessions whose transfers drip; their Calls are made again to their next ones."""
    late = [
        (number, coming)
        for number, session in sorted(state.sessions.open.items())
        for coming in session.receiving.values()
        if now > coming.until
    ]
    ended = dict(reversed(late))  # one of each session
    return [
        effect
        for number, coming in ended.items()
        for effect in rejected(state, number, OVERLONG, now, coming.head)
    ]


def verified(
    state: ShardState, session: int, transfer: pb.Transfer, standing: Standing, now: float
) -> list[Effect]:
    """Whole, checksum right, all values finite: only now it counts (rule 12)."""
    sender = _sender(state, session)
    if sender is None:
        return []
    coming, sender.heard_at = _came(sender, transfer), now
    if transfer.HasField("offer"):
        if coming is None:  # a newer one has begun while this one was examined
            own = transfer.offer.data_state if transfer.offer.HasField("data_state") else None
            coming = Coming(head=transfer, asked_at=now, data_state=own)
        return rounds.completed(state, sender, coming, standing, now)
    if transfer.HasField("held"):
        return recovery.arrived(state, session, transfer.held)
    return seeding.arrived(state, session, transfer.seed)


def rejected(
    state: ShardState,
    session: int,
    reason: str,
    now: float,
    transfer: pb.Transfer | None = None,
    *,
    final: bool = False,
) -> list[Effect]:
    """End the session. An offer that came as it was sent (`final`) is late instead (rule 12).

    `transfer` is the head of what is rejected, None where it has not begun.
    """
    sender = _sender(state, session)
    coming = None if sender is None or transfer is None else _came(sender, transfer)
    if sender is not None and coming is not None and coming.head.HasField("offer"):
        offer = coming.head.offer
        if final:
            rounds.handed_over(state, offer, now)
        calls.refused(state, sender.slot, offer.slice, reason, final=final)
        if final:
            part = offers.participant(state, sender.slot, offer)
            return rounds.late(state, offer.slice, part, reason)
    if coming is not None:
        recovery.rejected(state, session, coming.head)
    return _end(session, reason)


def _came(sender: Session, transfer: pb.Transfer) -> Coming | None:
    """End a transfer and return it; None where a newer one has taken its place."""
    fragment = slice_of(transfer)
    coming = sender.receiving.get(fragment)
    if coming is None or not _is_part(coming.head, transfer):
        return None
    return sender.receiving.pop(fragment)


def _is_part(head: pb.Transfer, other: pb.Transfer) -> bool:
    """Whether two heads are of one transfer: they may differ in the bytes of their parts."""
    kind = other.WhichOneof("kind")
    return head.WhichOneof("kind") == kind and (
        kind is None or getattr(head, kind) == getattr(other, kind)
    )


def _sender(state: ShardState, session: int) -> Session | None:
    """Return the session, if it is the one of its slot: nothing of an older one counts (rule 5)."""
    sender = state.sessions.open.get(session)
    if sender is None or not sender.welcomed or not sender.slot:
        return None
    return sender if state.sessions.slots[sender.slot].session == session else None


def slice_of(transfer: pb.Transfer) -> int:
    match transfer.WhichOneof("kind"):
        case "offer":
            return transfer.offer.slice
        case "held":
            return transfer.held.version.slice
    return transfer.seed.slice


def _end(session: int, reason: str) -> list[Effect]:
    return [end_session(session, pb.BAD_TRANSFER, reason)]
