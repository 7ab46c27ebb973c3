"""A merge becomes a version when its entry is durable; then everybody gets it (rules 19, 29)."""

import dataclasses
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.states import slot_text
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, Tape
from atoll_syncer.model.log import Participant
from atoll_syncer.model.round import Round
from atoll_syncer.model.state import State
from atoll_syncer.rules import publishing


def merged(state: State, fragment: int, digest: str, name: str) -> list[Effect]:
    """A round's objects are written; its entry makes it count."""
    each = state.rounds[fragment]
    tick = max(state.clock.tick, each.due) if state.sync.lockstep else state.clock.tick
    entry = log.Committed(
        slice=fragment,
        number=each.base + 1,
        epoch=state.epoch,
        digest=digest,
        object=name,
        base=each.base,
        tick=tick,
        due=each.due,
        reason=each.reason,
        last=each.last,
        recovered=False,
        participants=each.participants,
    )
    return [Append(entry)]


def committed(state: State, entry: log.Committed, now: float) -> list[Effect]:
    """The version is durable."""
    each = state.rounds.pop(entry.slice)
    state.clock.raise_to(entry.tick)
    state.starts[entry.slice] = max(state.starts[entry.slice], entry.due)
    if entry.last:
        state.done.add(entry.slice)
    took = now - (each.closed_at or now)
    state.timings = dataclasses.replace(state.timings, sync=state.timings.sync.add(took))
    return [*publishing.to_all(state, entry.slice), Tape(record(state, entry, each, now))]


def record(state: State, entry: log.Committed, each: Round, now: float) -> dict[str, Any]:
    """One line of the event tape."""
    quorum_at = each.quorum_at or each.closed_at or now
    present = {part.slot for part in entry.participants}
    participants = [
        {name: getattr(part, name) for name in Participant.__slots__} for part in entry.participants
    ]
    left_out = [
        {"slot": name, "reason": _why_left_out(state, name, each, now)}
        for name in sorted(state.slots)
        if name not in present
    ]
    return {
        "event": "commit",
        "shard": state.number,
        "epoch": entry.epoch,
        "tick": entry.tick,
        "due": entry.due,
        "slice": entry.slice,
        "version": entry.number,
        "base": entry.base,
        "digest": entry.digest,
        "reason": entry.reason,
        "quorum_wait_seconds": quorum_at - each.opened_at,
        "grace_seconds": (each.closed_at or now) - quorum_at,
        "commit_seconds": now - (each.closed_at or now),
        "participants": participants,
        "left_out": left_out,
        "last": entry.last,
    }


def _why_left_out(state: State, slot: str, each: Round, now: float) -> str:
    does = state.slots[slot].state(now)
    if does != pb.SLOT_TRAINING:
        return slot_text(does)
    return "late" if slot in each.called else "not usable"
