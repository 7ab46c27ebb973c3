"""Which run this is: minted, learned from the registrar, or carried on (rules 1 and 2)."""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Ask, Effect, Exit, Tape
from atoll_syncer.model.state import State
from atoll_syncer.rules import ending, seeding
from atoll_syncer.rules import recovery as recovering

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
    return [*effects, *_mint(state, now)]


def _mint(state: State, now: float) -> list[Effect]:
    """Rule 2: once every other shard has spoken too, the run that they hold, or a new one."""
    spoken = len(state.shards_heard) == state.run_file.shards - 1
    if not state.registrar or state.history.run or state.fresh or not spoken:
        return []
    if now - state.started_at < MINT_SECONDS:
        return []
    state.fresh = True  # once
    run = min(state.spoken, default=state.new_run)
    return [
        *(_carry_on(state, run) if run in state.spoken else []),
        Append(log.RunStarted(run=run)),
    ]


def _carry_on(state: State, run: str) -> list[Effect]:
    """What the lost store knew, before anybody is admitted to the run again."""
    taken = state.history.taken
    effects: list[Effect] = [
        Append(entry)
        for slot, entry in sorted(state.seen.items())
        if slot not in taken or entry.incarnation > taken[slot].incarnation
    ]
    if run in state.held_runs:  # else a shard that lost its store would take a seed
        effects += [Append(log.Begun(shard=n)) for n in range(state.run_file.shards)]
    return effects


def heard(state: State, join: pb.Join) -> None:
    """Whoever dials says which run it holds, welcome or not."""
    if join.run:
        state.spoken.add(join.run)
    if any(each.version.number > 0 for each in join.held):
        state.held_runs.add(join.run)
    if join.incarnation and not state.history.run:
        see(state, join.slot, join.incarnation, join.uid, join.instance)


def heard_shard(state: State, request: pb.HelloRequest) -> None:
    """As `heard`, of another shard."""
    state.shards_heard.add(request.shard)
    if request.run:
        state.spoken.add(request.run)
    if request.tick and not request.empty:
        state.held_runs.add(request.run)
    for each in [] if state.history.run else request.taken:
        see(state, each.slot, each.incarnation, each.uid, each.instance)


def see(state: State, slot: str, incarnation: int, uid: str, instance: str) -> None:
    """An incarnation that an earlier registrar has given: the next is above it."""
    known = state.seen.get(slot)
    if known is None or incarnation > known.incarnation:
        state.seen[slot] = log.Taken(slot=slot, incarnation=incarnation, uid=uid, instance=instance)


def started(entry: log.RunStarted) -> list[Effect]:
    """The run is durable here."""
    return [Tape({"event": "run", "run": entry.run})]


def hello(state: State) -> pb.HelloRequest:
    """This shard to the registrar."""
    return pb.HelloRequest(
        shard=state.number,
        run_hash=state.run_file.hash,
        run=state.history.run or min(state.spoken, default=""),
        empty=not state.history.heads,
        tick=state.clock.tick,
        taken=[
            pb.SlotTaken(
                slot=each.slot,
                incarnation=each.incarnation,
                uid=each.uid,
                instance=each.instance,
            )
            for _, each in sorted(state.history.taken.items())
        ],
    )


def told(state: State, reply: pb.HelloReply, now: float) -> list[Effect]:
    """The registrar's answer."""
    state.complete = state.complete or reply.complete
    if not reply.run:
        return []
    if state.history.run and state.history.run != reply.run:
        reason = f"this store holds run {state.history.run}, the registrar has {reply.run}"
        return [Exit(ExitCode.OTHER_JOB, reason)]
    state.told_unmarked = not reply.begun
    effects: list[Effect] = []
    if reply.begun and not state.marked:
        state.marked = True
        effects += recovering.found_empty(state, now)
    if state.recovery is not None:
        state.recovery.alive = frozenset(reply.alive)
    if state.history.run:
        return [*effects, *seeding.ask(state), *ending.told(state, reply)]
    return [Append(log.RunStarted(run=reply.run)), *effects]
