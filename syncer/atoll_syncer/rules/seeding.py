"""How the values of a shard begin: the model, version 0, and the mark "has begun" (rule 1).

    no seed --Model, SendSeed--> seeds arrive --all whole--> stored --> version 0, and
       ^                             |                        entry      the layout
       +------- session closed ------+

One log entry makes all slices count at once, and fixes the layout: until then the model of a
learner that left binds nobody. The job's seed fixes the values, so it does not matter which learner
sends them.

Learners begin together: else a learner that is quick to start could do all of a short job. Without
the slices of all shards no learner makes a step, so it is enough that the registrar waits. A slot
whose newest learner was refused for good is not waited for: each start of it ends the same way
until its user has changed something.
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job import schedule
from atoll_protos.job.layout import Layout, from_model
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Ask,
    Effect,
    EndSession,
    RestoreSeed,
    Send,
    SetModel,
    StoreSeed,
    TapeLine,
    end_session,
    refuse,
)
from atoll_syncer.model.history import History
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules import publishing


def model_arrived(state: ShardState, sender: Session, model: pb.Model) -> list[Effect]:
    """Keep a learner's model until version 0 is durable, in case it is asked for the seed."""
    if state.history.tensors:
        return []  # its Join was compared with the layout
    try:
        _layout_of(state, model)
    except SpecError as error:
        return [end_session(sender.number, pb.OTHER_LAYOUT, str(error))]
    if model.layout_digest != sender.join.layout_digest:
        reason = "its model is not the one that its Join named"
        return [end_session(sender.number, pb.BAD_MESSAGE, reason)]
    state.seed.models[model.layout_digest] = model
    return ask(state)


def needs_model(state: ShardState, joined: Session) -> bool:
    return not state.history.tensors and joined.join.layout_digest not in state.seed.models


def lay_out(state: ShardState, session: Session) -> list[Effect] | None:
    """Take the layout of this session's model; None while that has not come."""
    if state.history.tensors:
        return []
    digest = session.join.layout_digest
    if digest not in state.seed.models:
        return None
    if state.layout is not None and state.layout.digest == digest:
        return []
    model = state.seed.models[digest]
    state.set_layout(_layout_of(state, model))
    return [SetModel(model)]


def does_not_fit(
    state: ShardState, digest: str, reason: str, code: pb.Code = pb.OTHER_LAYOUT
) -> list[Effect]:
    """Refuse who has this model; the end of the session that was asked asks the next one."""
    state.set_layout(None)
    state.seed.arrived = set()
    state.seed.refused = reason
    state.seed.models.pop(digest, None)
    sessions = sorted(state.sessions.open.items())
    with_it = [number for number, each in sessions if each.join.layout_digest == digest]
    ends: list[Effect] = [end_session(number, code, reason) for number in with_it]
    if state.seed.session in state.sessions.open:
        return ends
    state.seed.session = None  # it has left meanwhile
    return [*ends, *ask(state)]


def end_others(state: ShardState) -> list[Effect]:
    digest, sessions = state.history.layout_digest, sorted(state.sessions.open.items())
    state.seed.models = {}
    ends: list[Effect] = []
    for number, each in sessions:
        if each.join.layout_digest != digest:
            ends.append(EndSession(number, of_another_model(state.history)))
        elif has_other_frozen(state.history.frozen_digest, each.join):
            ends.append(end_session(number, pb.OTHER_FROZEN, OTHER_FROZEN))
    return ends


def of_another_model(history: History) -> pb.End:
    """Return the refusal of another model than the run's, with that model to compare."""
    brought = f", which {history.model_from} brought" if history.model_from else ""
    end = refuse(
        pb.OTHER_LAYOUT,
        f"another model than this run's{brought}",
        "give every learner the same model, or start another job",
    )
    tensors = [pb.Tensor(**each) for each in history.tensors]
    run = pb.Model(layout_digest=history.layout_digest, tensors=tensors)
    end.MergeFrom(pb.End(model=run))
    return end


def has_other_frozen(frozen_digest: str, join: pb.Join) -> bool:
    """Whether a learner's frozen tensors differ from those of the run, as far as both are known."""
    known = frozen_digest and join.frozen_digest and not join.observer
    return bool(known) and frozen_digest != join.frozen_digest


OTHER_FROZEN: Final = "the frozen tensors of its model have other values than those of this run"


def _layout_of(state: ShardState, model: pb.Model) -> Layout:
    """Raise SpecError."""
    return from_model(model, state.run_file.layout)


# ------------------------------------------------------------ version 0


def ask(state: ShardState) -> list[Effect]:
    seed = state.seed
    unmarked = seed.registrar_says_unmarked or (state.registrar and not seed.marked)
    unwanted = state.history.heads or seed.session is not None or state.recovery is not None
    if unwanted or not unmarked:
        return []
    for number, session in sorted(state.sessions.open.items()):
        if not session.welcomed or not session.slot:
            continue
        new_layout = lay_out(state, session)
        if new_layout is not None:
            seed.session, seed.arrived, seed.asked_at = number, set(), None
            seed.slot, seed.frozen_digest = session.slot, session.join.frozen_digest
            if state.history.checkpoint:  # its model is all that is needed of it (rule 43)
                seed.arrived = set(state.fragments)
                return [*new_layout, RestoreSeed()]
            return [*new_layout, Send(number, pb.ToLearner(send_seed=pb.SendSeed()))]
    return []


def session_closed(state: ShardState, session: int) -> list[Effect]:
    """Ask the next learner, unless the seed is whole: then it is being written already."""
    known = {each.join.layout_digest for each in state.sessions.open.values()}
    for digest in state.seed.models.keys() - known:
        del state.seed.models[digest]
    if state.seed.session != session or is_whole(state):
        return []
    state.seed.session = None
    return ask(state)


def cancel(state: ShardState) -> None:
    """Cancel the seed: a learner holds a version (rule 22); one being written stays."""
    if not is_whole(state):
        state.seed.session = None


def objection(state: ShardState, session: int) -> str:
    """Why a seed may not come; empty when it may."""
    return "" if state.seed.session == session else "this session was not asked for a seed"


def arrived(state: ShardState, session: int, seed: pb.Seed) -> list[Effect]:
    state.seed.arrived.add(seed.slice)
    if state.seed.session == session and is_whole(state):
        return [StoreSeed(session)]
    return []


def stored(
    state: ShardState,
    digests: tuple[str, ...],
    objects: tuple[str, ...],
    merges: tuple[int, ...] = (),
) -> list[Effect]:
    if state.recovery is not None:
        state.seed.session = None
        return []
    assert state.layout is not None, "a seed needs the layout"
    entry = log.Seeded(
        tensors=tensors(state),
        layout_digest=state.layout.digest,
        epoch=state.term.epoch,
        digests=digests,
        objects=objects,
        frozen_digest=state.seed.frozen_digest if state.registrar else "",
        slot=state.seed.slot,
        due=tuple(_newest_due(state, each) for each in state.fragments if merges),
        merges=merges,
    )
    return [Append(entry)]


def _newest_due(state: ShardState, fragment: int) -> int:
    return max(0, schedule.newest_due(state.sync, fragment, state.clock.tick))


def seeded(state: ShardState) -> list[Effect]:
    state.seed.session = None
    effects: list[Effect] = [TapeLine({"event": "seeded", "epoch": state.history.epoch})]
    ends = end_others(state)
    for number in state.sessions.welcomed:
        waits = bool(state.sessions.open[number].slot) and state.seed.kept_back
        if not any(isinstance(end, EndSession) and end.session == number for end in ends):
            effects += [] if waits else publishing.all_to(state, number)
    effects += ends
    return [*effects, *mark(state)]


def is_whole(state: ShardState) -> bool:
    return len(state.seed.arrived) == len(state.fragments)


def asked_at(state: ShardState, now: float) -> float:
    """When this shard first looked whether the seed that was asked for comes."""
    if state.seed.asked_at is None:
        state.seed.asked_at = now
    return state.seed.asked_at


def byte_count(state: ShardState) -> int:
    """Of the seed of this shard; 0 while no layout is known."""
    known = [] if state.layout is None else state.layout.shard_slices(state.number)
    return sum(each.form.byte_count(pb.F32) for each in known)


# ------------------------------------------------------------ learners begin together


def missing(state: ShardState) -> list[str]:
    """Return the slots that version 0 is kept back for; empty when it is not."""
    if not state.seed.kept_back:
        return []
    return sorted(_not_there(state) - state.sessions.refused)


def _not_there(state: ShardState) -> frozenset[str]:
    """Slots of the job without a welcomed session."""
    joined = {each.slot for each in state.sessions.open.values() if each.welcomed}
    return state.expected.slots - joined


def seconds_left(state: ShardState, now: float) -> float:
    """How much longer version 0 is kept back at most."""
    heard_at = now if state.run.heard_at is None else state.run.heard_at
    return max(0.0, heard_at + state.expected.start_seconds - now)


def release(state: ShardState, now: float) -> list[Effect]:
    if not state.seed.kept_back or not state.history.heads:
        return []
    slots = state.sessions.slots.values()
    if (
        missing(state)
        and seconds_left(state, now) > 0
        and not any(each.report.training for each in slots)
    ):
        return []
    state.seed.kept_back = False
    effects: list[Effect] = [TapeLine({"event": "start", "missing": sorted(_not_there(state))})]
    for number in state.sessions.welcomed:
        if state.sessions.open[number].slot:
            effects += publishing.lacking(state, state.sessions.open[number])
    return effects


# ------------------------------------------------------------ the mark


def mark(state: ShardState) -> list[Effect]:
    if not state.registrar:
        return [Ask(pb.MarkBegunRequest(shard=state.number, run=state.history.run))]
    if state.number in state.history.begun:
        marked(state)
        return []
    return [Append(log.Begun(shard=state.number))]


def marked(state: ShardState) -> None:
    state.seed.marked = True


def registrar_says(state: ShardState, *, begun: bool) -> bool:
    """Take the answer to a Hello; return whether the mark is news to this shard."""
    news = begun and not state.seed.marked
    state.seed.registrar_says_unmarked = not begun
    state.seed.marked = state.seed.marked or begun
    return news


def tensors(state: ShardState) -> tuple[dict[str, object], ...]:
    assert state.layout is not None, "no model yet"
    return tuple(
        {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "merge": t.merge}
        for t in state.layout.tensors
    )
