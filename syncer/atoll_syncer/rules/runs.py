"""Which run this is, this process's term over the shard, and the registrar's calls.

The run (rules 1 and 2). Only the registrar starts a run; at a job's first start, when no process
can hold one yet (`fresh`), at once. One that finds its store empty later asks first which run the
learners and the other shards hold; then it carries that run on (`_held` says which), or mints a new
one. The other shards learn the run from the answer to their Hello.

    no run --fresh: mint at once--------------------------------------------> run is durable
       |                                                                        ^
       +--registrar: every shard and learner spoke, or 30 s; mint or go on------+
       +--other shards: the answer to Hello names it----------------------------+

Why it need not wait longer than for the last learner of the job (`expected`): a new run must not
throw one away that somebody holds, and only a slot of this job or a shard can hold one. When each
has spoken there is nobody left to ask. The list may name learners that are gone: then the 30 s
pass. It is written before learners of new slots are started, so it lacks nobody.

A run that is carried on gets back what the lost store knew before any learner is admitted: the
highest incarnation of each slot and, if there are versions above 0, the mark of every shard.

The term (rule 20) is the time for which one process owns the shard; its number, the epoch, is above
every epoch in the log. A learner that has seen a higher one proves that another process has had a
later term: this one begins a still higher one. If the other still lives, the append fails and this
one is deposed; if the store was lost, the new epoch is above all that the learners have seen.

The registrar's calls (rules 1, 2, 4, 27): a Reply follows the entry that it depends on.

Incarnations: which instance of a slot gets one, and what shows the other shards that it did.

`admit` decides, and a *proof* shows it (rules 4 and 5). A registrar that has lost the entry with
the key of proofs has another key, while shards with the former one in their logs go on: both count.
"""

import hmac
from dataclasses import dataclass, replace
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.job import schedule
from atoll_protos.job.run_file import RunFile
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Ask,
    Effect,
    EndProcess,
    FindCheckpoint,
    SendReply,
    TapeLine,
    WritePart,
    end_session,
    refuse,
)
from atoll_syncer.model.history import History
from atoll_syncer.model.log import FoundCheckpoint, Taken
from atoll_syncer.model.state import ShardState, layout_of
from atoll_syncer.rules import calls, ending, publishing, recovery, seeding, validation


def key(state: ShardState) -> str:
    """Return the registrar's, as it tells it to the other shards."""
    return state.history.key or state.run.key


def proof(state: ShardState, join: pb.Join, incarnation: int) -> str:
    """Return the proof that the registrar gave this incarnation; empty elsewhere."""
    return (
        ""
        if join.observer or not state.registrar
        else made(key(state), state.history.run, join, incarnation)
    )


def is_proved(state: ShardState, join: pb.Join) -> bool:
    """Whether the Join shows a proof of its incarnation, as far as this shard knows the key."""
    keys = filter(None, (state.history.key, state.run.key))
    proofs = (made(each, state.history.run, join, join.incarnation) for each in keys)
    return any(hmac.compare_digest(each.encode(), join.proof.encode()) for each in proofs)


def made(secret: str, run: str, join: pb.Join, incarnation: int) -> str:
    """Hexadecimal; each part is told apart from the next by its length."""
    parts = [run, join.slot, str(incarnation), join.instance]
    text = "".join(f"{len(each)}:{each}" for each in parts)
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


# ------------------------------------------------------------ who gets one


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Welcome the instance; with an `entry`, only after that entry is durable."""

    incarnation: int
    entry: Taken | None = None


def admit(
    join: pb.Join, history: History, *, shard: int, live_instance: str, pending: bool, proved: bool
) -> Admitted | pb.End:
    """Rules 4 and 5.

    `live_instance` has the slot's session; `pending`: its entry is on its way; `proved`: the Join
    has a proof that the registrar gave the incarnation.
    """
    taken = history.taken.get(join.slot)
    highest = taken.incarnation if taken else 0
    if taken is not None and taken.instance == join.instance and join.incarnation in (0, highest):
        return Admitted(incarnation=highest)  # asking again returns the same
    if join.instance in history.superseded.get(join.slot, ()) or 0 < join.incarnation <= highest:
        return _superseded(join, highest)
    if pending:
        return refuse(pb.SLOT_HELD, f"another instance is joining as {join.slot}")
    if join.incarnation == 0 and shard != REGISTRAR_SHARD:
        return refuse(pb.NOT_READY, "the registrar gives incarnations", "join shard 0 first")
    if shard != REGISTRAR_SHARD and not proved:
        what = f"nothing shows that incarnation {join.incarnation} of {join.slot} was given"
        return refuse(pb.NOT_READY, what, "join shard 0 again, whose Welcome brings a proof")
    if shard == REGISTRAR_SHARD:
        others = (slot for slot, each in history.taken.items() if each.instance == join.instance)
        if other := next((slot for slot in others if slot != join.slot), ""):
            return of_another_run(f"{join.instance} has the slot {other}")
        if join.incarnation > 0 and not _may_have_given(join, history):
            return of_another_run(f"incarnation {join.incarnation} of {join.slot} was never given")
        if (end := _owner_objects(join, history, live_instance)) is not None:
            return end
    incarnation = join.incarnation or max(highest, history.named.get(join.slot, 0)) + 1
    entry = Taken(slot=join.slot, incarnation=incarnation, uid=join.uid, instance=join.instance)
    return Admitted(incarnation=incarnation, entry=entry)


def _may_have_given(join: pb.Join, history: History) -> bool:
    """Whether the registrar may have given it, with a part of its log lost (rules 4, 22)."""
    named = join.incarnation <= history.named.get(join.slot, 0)
    return join.run == history.run and (history.incomplete or named)


def of_another_run(reason: str) -> pb.End:
    """Its state must not meet this run's; a new process has none (rule 2)."""
    return refuse(pb.OTHER_RUN, reason)


def _owner_objects(join: pb.Join, history: History, live_instance: str) -> pb.End | None:
    """Whether the operator's word, or a live session, keeps this instance out (rule 4)."""
    owned, taken = history.owned.get(join.slot), history.taken.get(join.slot)
    if owned is not None:
        if owned.uid == join.uid:
            return None
        if taken is not None and taken.uid == join.uid:
            return _superseded(join, taken.incarnation)
        return refuse(
            pb.NOT_READY,
            f"the operator named another pod owner of {join.slot}",
            "wait until the operator names this pod",
        )
    if taken is not None and join.uid in history.superseded_uids.get(join.slot, ()):
        return _superseded(join, taken.incarnation)
    if live_instance and live_instance != join.instance:
        return refuse(
            pb.SLOT_HELD,
            f"{join.slot} has a live session of {live_instance}",
            "stop that process, or wait until its session ends",
        )
    return None


def _superseded(join: pb.Join, highest: int) -> pb.End:
    return refuse(pb.SUPERSEDED, f"{join.slot} has a newer process, with incarnation {highest}")


HELLO_SECONDS: Final = 2.0
MINT_SECONDS: Final = 30.0  # a registrar with an empty store asks first


# ------------------------------------------------------------ the term


def begin_term(state: ShardState, epoch: int, slot: str | None = None) -> Effect:
    """Stop counting an older term's work; `slot`: whose Join has named a later one."""
    if slot is not None:
        state.term.raised_by.add(slot)
    state.term.epoch, state.term.durable = epoch, False
    return Append(log.TermBegun(epoch=epoch, pod=state.pod, instance=state.instance))


def term_begun(state: ShardState, now: float) -> list[Effect]:
    state.term.durable = True
    known = state.history.heads or state.recovery is not None
    if state.registrar and _is_begun(state, state.number):
        known = True
    effects: list[Effect] = []
    if known:
        effects += [*seeding.mark(state), *recovery.found_empty(state, now)]
    if state.history.ended and state.is_whole:
        effects.append(WritePart())
    return effects


def higher_epoch(state: ShardState, join: pb.Join) -> int:
    """Return an epoch of another's term, not below this one, that a learner has seen; or 0.

    An equal epoch is another process's too, when this term has not welcomed the learner: the log
    has begun again after a loss.
    """
    if state.run.began_here and state.has_never_begun:
        return 0  # nothing of the run was before this process
    seen = join.epochs_seen[state.number] if len(join.epochs_seen) > state.number else 0
    if join.run != state.history.run or seen < max(1, state.history.epoch):
        return 0
    if join.slot in state.term.raised_by:
        return 0  # nobody meets two later terms: their process would have ended this one
    welcomed = state.sessions.welcomed_in.get(join.instance) == state.term.epoch
    return 0 if seen == state.history.epoch and welcomed else seen


# ------------------------------------------------------------ the run


def of_another_job(history: History, run_file: RunFile) -> str:
    """Why this run file cannot carry on what the log holds (rule 2); empty when it can."""
    if history.run_hash not in ("", run_file.hash):  # "": no run has started
        return f"its run hash is {history.run_hash}, that of the run file is {run_file.hash}"
    if not history.tensors:
        return ""
    try:
        digest = layout_of(history, run_file).digest
    except SpecError as error:
        digest = f"none ({error})"
    if digest == history.layout_digest:
        return ""
    return f"its layout digest is {history.layout_digest}, that under the run file is {digest}"


def first(state: ShardState) -> list[Effect]:
    if state.registrar and not state.history.run and state.run.fresh:
        return _begin(state, state.run.new_id, state.run_file.restore_from)
    return []


def _begin(state: ShardState, run: str, place: str, *, mine: bool = False) -> list[Effect]:
    """Begin a run here, with a seed or, when it is found, with a checkpoint (rule 43).

    That is one of a `place` or, if there is one, of a run of this job that is gone (`mine`).
    """
    state.run.began_here = True
    if not place and not mine:
        return [Append(_started(state, run))]
    if state.run.beginning == run:
        return []
    state.run.beginning = run
    return [FindCheckpoint(place, run, mine)]


def no_checkpoint(state: ShardState) -> list[Effect]:
    return [Append(_started(state, state.run.beginning))]


def checkpoint_found(state: ShardState, found: FoundCheckpoint) -> list[Effect]:
    if state.registrar and (nothing := ending.nothing_to_train(state, found)):
        return [EndProcess(ExitCode.RESTORE_REFUSED, f"RestoreRefused: {nothing}")]
    publishing.take_data_states(state, found.kept)
    entry = replace(
        _started(state, state.run.beginning),
        checkpoint=found.url,
        parent=found.run,
        tick=found.tick,
        cursors=found.cursors,
        data_states=found.data_states,
        trained=found.trained,
    )
    return [Append(entry)]


def time_passed(state: ShardState, now: float) -> list[Effect]:
    effects: list[Effect] = []
    waited = now - state.run.hello_sent_at
    if not state.registrar and waited >= HELLO_SECONDS and not state.ending.complete:
        state.run.hello_sent_at = now
        effects.append(Ask(hello(state)))
    return [*effects, *mint(state, now)]


def mint(state: ShardState, now: float) -> list[Effect]:
    """Rule 2: once every other shard has said Hello too, the run that they hold, or a new one."""
    run = state.run
    asked = len(run.shards_seen) == state.run_file.shards - 1
    if not state.registrar or state.history.run or run.fresh or not asked:
        return []
    everybody = bool(state.expected.slots) and state.expected.slots <= run.heard
    if now - run.started_at < MINT_SECONDS and not everybody:
        return []
    run.fresh = True  # once
    started = _held(state)
    if not started:
        mine = state.run_file.checkpoint is not None
        return _begin(state, run.new_id, state.run_file.restore_from, mine=mine)
    began = [each.checkpoint for each in run.stored.values() if each.run == started]
    place = began[0] if began else state.run_file.restore_from
    entry = replace(_started(state, started), carried_on=True, checkpoint=place)
    return [*_carry_on(state, started), Append(entry)]


def _held(state: ShardState) -> str:
    """Return the run that others hold (rule 2); empty without one."""
    if state.run.stored:
        return min(each.run for each in state.run.stored.values())
    listed, named = state.expected.every, state.run.named

    def rank(run: str) -> tuple[int, str]:
        return -len(named[run].keys() & listed if listed else named[run]), run

    return min(named, key=rank, default="")


def _carry_on(state: ShardState, run: str) -> list[Effect]:
    """Entries for what the lost store knew, before any learner is admitted to the run again."""
    stored = [each for each in state.run.stored.values() if each.run == run]
    said = [_taken(each) for hello in stored for each in hello.taken]
    slots = {each.instance: each.slot for each in said}
    for each in state.run.named.get(run, {}).values():  # an instance has one slot, whatever it says
        if slots.setdefault(each.instance, each.slot) == each.slot:
            said.append(each)
    highest: dict[str, log.Taken] = {}
    for entry in said:
        known = highest.get(entry.slot) or state.history.taken.get(entry.slot)
        if entry.incarnation > (known.incarnation if known else 0):
            highest[entry.slot] = entry
    effects: list[Effect] = [Append(entry) for _, entry in sorted(highest.items())]
    trained = any(each.tick and not each.empty for each in stored)
    if trained or run in state.run.trained:  # else a shard that lost its store would take a seed
        effects += [Append(log.Begun(shard=n)) for n in range(state.run_file.shards)]
    return effects


def note_join(state: ShardState, join: pb.Join, now: float) -> None:
    """Note the run that a learner's Join names, whether or not it will be admitted."""
    if join.protocol != PROTOCOL or join.run_hash != state.run_file.hash:
        return  # it is of another job, or may mean another thing
    if join.observer or validation.of_slot(state, join.slot):
        return  # it holds nothing that a run could go on with; a name that is no slot is not kept
    state.run.heard.add(join.slot)
    state.run.heard_at = now if state.run.heard_at is None else state.run.heard_at
    if state.history.run or not join.run:
        return
    if any(each.version.number > 0 for each in join.held):
        state.run.trained.add(join.run)
    slots = state.run.named.setdefault(join.run, {})
    if join.slot not in slots or join.incarnation > slots[join.slot].incarnation:
        slots[join.slot] = _taken(join)


def note_absence(state: ShardState) -> None:
    """When the last learner has gone, as in a suspension, the next one is the first one again."""
    here = any(each.slot for each in state.sessions.open.values())
    if not here and all(join.observer for join, _ in state.sessions.early.values()):
        state.run.heard_at = None


def _note_hello(state: ShardState, request: pb.HelloRequest) -> None:
    """Another shard's Hello names the run that it holds, or those that its learners name."""
    state.run.shards_seen.add(request.shard)
    state.run.ticks[request.shard] = request.tick
    if state.history.run:
        return
    if request.run:
        state.run.stored[request.shard] = request
    for each in request.named:
        none = _taken(pb.SlotTaken(slot=each.slot))
        state.run.named.setdefault(each.run, {}).setdefault(each.slot, none)


def _taken(said: pb.Join | pb.SlotTaken) -> log.Taken:
    """Return the record of an earlier registrar's incarnation: the next one is above it."""
    return log.Taken(
        slot=said.slot, incarnation=said.incarnation, uid=said.uid, instance=said.instance
    )


def _started(state: ShardState, run: str) -> log.RunStarted:
    return log.RunStarted(run=run, run_hash=state.run_file.hash, key=state.run.key)


def started(state: ShardState, entry: log.RunStarted) -> list[Effect]:
    line = {"event": "run", "run": entry.run}
    if not entry.checkpoint:
        return [TapeLine(line)]
    calls.jump(state, entry.tick)
    about = {"checkpoint": entry.checkpoint, "parent": entry.parent, "tick": entry.tick}
    return [TapeLine(line | about)]


def hello(state: ShardState) -> pb.HelloRequest:
    return pb.HelloRequest(
        shard=state.number,
        run_hash=state.run_file.hash,
        run=state.history.run,
        checkpoint=state.history.checkpoint,
        named=[
            pb.RunNamed(run=run, slot=slot)
            for run, slots in sorted(state.run.named.items())
            for slot in sorted(slots)
            if not state.history.run
        ],
        empty=not state.history.heads,
        tick=state.clock.tick,
        length=state.ending.length.message(),
        taken=[
            pb.SlotTaken(
                slot=each.slot, incarnation=each.incarnation, uid=each.uid, instance=each.instance
            )
            for _, each in sorted(state.history.taken.items())
        ],
    )


def hello_answered(state: ShardState, reply: pb.HelloReply, now: float) -> list[Effect]:
    ending.registrar_says(state, complete=reply.complete)
    state.run.ticks[REGISTRAR_SHARD] = reply.tick
    effects = ending.heard(state, schedule.heard(reply.length))
    if not reply.run:
        return effects
    if other := _other_run(state, reply.run):
        return other
    state.run.registrar_incomplete, state.run.key = reply.incomplete, reply.key
    if seeding.registrar_says(state, begun=reply.begun):
        effects += recovery.found_empty(state, now)
    recovery.registrar_says(state, frozenset(reply.alive))
    if state.history.run:
        return [*effects, *seeding.ask(state), *ending.report_again(state, reply)]
    return [*_begin(state, reply.run, reply.checkpoint), *effects]


def mark_answered(state: ShardState, reply: pb.MarkBegunReply) -> list[Effect]:
    if other := _other_run(state, reply.run):
        return other
    seeding.marked(state)
    return []


def _other_run(state: ShardState, registrars: str) -> list[Effect]:
    if registrars in ("", state.history.run) or not state.history.run:
        return []
    reason = f"this store holds run {state.history.run}, the registrar has {registrars}"
    return [EndProcess(ExitCode.OTHER_JOB, reason)]


# ------------------------------------------------------------ the registrar's calls


def requested(state: ShardState, token: int, request: Any) -> list[Effect]:
    match request:
        case pb.HelloRequest():
            return _hello(state, token, request)
        case pb.MarkBegunRequest():
            return _mark_begun(state, token, request)
        case pb.ReportFinalRequest():
            known = request.shard in state.history.finals
            part = log.ShardFinal(
                shard=request.shard, file=request.file, digest=request.file_digest
            )
            return [*([] if known else [Append(part)]), SendReply(token, pb.ReportFinalReply())]
        case pb.SetOwnerRequest():
            return _set_owner(state, token, request)
    raise AssertionError(f"{request} is not a call of the registrar")


def _hello(state: ShardState, token: int, request: pb.HelloRequest) -> list[Effect]:
    """Return the run, the caller's mark, and the slots that have a session here."""
    _note_hello(state, request)
    slots, known = state.sessions.slots, request.shard in state.history.begun
    trained = not request.empty and request.run == state.history.run
    effects = ending.heard(state, schedule.heard(request.length))
    if state.history.incomplete and trained and not known:
        effects.append(Append(log.Begun(shard=request.shard)))  # its mark is among lost entries
    reply = pb.HelloReply(
        run=state.history.run,
        checkpoint=state.history.checkpoint,
        begun=_is_begun(state, request.shard),
        alive=[name for name, slot in slots.items() if slot.session is not None],
        complete=state.ending.complete,
        final=request.shard in state.history.finals,
        tick=max(state.clock.tick, *state.run.ticks.values()),
        length=state.ending.length.message(),
        incomplete=state.history.incomplete,
        key=key(state),
    )
    return [*effects, SendReply(token, reply)]


def _is_begun(state: ShardState, shard: int) -> bool:
    """Whether a shard is marked, or its mark may be among lost entries: no seed is taken again."""
    return shard in state.history.begun or state.history.may_have_begun


def _mark_begun(state: ShardState, token: int, request: pb.MarkBegunRequest) -> list[Effect]:
    """Rule 1. A registrar without its log has no run to compare."""
    run = state.history.run
    of_another = run not in ("", request.run)
    reply = SendReply(token, pb.MarkBegunReply(run=run))
    if of_another or request.shard in state.history.begun:
        return [reply]
    return [Append(log.Begun(shard=request.shard)), reply]


def _set_owner(state: ShardState, token: int, request: pb.SetOwnerRequest) -> list[Effect]:
    """Rule 4: an owner counts only if its sender knew the generation before it."""
    owned = state.history.owned.get(request.slot)
    generation = max(owned.generation if owned else 0, state.run.generations.get(request.slot, 0))
    if request.generation != generation:
        return [SendReply(token, pb.SetOwnerReply(generation=generation))]
    entry = log.Owned(slot=request.slot, uid=request.uid, generation=generation + 1)
    state.run.generations[request.slot] = generation + 1  # before it is durable another may come
    effects: list[Effect] = [Append(entry)]
    slot = state.sessions.slots.get(request.slot)
    session = None if slot is None else slot.session
    if session is not None and state.sessions.open[session].join.uid != request.uid:
        effects.append(end_session(session, pb.SUPERSEDED, "the operator named another pod"))
    return [*effects, SendReply(token, pb.SetOwnerReply(generation=generation + 1))]
