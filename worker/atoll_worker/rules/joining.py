"""Connecting, admission, refusals and reconnecting (rules 1-5, 20, 22).

            Dial            connected: Join sent           Welcome
    DOWN ---------> DIALLING ------------------> JOINING ----------> WELCOMED
      ^                |                            |                    |
      +----------------+------- disconnected -------+--------------------+
                  (then a back-off of 0.2 to 10 s, and Dial again)

A learner dials the registrar first: its Welcome carries the run's id, this instance's incarnation
and its proof, which go into the Joins of all other shards. An observer needs none and dials all.

A lost connection stops nothing, since each Join says everything. The back-off begins again after a
session that lasted; its jitter is a function of who dials, which shard and how often, so that a
simulation can repeat it.

A Welcome with a lower epoch than was seen comes from a shard process that has been replaced and
does not know it yet. After a loss a shard may give the number of the version that is held here to
another value (the same number with another digest): the slice is then *orphaned*, neither reported
nor offered until a newer version is adopted.

An offer (rules 10, 13 and 15) is formed from a *capture*, a copy of the slice at one step boundary;
the training process makes it on command.

**Where no learner waits** (Decoupled DiLoCo, arXiv 2604.21428), a shard's Call is the credit for
exactly one offer: of the capture of the newest boundary, or else of the next one. Slices that come
due before the next boundary are captured ahead (`due_soon`), or slow learners would answer a whole
step late.

**In lock-step modes** (DiLoCo, arXiv 2311.08105, and Streaming DiLoCo, 2501.18512) a learner hands
over by itself at a slice's due *position*, and `step()` waits for the Publish `overlap` steps
later. Only the position decides, never the tick that a shard happens to report: so learners at one
position hand over the same slices, and never wait for each other's.

    begin_wait: Capture --> Boundary --> hand_over: SendOffer ... `overlap` more steps ...
    step() at awaited_from: waits --> Publish --> Adopt --> Boundary --> proceed: Proceed

A hand-over that died with its session is sent again in the next one, as long as its base is still
the newest version (`hand_over_again`); without lock-step the shard repeats the Call instead.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SENTENCE_LETTERS_MAX, printable
from atoll_protos.exits import ExitCode, exit_code_of
from atoll_protos.job import schedule
from atoll_protos.job.layout import TensorSpec
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD
from atoll_worker.link.messages import Capture, Fail, Proceed, Start
from atoll_worker.rules.learner_state import (
    Captured,
    Command,
    Connection,
    Dial,
    Effect,
    HangUp,
    LearnerState,
    Progress,
    SendMessage,
    SendOffer,
    SliceState,
    TelemetryRecord,
)

BACKOFF_SECONDS: Final = (0.2, 10.0)
STAYED_SECONDS: Final = 10.0  # a session that lasted so long makes the next dial a first one
FORMS: Final[tuple[Callable[[TensorSpec | pb.Tensor], str], ...]] = (  # by which tensors differ
    lambda each: f"{each.dtype} {list(each.shape)}",
    lambda each: f"merged by {each.merge}",
)


def begin(state: LearnerState) -> list[Effect]:
    return dial_all(state) if state.configure.observer else dial(state, REGISTRAR_SHARD)


def dial(state: LearnerState, shard: int) -> list[Effect]:
    known = state.shards[shard]
    known.dial_at = None
    if known.connection is not Connection.DOWN or state.failed or state.leaving:
        return []
    known.connection = Connection.DIALLING
    return [Dial(shard)]


def dial_all(state: LearnerState) -> list[Effect]:
    """Dial every shard that was not dialled before; the others have their own back-off."""
    shards = enumerate(state.shards)
    never = [n for n, known in shards if known.attempt == 0 and known.dial_at is None]
    return [effect for shard in never for effect in dial(state, shard)]


def dial_due(state: LearnerState, now: float) -> list[Effect]:
    over = [n for n, s in enumerate(state.shards) if s.dial_at is not None and now >= s.dial_at]
    return [effect for shard in over for effect in dial(state, shard)]


def is_quiet(state: LearnerState, shard: int) -> bool:
    known = state.shards[shard]
    return (known.welcomed and not known.arriving) and all(
        part.call is None and part.adopting is None and not part.capturing
        for part in state.of(shard)
    )


def connected(state: LearnerState, shard: int) -> list[Effect]:
    state.shards[shard].connection = Connection.JOINING
    join = pb.Join(
        protocol=PROTOCOL,
        run_hash=state.run_file.hash,
        layout_digest=state.layout.digest,
        slot=state.configure.slot,
        uid=state.configure.uid,
        instance=state.configure.instance,
        incarnation=state.incarnation,
        proof=state.proof,
        run=state.run,
        held=[
            pb.SliceVersion(slice=part.fragment, version=part.held)
            for part in state.of(shard)
            if part.held is not None
        ],
        tick_seen=state.tick_seen,
        epochs_seen=state.epochs_seen,
        t_m=state.progress.position,
        cursor=state.progress.cursor,
        observer=state.configure.observer,
        starting=not state.started,
        frozen_digest=state.configure.frozen_digest,
    )
    return [SendMessage(shard, pb.ToShard(join=join))]


def disconnected(state: LearnerState, shard: int, reason: str, now: float) -> list[Effect]:
    known = state.shards[shard]
    stayed = known.welcomed and now - known.welcomed_at >= STAYED_SECONDS
    known.connection = Connection.DOWN
    reason, known.end_reason = known.end_reason or reason, ""
    known.arriving.clear()
    for part in state.of(shard):
        part.call = None
    if state.leaving or state.failed:
        return []
    known.attempt = 0 if stayed else known.attempt
    known.dial_at = now + backoff_seconds(state.configure.instance, shard, known.attempt)
    known.attempt += 1
    return [TelemetryRecord({"event": "disconnected", "shard": shard, "reason": reason})]


def welcomed(state: LearnerState, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
    known = state.shards[shard]
    if welcome.epoch < known.epoch:
        return hang_up(state, shard, f"its epoch {welcome.epoch} is over: {known.epoch} has begun")
    if state.run and welcome.run != state.run:
        reason = f"run {state.run} has ended and {welcome.run} goes on; start this process again"
        return fail(state, ExitCode.TRY_AGAIN, reason)  # rule 2: its state is dropped
    state.run = welcome.run
    known.connection, known.ever_welcomed = Connection.WELCOMED, True
    known.welcomed_at, known.epoch = now, welcome.epoch
    known.final = None  # it says it again, unless it lost its store with the end (rule 22)
    _note_orphans(state, shard, welcome)
    if state.configure.observer:
        return []
    effects: list[Effect] = []
    if not state.started:
        _note_cursor(state.progress, welcome)
    if welcome.needs_model:
        effects.append(SendMessage(shard, pb.ToShard(model=state.layout.to_model())))
    if shard != REGISTRAR_SHARD:
        return effects
    state.proof = welcome.proof  # each of its processes may have another key
    if state.incarnation == 0:
        state.incarnation = welcome.incarnation
        start = {"instance": state.configure.instance, "cursor": state.progress.cursor}
        effects += [TelemetryRecord({"event": "start", **start}), *dial_all(state)]
    return effects


def hang_up(state: LearnerState, shard: int, reason: str) -> list[Effect]:
    state.shards[shard].connection = Connection.ENDING
    record = {"event": "left", "shard": shard, "reason": reason}
    return [TelemetryRecord(record), HangUp(shard, reason)]


def start(state: LearnerState) -> list[Effect]:
    """Begin to train; the position on the schedule is the tick (rules 5 and 15)."""
    whole = all(slice_.held is not None for slice_ in state.slices.values())
    if state.started or not whole or not all(shard.ever_welcomed for shard in state.shards):
        return []
    state.started = True
    progress, tick = state.progress, state.clock.tick
    progress.position = tick
    if state.configure.observer:
        return []
    data_state, progress.data_state = progress.data_state, None
    command = Start(
        incarnation=state.incarnation, cursor=progress.cursor, tick=tick, data_state=data_state
    )
    return [Command(command)]


def refused(state: LearnerState, shard: int, end: pb.End) -> list[Effect]:
    """Train on with the others after `retry` of a shard that has lost its store."""
    why = printable(end.reason, SENTENCE_LETTERS_MAX)
    state.shards[shard].end_reason = why
    if end.retry:
        return [TelemetryRecord({"event": "refused", "shard": shard, "reason": why})]
    how = difference(state.layout.tensors, end.model.tensors) if end.HasField("model") else ""
    reason = f"shard {shard}: {why}{how}; remedy: {printable(end.remedy, SENTENCE_LETTERS_MAX)}"
    return fail(state, exit_code_of(end.code), reason)


def difference(own: Sequence[TensorSpec], runs: Sequence[pb.Tensor]) -> str:
    """Return the tensors that differ; those merged in another way only where no form differs."""
    for form in FORMS:
        its = {spec.name: form(spec) for spec in own}
        in_run = {spec.name: form(spec) for spec in runs}
        names = [name for name in in_run | its if in_run.get(name) != its.get(name)]
        if names:
            here, there = its.get(names[0], "not there"), in_run.get(names[0], "none")
            more = f", and {len(names) - 1} more differ" if len(names) > 1 else ""
            return f": {names[0]} is {here}, in the run {there}{more}"
    return ""


def fail(state: LearnerState, code: ExitCode, reason: str) -> list[Effect]:
    """Only the first reason is sent."""
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
    """Keep the largest cursor (rule 28); a shard that lost its store may lack its data state."""
    if welcome.cursor < progress.cursor:
        return
    if welcome.cursor > progress.cursor:
        progress.cursor, progress.data_state = welcome.cursor, None
    if welcome.HasField("data_state"):
        progress.data_state = welcome.data_state


def _note_orphans(state: LearnerState, shard: int, welcome: pb.Welcome) -> None:
    for named in welcome.newest:
        each = state.slices.get((shard, named.slice))
        if each is not None and each.held is not None:
            same = named.version.digest == each.held.digest
            each.orphaned = named.version.number == each.held.number and not same


# ---------------------------------------------------------------- captures and offers in all modes


def ask(state: LearnerState, wanted: Iterable[SliceState]) -> list[Effect]:
    new = [slice_ for slice_ in wanted if not slice_.capturing]
    for each in new:
        each.capturing = state.captures_asked = True
    return [Command(Capture(slices=tuple(each.key for each in new)))] if new else []


def captured(state: LearnerState, shard: int, fragment: int) -> None:
    """Note that the capture region holds the slice of this boundary, after its adoptions."""
    each, progress = state.slices[shard, fragment], state.progress
    each.capturing = False
    each.captured = Captured(
        boundary=progress.boundaries,
        steps=each.steps,
        tokens=each.tokens,
        position=progress.position,
        cursor=progress.cursor,
        data_state=progress.data_state,
    )


def offer(each: SliceState, capture: Captured) -> Effect:
    """With the session's slot and incarnation, its fields name it."""
    assert each.held is not None, "an offer needs a base"
    each.offered.add(capture.steps, capture.tokens)
    message = pb.Offer(
        slice=each.fragment,
        base=each.number,
        capture=capture.steps,
        counters=pb.Counters(steps=capture.steps, tokens=capture.tokens),
        t_m=capture.position,
        cursor=capture.cursor,
        base_digest=each.held.digest,
        data_state=capture.data_state,
    )
    return SendOffer(each.shard, message)


def lost(state: LearnerState, shard: int, fragment: int, base: int, capture: int) -> list[Effect]:
    """Drop a region overwritten before it was read; its credit waits for a new capture."""
    each = state.slices[shard, fragment]
    if each.number != base:
        return []
    each.offered.take_back(capture)
    if each.captured is not None and each.captured.steps == capture:
        each.captured = None
    if state.sync.lockstep:
        return ask(state, [each])
    each.call = base
    return [*answers(state), *captures(state)]


# ---------------------------------------------------------------- modes in which no learner waits


def called(state: LearnerState, shard: int, call: pb.Call) -> list[Effect]:
    """Take a Call as the credit for one offer on that base; on any other base nothing is owed."""
    each = state.slices.get((shard, call.slice))
    if each is None or each.number != call.base or each.orphaned:
        return []
    each.call = call.base
    return [*answers(state), *captures(state)]  # the slices due soon were asked for at a boundary


def answers(state: LearnerState) -> list[Effect]:
    effects: list[Effect] = []
    for slice_ in state.slices.values():
        capture = slice_.captured
        if capture is None or slice_.call is None:
            continue
        if capture.boundary == state.progress.boundaries and capture.steps >= 1:
            slice_.call = None
            effects.append(offer(slice_, capture))
    return effects


def captures(state: LearnerState, soon: Collection[int] = ()) -> list[Effect]:
    if not state.started or state.finished:
        return []
    slices = state.slices.values()
    return ask(
        state, (slice_ for slice_ in slices if slice_.call is not None or slice_.fragment in soon)
    )


def due_soon(state: LearnerState, now: float) -> list[int]:
    return schedule.ahead(
        state.sync,
        state.clock.estimate(now),
        state.clock.ticks_per_second,
        state.progress.step_seconds.or_else(0.0),
    )


# ---------------------------------------------------------------- lock-step modes


def catch_up(state: LearnerState) -> None:
    """After an absence of a round or more, take the position from the tick, as a joiner does."""
    progress, tick = state.progress, state.clock.tick
    if tick > progress.position + state.sync.period:
        progress.position = tick


def begin_wait(state: LearnerState) -> list[Effect]:
    if not state.started:
        return []
    state.step_waits = True
    return ask(state, (slice_ for slice_ in state.slices.values() if is_due(state, slice_)))


def is_due(state: LearnerState, each: SliceState) -> bool:
    """Whether the slice is handed over at this position; at the job's length every slice is.

    At a former length too: another learner may not have heard of the present one, and would wait.
    Not on a base that is about to be replaced, and not what is final, since its shard has ended.
    """
    if each.awaited_from is not None or each.steps < 1 or each.adopting or each.waiting:
        return False
    if state.is_final(each):
        return False
    position = state.progress.position
    return state.length.is_end(position) or schedule.hands_over(state.sync, each.fragment, position)


def hand_over(state: LearnerState, keys: tuple[tuple[int, int], ...]) -> list[Effect]:
    """Offer what was just captured; step() waits for its Publish `overlap` steps from here."""
    effects: list[Effect] = []
    for key in keys:
        each = state.slices[key]
        if each.captured is None or each.captured.steps < 1:
            continue
        each.awaited_from = state.progress.position + state.sync.overlap
        if state.shards[each.shard].welcomed:
            effects.append(offer(each, each.captured))
    return effects


def hand_over_again(state: LearnerState, shard: int, newest: Mapping[int, int]) -> list[Effect]:
    """`newest` is the newest version number of every fragment at the shard."""
    return [
        offer(part, part.captured)
        for part in state.of(shard)
        if part.awaited_from is not None
        and part.captured is not None
        and newest.get(part.fragment) == part.number
        and not part.orphaned
    ]


def may_adopt(state: LearnerState, each: SliceState) -> bool:
    """Return True, but in lock-step modes only inside step().

    There a slice that was handed over is adopted `overlap` steps later, not before, so that all
    learners adopt at the same position. At the end of the job it is adopted at once.
    """
    if not state.sync.lockstep or not state.started or state.configure.observer:
        return True
    if not state.step_waits:
        return False
    reached = each.awaited_from is None or state.progress.position >= each.awaited_from
    return reached or state.at_the_end


def proceed(state: LearnerState) -> list[Effect]:
    """Let step() return if nothing of this boundary is outstanding; at the end Finished does it."""
    if not state.step_waits or state.at_the_end:
        return []
    for slice_ in state.slices.values():
        awaited = slice_.awaited_from is not None and state.progress.position >= slice_.awaited_from
        awaited = awaited and not state.is_final(slice_)
        if slice_.capturing or slice_.adopting is not None or awaited:
            return []
    state.step_waits = False
    return [Command(Proceed())]
