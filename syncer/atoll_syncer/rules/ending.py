"""The end: one last round a slice, Final, and the export (rule 27)."""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Ask, Effect, Send, Tape, WriteIndex, WritePart
from atoll_syncer.model.state import State
from atoll_syncer.rules import calls, merging

LAST_ROUND_SECONDS: Final = 10.0
ENDED: Final = float("inf")  # in place of the time at which the end began


def last_rounds(state: State, now: float) -> list[Effect]:
    """At t >= T, also when it restarts there: of every slice that had none and has none open."""
    if not state.over or state.ending_at == ENDED:
        return []
    state.ending_at = now if state.ending_at is None else state.ending_at
    effects: list[Effect] = []
    for fragment in sorted(state.history.heads.keys() - state.done):
        each = state.rounds.get(fragment)
        if each is None or (each.closed_at is None and not each.last):
            effects += last_round(state, fragment, now)
    return effects


def last_round(state: State, fragment: int, now: float) -> list[Effect]:
    """K and rule 9's distance do not apply; a round that is open becomes the last."""
    head, steps = state.history.heads[fragment], state.run_file.steps
    reached = steps is not None and state.history.due.get(fragment, 0) >= steps
    if head.last or (state.sync.lockstep and reached):
        state.done.add(fragment)
        return []
    effects: list[Effect] = []
    each = state.rounds.get(fragment)
    if each is None:
        effects += merging.begin(state, fragment, state.clock.tick, now, last=True)
        each = state.rounds[fragment]
    each.last = True
    bound = state.timings.transfer.or_else(0.0)
    each.deadline = now + LAST_ROUND_SECONDS + bound * state.sync.fragments
    if not state.sync.lockstep:
        effects += calls.call(state, each, now)
    return [*effects, *merging.look(state, fragment, now)]


def end_when_done(state: State) -> list[Effect]:
    """Every slice has had its last round."""
    done = len(state.done) >= state.sync.fragments
    if state.ending_at in (None, ENDED) or not done or state.history.ended:
        return []
    state.ending_at = ENDED
    return [Append(log.Ended(tick=state.clock.tick))]


def appended(state: State, entry: log.Ended | log.ShardFinal | log.Closed) -> list[Effect]:
    """One more thing that has come to an end is durable."""
    match entry:
        case log.Ended():
            return _ended(state)
        case log.ShardFinal():
            return index_when_whole(state)
    return _closed(state, entry)


def _ended(state: State) -> list[Effect]:
    return [Tape({"event": "final", "tick": state.clock.tick}), *say_final(state)]


def say_final(state: State) -> list[Effect]:
    """To everybody; and this shard's part of the export is written, or written again."""
    told: list[Effect] = [Send(number, final(state)) for number in state.welcomed]
    return [*told, WritePart()]


def final(state: State) -> pb.ToLearner:
    """Final, with the versions that a learner is to hold."""
    return pb.ToLearner(final=pb.Final(versions=state.heads()))


def part_written(state: State, file: str, digest: str) -> list[Effect]:
    """This shard's part of the export is there: the registrar is to know it."""
    if state.registrar:
        if state.number in state.history.finals:
            return index_when_whole(state)
        return [Append(log.ShardFinal(shard=state.number, file=file, digest=digest))]
    request = pb.ReportFinalRequest(
        shard=state.number,
        file=file,
        file_digest=digest,
    )
    return [Ask(request)]


def told(state: State, reply: pb.HelloReply) -> list[Effect]:
    """A registrar that lost its store has lost this shard's part of the export with it."""
    if not state.part_told or reply.final or reply.complete:
        return []
    state.part_told = False
    return [WritePart()]


def index_when_whole(state: State) -> list[Effect]:
    """The registrar writes the index when it knows every shard's part."""
    finals = state.history.finals
    if state.index_asked or state.complete or len(finals) < state.run_file.shards:
        return []
    state.index_asked = True
    parts = tuple((n, finals[n].file, finals[n].digest) for n in sorted(finals))
    return [WriteIndex(parts)]


def exported() -> list[Effect]:
    """The index is written: the job is Complete."""
    return [Append(log.Closed(result="Complete", reason="all slices are final"))]


def _closed(state: State, entry: log.Closed) -> list[Effect]:
    state.complete = entry.result == "Complete"
    return [Tape({"event": "closed", "result": entry.result})]
