"""Connecting, admission, refusals and reconnecting (rules 1-5, 20, 22).

Theory of operation
-------------------
A learner has one connection to each shard. Each is in one of four states:

            Dial            connected: Join sent           Welcome
    DOWN ---------> DIALLING ------------------> JOINING ----------> WELCOMED
      ^                |                            |                    |
      +----------------+------- disconnected -------+--------------------+
                  (then a back-off of 0.2 to 10 s, and Dial again)

*The order at the start.* A learner dials shard 0 first, since it is the registrar, which alone
admits instances: its Welcome carries the run's id, this instance's incarnation and its proof.
They go into the Join of every other shard, which are dialled then. An observer needs no incarnation
and dials all shards at once.

*The first step* is made when every shard has welcomed this instance (from then on all of them
refuse its predecessor) and every slice has been adopted from a Publish. The learner takes its
position on the schedule from the tick. If the job has just begun and a shard has no version 0, the
shard asks for a seed, and the learner sends its initial model (exchange.py).

*A lost connection* stops nothing. Bases stay, training continues, and the shard is dialled again.
Each session begins with a Join that says everything the shard must know, so that nothing has to be
remembered of the last one. Calls die with the session, and the shard makes them again. The back-off
doubles with each attempt, and begins again after a session that lasted. Its jitter is a function of
who dials, which shard and how often, not of a random generator: a simulation can repeat it.

*What ends the process.* A permanent refusal ends it with the exit code of its kind (superseded,
another model or run, an unknown slot). A Welcome of another run ends it with "try again": the state
of the old run must not be mixed with the new one, and a fresh process has none. Temporary refusals
and a shard that has lost its store do not end it.

*Old epochs.* A Welcome with a lower epoch than this learner has seen comes from a shard process
that has been replaced and does not know it yet. The learner closes that session.

*After a loss* a shard may give the number of the version that is held here to another value. The
Welcome's heads show it (the same number with another digest); the slice is then *orphaned*: it is
neither reported nor offered until a newer version is adopted.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode, exit_code_of
from atoll_protos.layout import TensorSpec
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD
from atoll_worker.link.messages import Fail, Start
from atoll_worker.rules import companions
from atoll_worker.rules.effects import Command, Dial, Effect, HangUp, Record, SendMessage
from atoll_worker.rules.state import Connection, Progress, State

BACKOFF_SECONDS: Final = (0.2, 10.0)
STAYED_SECONDS: Final = 10.0  # a session that lasted so long makes the next dial a first one


def begin(state: State) -> list[Effect]:
    """The first dial: of the registrar; an observer dials every shard."""
    return dial_all(state) if state.observer else dial(state, REGISTRAR_SHARD)


def dial(state: State, shard: int) -> list[Effect]:
    """Open the streams to a shard, unless that is already under way."""
    known = state.shards[shard]
    known.dial_at = None
    if known.connection is not Connection.DOWN or state.failed or state.leaving:
        return []
    known.connection = Connection.DIALLING
    return [Dial(shard)]


def dial_all(state: State) -> list[Effect]:
    """Dial every shard that was not dialled before; the others have their own back-off."""
    never = [
        n for n, known in enumerate(state.shards) if known.attempt == 0 and known.dial_at is None
    ]
    return [effect for shard in never for effect in dial(state, shard)]


def dial_due(state: State, now: float) -> list[Effect]:
    """Dial the shards whose back-off is over."""
    over = [n for n, s in enumerate(state.shards) if s.dial_at is not None and now >= s.dial_at]
    return [effect for shard in over for effect in dial(state, shard)]


def is_quiet(state: State, shard: int) -> bool:
    """Whether a session is open and nothing is under way in it."""
    known, slices = state.shards[shard], state.of(shard)
    return (
        known.welcomed
        and not known.arriving
        and all(each.call is None and each.adopting is None for each in slices)
        and not any(each.capturing for each in slices)
    )


def connected(state: State, shard: int) -> list[Effect]:
    """The control stream is open: send a Join, which says all that the shard must know (rule 3)."""
    state.shards[shard].connection = Connection.JOINING
    join = pb.Join(
        protocol=PROTOCOL,
        run_hash=state.run_file.hash,
        layout_digest=state.layout.digest,
        slot=state.slot,
        uid=state.uid,
        instance=state.instance,
        incarnation=state.incarnation,
        proof=state.proof,
        run=state.run,
        held=[
            pb.SliceVersion(slice=each.fragment, version=each.held)
            for each in state.of(shard)
            if each.held is not None
        ],
        tick_seen=state.tick_seen,
        epochs_seen=state.epochs_seen,
        t_m=state.progress.position,
        cursor=state.progress.cursor,
        observer=state.observer,
        starting=not state.started,
        has_companion=state.has_companion and not state.observer,
        frozen_digest=state.frozen_digest,
    )
    return [SendMessage(shard, pb.ToShard(join=join))]


def disconnected(state: State, shard: int, reason: str, now: float) -> list[Effect]:
    """Both streams are gone: forget the session's Calls, and dial again after a back-off."""
    known = state.shards[shard]
    stayed = known.welcomed and now - known.welcomed_at >= STAYED_SECONDS
    known.connection = Connection.DOWN
    known.arriving.clear()
    for each in state.of(shard):
        each.call = None
    if shard == REGISTRAR_SHARD:
        companions.disconnected(state)
    if state.leaving or state.failed:
        return []
    known.attempt = 0 if stayed else known.attempt
    known.dial_at = now + backoff_seconds(state.instance, shard, known.attempt)
    known.attempt += 1
    return [Record({"event": "disconnected", "shard": shard, "reason": reason})]


def welcomed(state: State, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
    """The shard has taken this instance, if its epoch and its run are the newest known."""
    known = state.shards[shard]
    if welcome.epoch < known.epoch:
        reason = f"its epoch {welcome.epoch} is over: {known.epoch} has begun"
        return hang_up(state, shard, reason)
    if state.run and welcome.run != state.run:
        reason = f"run {state.run} has ended and {welcome.run} goes on; start this process again"
        return fail(state, ExitCode.TRY_AGAIN, reason)  # rule 2: its state is dropped
    state.run = welcome.run
    known.connection, known.ever_welcomed = Connection.WELCOMED, True
    known.welcomed_at, known.epoch = now, welcome.epoch
    known.final = None  # it says it again, unless it lost its store with the end (rule 22)
    _note_orphans(state, shard, welcome)
    effects: list[Effect] = []
    if state.observer:
        return effects
    if not state.started:
        _note_cursor(state.progress, welcome)
    if welcome.needs_model:
        effects.append(SendMessage(shard, pb.ToShard(model=state.layout.to_model())))
    if shard == REGISTRAR_SHARD:
        state.proof = welcome.proof  # each of its processes may have another key
    if shard == REGISTRAR_SHARD and state.incarnation == 0:
        state.incarnation = welcome.incarnation
        start = {"event": "start", "instance": state.instance, "cursor": state.progress.cursor}
        effects += [Record(start), *dial_all(state)]
    return effects


def hang_up(state: State, shard: int, reason: str) -> list[Effect]:
    """End a session from here; the shard is dialled again after a back-off."""
    state.shards[shard].connection = Connection.ENDING
    return [Record({"event": "left", "shard": shard, "reason": reason}), HangUp(shard, reason)]


def start(state: State) -> list[Effect]:
    """Begin to train, once every shard has welcomed this instance and every slice is adopted.

    The position on the schedule is taken from the tick (rules 5 and 15).
    """
    whole = all(each.held is not None for each in state.slices.values())
    if state.started or not whole or not all(each.ever_welcomed for each in state.shards):
        return []
    state.started = True
    tick = state.clock.tick
    state.progress.position = tick
    if state.observer:
        return []
    progress = state.progress
    command = Start(
        incarnation=state.incarnation,
        cursor=progress.cursor,
        tick=tick,
        data_state=progress.data_state,
    )
    progress.data_state = None
    return [Command(command)]


def refused(state: State, shard: int, end: pb.End) -> list[Effect]:
    """The shard has refused or ended the session: for good, or until the back-off is over.

    A shard that has lost its store says `retry`: this process trains on with the other shards.
    """
    if end.retry:
        return [Record({"event": "refused", "shard": shard, "reason": end.reason})]
    how = difference(state.layout.tensors, end.model.tensors) if end.HasField("model") else ""
    reason = f"shard {shard}: {end.reason}{how}; remedy: {end.remedy}"
    return fail(state, exit_code_of(end.code), reason)


def difference(own: Sequence[TensorSpec], runs: Sequence[pb.Tensor]) -> str:
    """By which tensors this learner's model differs from the run's, the first with both forms.

    Tensors that are merged in another way are named where no shape and no dtype differs.
    """
    return _difference(own, runs, lambda each: f"{each.dtype} {list(each.shape)}") or _difference(
        own, runs, lambda each: f"merged by {each.merge}"
    )


def _difference(
    own: Sequence[TensorSpec],
    runs: Sequence[pb.Tensor],
    form: Callable[[TensorSpec | pb.Tensor], str],
) -> str:
    its = {each.name: form(each) for each in own}
    in_run = {each.name: form(each) for each in runs}
    names = [name for name in {**in_run, **its} if in_run.get(name) != its.get(name)]
    if not names:
        return ""
    first = names[0]
    here, there = its.get(first, "not there"), in_run.get(first, "none")
    more = f", and {len(names) - 1} more differ" if len(names) > 1 else ""
    return f": {first} is {here}, in the run {there}{more}"


def fail(state: State, code: ExitCode, reason: str) -> list[Effect]:
    """End this process; only the first reason is sent."""
    if state.failed:
        return []
    state.failed = True
    return [Command(Fail(exit_code=int(code), reason=reason))]


def backoff_seconds(instance: str, shard: int, attempt: int) -> float:
    """From 0.2 s to a ceiling that doubles up to 10 s; a function of the arguments alone."""
    low, high = BACKOFF_SECONDS
    ceiling = min(high, low * (1 << min(attempt + 1, 16)))
    digest = hashlib.sha256(f"{instance} {shard} {attempt}".encode()).digest()
    return low + (ceiling - low) * int.from_bytes(digest[:4]) / (1 << 32)


def _note_cursor(progress: Progress, welcome: pb.Welcome) -> None:
    """The largest cursor of any shard, with the data state that was kept with it (rule 28).

    A shard that lost its store may know a cursor without its data state, which another one has.
    """
    if welcome.cursor < progress.cursor:
        return
    if welcome.cursor > progress.cursor:
        progress.cursor, progress.data_state = welcome.cursor, None
    if welcome.HasField("data_state"):
        progress.data_state = welcome.data_state


def _note_orphans(state: State, shard: int, welcome: pb.Welcome) -> None:
    """Mark the slices whose number now names another value, after a loss (rule 22)."""
    for head in welcome.heads:
        each = state.slices.get((shard, head.slice))
        if each is not None and each.held is not None:
            same = head.version.digest == each.held.digest
            each.orphaned = head.version.number == each.held.number and not same
