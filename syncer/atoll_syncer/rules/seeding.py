"""How the values of a shard begin: the model, version 0, and the mark "has begun" (rule 1).

    no layout --Model--> layout --SendSeed--> seeds arrive --all whole--> stored --> version 0
                           ^                       |                           entry
                           +---- session closed ---+

The first model that a learner sends makes the layout, and every other one must equal it. A shard
without version 0 asks one admitted learner for it, all its slices, and the next one if that
learner dies half-way. One log entry makes all slices count at once. The job's seed fixes the
values, so it does not matter which learner sends them.

Before its first commit above version 0 the shard has itself marked begun at the registrar,
durably. From then on an empty store means that committed data was lost, and the shard never
takes a seed again (rule 22): a random seed would silently throw the training away.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.layout import from_model
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Ask,
    Effect,
    Send,
    SetModel,
    StoreSeed,
    Tape,
    end_session,
)
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import State
from atoll_syncer.rules import publishing


def model_arrived(state: State, sender: Session, model: pb.Model) -> list[Effect]:
    """The first model makes the layout; every other one must equal it."""
    if state.layout is None:
        try:
            state.seed.layout = from_model(model, state.sync.fragments, state.run_file.shards)
        except SpecError as error:
            return [end_session(sender.number, pb.OTHER_LAYOUT, str(error))]
        return [SetModel(model), *ask(state)]
    if model.layout_digest != state.layout.digest:
        reason = "another model than this run's"
        return [end_session(sender.number, pb.OTHER_LAYOUT, reason)]
    return []


# ------------------------------------------------------------ version 0


def ask(state: State) -> list[Effect]:
    """Ask one admitted learner for version 0, if this shard may take one now."""
    seed = state.seed
    unmarked = seed.registrar_says_unmarked or (state.registrar and not seed.marked)
    unwanted = state.history.heads or seed.session is not None or state.recovery is not None
    if unwanted or not unmarked or state.layout is None:
        return []
    for number, session in sorted(state.sessions.open.items()):
        if session.welcomed and session.slot:
            seed.session, seed.arrived = number, set()
            return [Send(number, pb.ToLearner(send_seed=pb.SendSeed()))]
    return []


def session_closed(state: State, session: int) -> list[Effect]:
    """Ask the next learner, unless the seed is whole: then it is being written already."""
    if state.seed.session != session or _is_whole(state):
        return []
    state.seed.session = None
    return ask(state)


def cancel(state: State) -> None:
    """A learner holds a version after all (rule 22); a seed that is being written stays."""
    if not _is_whole(state):
        state.seed.session = None


def objection(state: State, session: int) -> str:
    """Why a seed may not come; empty when it may."""
    return "" if state.seed.session == session else "this session was not asked for a seed"


def arrived(state: State, session: int, seed: pb.Seed) -> list[Effect]:
    """One slice's seed is whole."""
    state.seed.arrived.add(seed.slice)
    if state.seed.session == session and _is_whole(state):
        return [StoreSeed(session)]
    return []


def stored(state: State, digests: tuple[str, ...], objects: tuple[str, ...]) -> list[Effect]:
    """All slices are written; their one entry makes them count."""
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
    )
    return [Append(entry)]


def seeded(state: State) -> list[Effect]:
    """Version 0 is durable: every session gets it."""
    state.seed.session = None
    effects: list[Effect] = [Tape({"event": "seeded", "epoch": state.history.epoch})]
    for number in state.sessions.welcomed:
        effects += publishing.all_to(state, number)
    return [*effects, *mark(state)]


def _is_whole(state: State) -> bool:
    return len(state.seed.arrived) == state.sync.fragments


# ------------------------------------------------------------ the mark


def mark(state: State) -> list[Effect]:
    """Have this shard marked begun at the registrar."""
    if not state.registrar:
        return [Ask(pb.MarkBegunRequest(shard=state.number))]
    if state.number in state.history.begun:
        marked(state)
        return []
    return [Append(log.Begun(shard=state.number))]


def marked(state: State) -> None:
    """The mark is durable at the registrar."""
    state.seed.marked = True


def registrar_says(state: State, *, begun: bool) -> bool:
    """A Hello was answered; says whether the mark is news to this shard."""
    news = begun and not state.seed.marked
    state.seed.registrar_says_unmarked = not begun
    state.seed.marked = state.seed.marked or begun
    return news


def tensors(state: State) -> tuple[dict[str, object], ...]:
    """The model's tensors as the log names them."""
    assert state.layout is not None, "no model yet"
    return tuple(
        {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "merge": t.merge}
        for t in state.layout.tensors
    )
