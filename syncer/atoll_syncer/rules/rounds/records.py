"""The tape's line of a commit (rule 29): what a person asks about a round.

The tape decides nothing. A commit has one line, whichever process writes it: the one that merged,
or one that comes after it and finds the entry in the log without a line.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from atoll_syncer.model.log import Committed, Participant
from atoll_syncer.model.round import Round
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.rounds import offers
from atoll_syncer.rules.rounds.counts import counts


def commit(state: ShardState, entry: Committed, each: Round, now: float) -> dict[str, Any]:
    quorum_at = each.quorum_at or each.closed_at or now
    closed_at = each.closed_at or now
    present = {part.slot for part in entry.participants}
    names = Participant.__slots__
    return line(
        state,
        entry,
        quorum_wait_seconds=quorum_at - each.opened_at,
        grace_seconds=closed_at - quorum_at,
        commit_seconds=now - closed_at,
        participants=[{name: getattr(p, name) for name in names} for p in entry.participants],
        left_out=[
            {"slot": name, "reason": offers.why_left_out(state, name, each, now)}
            for name in sorted(state.sessions.slots)
            if name not in present
        ],
        counts=_counts(state, now),
        seconds=state.sessions.uptime.seconds,
        training_seconds=state.sessions.uptime.training_seconds,
        norms=_rounded(each.found.norms),
        cosines=_rounded(each.found.cosines),
        learners=_learners(state),
        losses=[
            {"slot": part.slot, "incarnation": part.incarnation, "loss": loss}
            for part in entry.participants
            if (loss := _loss(state, part.slot)) is not None
        ],
    )


def _rounded(found: Mapping[str, float]) -> dict[str, float]:
    return {slot: float(f"{each:.6g}") for slot, each in sorted(found.items())}


def _counts(state: ShardState, now: float) -> dict[str, int]:
    said = counts(state, now)
    return {each.name: getattr(said, each.name) for each in said.DESCRIPTOR.fields}


def _learners(state: ShardState) -> dict[str, dict[str, float]]:
    """By slot: the tokens of all its processes, and how its newest one works, as it has said."""
    return {
        name: {
            "tokens": slot.tokens,
            "step_seconds": slot.report.step_seconds,
            "busy_share": slot.report.busy_share,
        }
        for name, slot in sorted(state.sessions.slots.items())
        if slot.tokens
    }


def _loss(state: ShardState, slot: str) -> float | None:
    """The training loss that a learner reported last, for people; None: it has told none."""
    known = state.sessions.slots.get(slot)
    if known is None or not known.report.t_m or not math.isfinite(known.report.loss):
        return None
    return known.report.loss


def commit_again(state: ShardState, entry: Committed) -> dict[str, Any]:
    """The tape's line of a commit whose process was killed before it wrote one, from its entry."""
    return line(
        state,
        entry,
        from_log=True,
        **({"recovered": True} if entry.recovered else {}),
        participants=[dataclasses.asdict(each) for each in entry.participants],
    )


def shares(entry: Committed) -> dict[str, float]:
    """Of the weight of a merge, what each learner's offer has; by slot."""
    whole = sum(each.weight for each in entry.participants) or 1.0
    return {each.slot: each.weight / whole for each in entry.participants}


def line(state: ShardState, entry: Committed, **fields: Any) -> dict[str, Any]:
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
        "momentum": entry.momentum,
        "reason": entry.reason,
        "tokens": entry.tokens,
        **fields,
        "shares": shares(entry),
        "last": entry.last,
    }
