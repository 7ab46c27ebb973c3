"""Joining, reconnecting and refusals: the registrar first, then every shard (rules 1-5, 20)."""

import hashlib
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode, exit_code_of
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD
from atoll_worker.link.messages import Fail, Start
from atoll_worker.rules.effects import Command, Dial, Effect, HangUp, Record, SendMessage
from atoll_worker.rules.state import Line, State

BACKOFF_SECONDS: Final = (0.2, 10.0)
STAYED_SECONDS: Final = 10.0  # a session that lasted so long makes the next dial a first one


def begin(state: State) -> list[Effect]:
    """A learner's incarnation comes from the registrar; an observer needs none."""
    return dial_all(state) if state.observer else dial(state, REGISTRAR_SHARD)


def dial(state: State, shard: int) -> list[Effect]:
    """Open both streams, unless that is already under way."""
    side = state.sides[shard]
    side.dial_at = None
    if side.line is not Line.DOWN or state.failed or state.leaving:
        return []
    side.line = Line.DIALLING
    return [Dial(shard)]


def dial_all(state: State) -> list[Effect]:
    """Those that nobody has dialled yet; the others have their own time for the next dial."""
    never = [n for n, side in enumerate(state.sides) if side.attempt == 0 and side.dial_at is None]
    return [effect for shard in never for effect in dial(state, shard)]


def dial_due(state: State, now: float) -> list[Effect]:
    """Those whose back-off is over."""
    over = [n for n, s in enumerate(state.sides) if s.dial_at is not None and now >= s.dial_at]
    return [effect for shard in over for effect in dial(state, shard)]


def connected(state: State, shard: int) -> list[Effect]:
    """The control stream is open: Join says all that the shard must know (rule 3)."""
    state.sides[shard].line = Line.JOINING
    join = pb.Join(
        protocol=PROTOCOL,
        run_hash=state.run_file.hash,
        layout_digest=state.layout.digest,
        slot=state.slot,
        uid=state.uid,
        instance=state.instance,
        incarnation=state.incarnation,
        run=state.run,
        held=[
            pb.SliceVersion(slice=each.fragment, version=each.held)
            for each in state.of(shard)
            if each.held is not None
        ],
        tick_seen=state.tick_seen,
        epochs_seen=state.epochs_seen,
        t_m=state.work.position,
        cursor=state.work.cursor,
        observer=state.observer,
    )
    return [SendMessage(shard, pb.ToShard(join=join))]


def disconnected(state: State, shard: int, reason: str, now: float) -> list[Effect]:
    """Both streams are gone. Bases stay; Calls died with the session; nobody else notices."""
    side = state.sides[shard]
    stayed = side.welcomed and now - side.welcomed_at >= STAYED_SECONDS
    side.line, side.publish_began_at = Line.DOWN, None
    for each in state.of(shard):
        each.call = None
    if state.leaving or state.failed:
        return []
    side.attempt = 0 if stayed else side.attempt
    side.dial_at = now + backoff_seconds(state.instance, shard, side.attempt)
    side.attempt += 1
    return [Record({"event": "disconnected", "shard": shard, "reason": reason})]


def welcomed(state: State, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
    """The shard has taken this instance; its reign and its run must be the newest known."""
    side = state.sides[shard]
    if welcome.epoch < side.epoch:
        reason = f"its epoch {welcome.epoch} is over: {side.epoch} has begun"
        return [Record({"event": "left", "shard": shard, "reason": reason}), HangUp(shard)]
    if state.run and welcome.run != state.run:
        reason = f"run {state.run} has ended, {welcome.run} goes on: start again"
        return fail(state, ExitCode.TRY_AGAIN, reason)  # rule 2: its state is dropped
    state.run = welcome.run
    side.line, side.ever_welcomed = Line.WELCOMED, True
    side.welcomed_at, side.epoch = now, welcome.epoch
    _disown(state, shard, welcome)
    effects: list[Effect] = []
    if state.observer:
        return effects
    if not state.started:
        state.work.cursor = max(state.work.cursor, welcome.cursor)  # rule 28
    if welcome.needs_model:
        effects.append(SendMessage(shard, pb.ToShard(model=state.layout.to_model())))
    if shard == REGISTRAR_SHARD and state.incarnation == 0:
        state.incarnation = welcome.incarnation
        start = {"event": "start", "instance": state.instance, "cursor": state.work.cursor}
        effects += [Record(start), *dial_all(state)]
    return effects


def start(state: State) -> list[Effect]:
    """Rule 5: the first step comes after all shards have welcomed it, on the job's values.

    A joiner takes its position from the tick (rule 15).
    """
    whole = all(each.held is not None for each in state.slices.values())
    if state.started or not whole or not all(side.ever_welcomed for side in state.sides):
        return []
    state.started = True
    tick = state.clock.tick
    state.work.position = tick
    if state.observer:
        return []
    command = Start(incarnation=state.incarnation, cursor=state.work.cursor, tick=tick)
    return [Command(command)]


def refused(state: State, shard: int, end: pb.End) -> list[Effect]:
    """A session, or the wish for one, ends: for good, or until the back-off is over.

    A shard that has lost its store serves nobody for now; this process trains on beside it.
    """
    if end.retry or end.code == pb.STORE_LOST:
        return [Record({"event": "refused", "shard": shard, "reason": end.reason})]
    return fail(state, exit_code_of(end.code), f"shard {shard}: {end.reason}; remedy: {end.remedy}")


def fail(state: State, code: ExitCode, reason: str) -> list[Effect]:
    """This process must end; said once."""
    if state.failed:
        return []
    state.failed = True
    return [Command(Fail(exit_code=int(code), reason=reason))]


def backoff_seconds(instance: str, shard: int, attempt: int) -> float:
    """0.2..10 s, doubling; the jitter is a function of who dials, whom, and how often."""
    low, high = BACKOFF_SECONDS
    ceiling = min(high, low * (1 << min(attempt + 1, 16)))
    digest = hashlib.sha256(f"{instance} {shard} {attempt}".encode()).digest()
    return low + (ceiling - low) * int.from_bytes(digest[:4]) / (1 << 32)


def _disown(state: State, shard: int, welcome: pb.Welcome) -> None:
    """After a loss another value may have the number of the one held (rule 22)."""
    for head in welcome.heads:
        each = state.slices.get((shard, head.slice))
        if each is not None and each.held is not None:
            same = head.version.digest == each.held.digest
            each.disowned = head.version.number == each.held.number and not same
