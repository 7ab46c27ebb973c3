"""Version 0 of all slices from one learner, and the mark that it has begun (rule 1)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Ask, Effect, Send, StoreSeed, Tape
from atoll_syncer.model.state import State
from atoll_syncer.rules import publishing


def ask(state: State) -> list[Effect]:
    """From any admitted learner; if it dies half-way, from the next."""
    unmarked = state.told_unmarked or (state.registrar and not state.marked)
    unwanted = state.history.heads or state.seeding is not None or state.recovery is not None
    if unwanted or not unmarked or state.layout is None:
        return []
    for number, session in sorted(state.sessions.items()):
        if session.welcomed and session.slot:
            state.seeding, state.seeds = number, set()
            return [Send(number, pb.ToLearner(send_seed=pb.SendSeed()))]
    return []


def closed(state: State, session: int) -> list[Effect]:
    """A session is gone; once its seed is whole it is being written already."""
    if state.seeding != session or len(state.seeds) == state.sync.fragments:
        return []
    state.seeding = None
    return ask(state)


def cancel(state: State) -> None:
    """A version was held after all (rule 22); a seed that is being written stays until it is."""
    if len(state.seeds) < state.sync.fragments:
        state.seeding = None


def objection(state: State, session: int) -> str:
    """Why a seed may not come; empty when it may."""
    return "" if state.seeding == session else "nobody asked for a seed"


def arrived(state: State, session: int, seed: pb.Seed) -> list[Effect]:
    """One slice's seed is whole."""
    state.seeds.add(seed.slice)
    if state.seeding == session and len(state.seeds) == state.sync.fragments:
        return [StoreSeed(session)]
    return []


def stored(state: State, digests: tuple[str, ...], objects: tuple[str, ...]) -> list[Effect]:
    """All slices are written; their one entry makes them count."""
    if state.recovery is not None:
        state.seeding = None
        return []
    assert state.layout is not None, "a seed needs the layout"
    entry = log.Seeded(
        tensors=tensors(state),
        layout_digest=state.layout.digest,
        epoch=state.epoch,
        digests=digests,
        objects=objects,
    )
    return [Append(entry)]


def seeded(state: State) -> list[Effect]:
    """Version 0 is durable: everybody else starts from a Publish of it."""
    state.seeding = None
    state.starts = dict(state.history.due)
    if state.recovery is not None:
        state.recovery.gone.clear()
    effects: list[Effect] = [Tape({"event": "seeded", "epoch": state.history.epoch})]
    for number in state.welcomed:
        effects += publishing.all_to(state, number)
    return [*effects, *mark(state)]


def mark(state: State) -> list[Effect]:
    """Marked begun at the registrar before the first commit above version 0."""
    if not state.registrar:
        return [Ask(pb.MarkBegunRequest(shard=state.number))]
    if state.number in state.history.begun:
        state.marked = True
        return []
    return [Append(log.Begun(shard=state.number))]


def tensors(state: State) -> tuple[dict[str, object], ...]:
    """The model's tensors as a log names them."""
    assert state.layout is not None, "no model yet"
    return tuple(
        {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "merge": t.merge}
        for t in state.layout.tensors
    )
