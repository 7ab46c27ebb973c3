"""Which run this is: minted, learned from the registrar, or carried on (rules 1 and 2)."""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import ExitCode
from atoll_syncer import log
from atoll_syncer.effects import Append, Ask, Effect, Exit, Tape
from atoll_syncer.state import State

HELLO_SECONDS: Final = 2.0
MINT_SECONDS: Final = 30.0  # a registrar with an empty store asks first


def first(state: State) -> list[Effect]:
    """At a job's first start nobody can hold a run."""
    if state.registrar and not state.history.run and state.fresh:
        return [Append(log.RunStarted(run=state.new_run))]
    return []


def time_passed(state: State, now: float) -> list[Effect]:
    """Other shards say Hello; a registrar without a run has asked for long enough."""
    effects: list[Effect] = []
    if not state.registrar and now - state.asked_at >= HELLO_SECONDS and not state.complete:
        state.asked_at = now
        effects.append(Ask(hello(state)))
    waited = now - state.started_at >= MINT_SECONDS
    if state.registrar and not state.history.run and not state.fresh and waited:
        state.fresh = True  # once
        run = min(state.spoken, default=state.new_run)
        effects.append(Append(log.RunStarted(run=run)))
    return effects


def heard(state: State, join: pb.Join) -> None:
    """Whoever dials says which run it holds, welcome or not."""
    if join.run:
        state.spoken.add(join.run)
    if any(each.version.number > 0 for each in join.held):
        state.held_runs.add(join.run)


def started(state: State, entry: log.RunStarted) -> list[Effect]:
    """The run is durable here."""
    if entry.run in state.held_runs and not state.history.heads:
        state.failed = state.failed or f"learners hold versions of {entry.run}"
    return [Tape({"event": "run", "run": entry.run})]


def hello(state: State) -> pb.HelloRequest:
    """This shard to the registrar."""
    return pb.HelloRequest(
        shard=state.number,
        run_hash=state.run_file.hash,
        epoch=state.history.epoch,
        run=state.history.run or min(state.spoken, default=""),
        empty=not state.history.heads,
        tick=state.clock.tick,
    )


def told(state: State, reply: pb.HelloReply) -> list[Effect]:
    """The registrar's answer."""
    state.complete = state.complete or reply.complete
    if not reply.run:
        return []
    if state.history.run and state.history.run != reply.run:
        reason = f"this store holds run {state.history.run}, the registrar has {reply.run}"
        return [Exit(ExitCode.OTHER_JOB, reason)]
    if reply.begun and not state.history.heads and not state.failed:
        state.failed = "the store of a shard that had begun is empty"
    return [] if state.history.run else [Append(log.RunStarted(run=reply.run))]
