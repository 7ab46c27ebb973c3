"""The end of the job: one last round for each slice, Final, and the export (rule 27).

    t < T --t >= T--> last rounds --all slices finished--> Ended is logged --> Final to all
                                                                 |
                                       this shard's part of the export is written, and the
                                       registrar logs it (ShardFinal)
                                                                 |
   registrar only: all parts --> index written --> Closed is logged: Complete

A last round closes with the offers that are complete when no more are awaited, or at its deadline.
In lock-step, beyond the end or with a length in tokens, learners hand a slice over when it is due
next, and the deadline gives them the time for these steps.

A longer length, before Ended is on its way to the log, makes the last rounds rounds like others;
afterwards every length comes too late.
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_protos.job.schedule import Length
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Ask, Effect, Send, TapeLine, WriteIndex, WritePart
from atoll_syncer.model.log import FoundCheckpoint
from atoll_syncer.model.state import ShardState, Standing
from atoll_syncer.rules import calls, rounds

LAST_ROUND_SECONDS: Final = 10.0
SLOWER_MAX: Final = 2.0  # than its mean step: what a learner may need for steps that are awaited
LOGGED: Final = float("inf")  # in place of the time at which the end began


# ------------------------------------------------------------ another length


def heard(state: ShardState, told: Length) -> list[Effect]:
    ending = state.ending
    known, length = ending.length, ending.length.also(told)
    if length == known or state.history.ended or ending.began_at == LOGGED:
        return []
    ending.length = length
    if ending.began_at is not None and not state.over:
        ending.began_at, ending.put_off = None, True
        calls.put_off_last(state)
    message = pb.ToLearner(tick=pb.Tick(tick=state.clock.tick, length=length.message()))
    effects: list[Effect] = [Send(number, message) for number in state.sessions.welcomed]
    if (length.steps, length.tokens) == (known.steps, known.tokens):
        return effects
    line = {"event": "length", "steps": length.steps, "tokens": length.tokens or None}
    return [*effects, TapeLine(line)]


def nothing_to_train(state: ShardState, found: FoundCheckpoint) -> str:
    """Why a new run would end where it begins; empty: it would not."""
    length = state.ending.length
    trained = sum(each.total for each in found.trained.values())
    for field, given, had in (
        ("spec.steps", length.steps, found.tick),
        ("spec.tokens", length.tokens, trained),
    ):
        if given and given <= had:
            at = f"{given} is not above the {had} of the checkpoint {found.url}"
            return f"{field}: {at}, so nothing would be trained; give a larger one"
    return ""


# ------------------------------------------------------------ last rounds


def last_rounds(state: ShardState, standing: Standing, now: float) -> list[Effect]:
    """At t >= T: begin the last round of every slice that had none and has none open."""
    ending = state.ending
    if not state.over or ending.began_at == LOGGED:
        return []
    ending.began_at = now if ending.began_at is None else ending.began_at
    effects: list[Effect] = []
    for fragment in sorted(state.history.heads.keys() - state.rounds.finished):
        each = state.rounds.open.get(fragment)
        if each is None or (each.closed_at is None and not each.last):
            effects += _last_round(state, fragment, standing, now)
    return effects


def _last_round(state: ShardState, fragment: int, standing: Standing, now: float) -> list[Effect]:
    """Make a round open on a final head the last one: else it would merge after the end."""
    head, end = state.history.heads[fragment], state.ending.length.steps
    reached = end is not None and state.history.due.get(fragment, 0) >= end
    again = state.ending.put_off and not (state.sync.lockstep and reached)
    if head.last and not again and fragment not in state.rounds.open:
        rounds.finish(state, fragment)
        return []
    due = _last_due(state, fragment)
    slots = state.sessions.slots
    slowest = max((slots[name].report.step_seconds for name in standing.training), default=0.0)
    deadline = now + LAST_ROUND_SECONDS + state.transfer_seconds * len(state.fragments)
    deadline += SLOWER_MAX * slowest * (due - state.clock.tick)
    effects = calls.begin_last(state, fragment, due, deadline, now)
    return [*effects, *rounds.look(state, fragment, standing, now)]


def _last_due(state: ShardState, fragment: int) -> int:
    """In lock-step, where all hand over next: at T, or beyond it, after an edit or with tokens."""
    tick = state.clock.tick
    if not state.sync.lockstep or tick == state.ending.length.steps:
        return tick
    return schedule.next_due(state.sync, fragment, tick)


def end_when_finished(state: ShardState) -> list[Effect]:
    finished = len(state.rounds.finished) >= len(state.fragments)
    if state.ending.began_at in (None, LOGGED) or not finished or state.history.ended:
        return []
    if not state.is_whole:
        return []
    state.ending.began_at = LOGGED
    return [Append(log.Ended(tick=state.clock.tick))]


# ------------------------------------------------------------ Final and the export


def appended(state: ShardState, entry: log.Ended | log.ShardFinal | log.Closed) -> list[Effect]:
    """One more step towards the end is durable."""
    match entry:
        case log.Ended():
            return [
                TapeLine(
                    {"event": "final", "tick": state.clock.tick, "tokens": state.sessions.tokens}
                ),
                *say_final(state),
            ]
        case log.ShardFinal():
            return index_when_whole(state)
    state.ending.complete = entry.result == "Complete"
    return [TapeLine({"event": "closed", "result": entry.result})]


def say_final(state: ShardState) -> list[Effect]:
    """At the end, once all values are here: Final to all, and this shard's part of the export."""
    if not (state.history.ended and state.is_whole):
        return []
    finals: list[Effect] = [Send(number, final(state)) for number in state.sessions.welcomed]
    return [*finals, WritePart()]


def final(state: ShardState) -> pb.ToLearner:
    return pb.ToLearner(final=pb.Final(versions=state.heads()))


def part_written(state: ShardState, file: str, digest: str) -> list[Effect]:
    if state.registrar:
        if state.number in state.history.finals:
            return index_when_whole(state)
        return [Append(log.ShardFinal(shard=state.number, file=file, digest=digest))]
    request = pb.ReportFinalRequest(shard=state.number, file=file, file_digest=digest)
    return [Ask(request)]


def part_reported(state: ShardState) -> None:
    state.ending.part_reported = True


def registrar_says(state: ShardState, *, complete: bool) -> None:
    state.ending.complete = state.ending.complete or complete


def report_again(state: ShardState, reply: pb.HelloReply) -> list[Effect]:
    """Write and report the part again, when the registrar has lost it with its store."""
    if not state.ending.part_reported or reply.final or reply.complete:
        return []
    state.ending.part_reported = False
    return [WritePart()]


def index_when_whole(state: ShardState) -> list[Effect]:
    ending, finals = state.ending, state.history.finals
    if ending.index_requested or ending.complete or len(finals) < state.run_file.shards:
        return []
    ending.index_requested = True
    parts = tuple((n, finals[n].file, finals[n].digest) for n in sorted(finals))
    return [WriteIndex(parts)]
