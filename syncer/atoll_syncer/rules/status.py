"""What the Status call answers: the shard's state and reason, its slots, its counters.

The state of the shard is the first of these that holds: Failed, Complete, Recovering, Final, then
Starting or Seeding until it has all that rounds need, Serving. `quorum` is K as it is now, and
`grace_seconds` is the longest grace of the open rounds. `refused_zombies` counts since the start of
this process, `commits` since the beginning of the log.
"""

from collections.abc import Iterable
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import printable
from atoll_syncer.model.effects import Effect, end_session
from atoll_syncer.model.roster import Slot
from atoll_syncer.model.state import MergeShare, ShardState
from atoll_syncer.rules import calls, recovery, seeding
from atoll_syncer.rules.offers import counts

NO_SHARE = MergeShare(share=0.0, tokens_per_step=0.0, over_half=0)
TROUBLE_LETTERS_MAX = 500  # of what a learner says of itself


def status(state: ShardState, now: float) -> pb.StatusReply:
    """Return the shard's state at `now`; the service adds the bytes that it has moved."""
    rounds = [each for each in state.rounds.open.values() if each.closed_at is None]
    does, reason = _state(state, now)
    standing = state.standing(now)
    return pb.StatusReply(
        run=state.history.run,
        shard=state.number,
        epoch=state.history.epoch,
        instance=state.instance,
        state=does,
        reason=reason,
        tick=state.clock.tick,
        steps=state.ending.length.steps or 0,
        tokens=state.ending.length.tokens,
        trained=state.sessions.counted,
        slots=[_slot(state, slot, now) for _, slot in sorted(state.sessions.slots.items())],
        commits=state.history.commits,
        quorum=standing.quorum,
        grace_seconds=max((each.grace_seconds for each in rounds), default=0.0),
        registrar=state.registrar,
        ticks_per_second=state.clock.ticks_per_second,
        evaluation=state.sessions.evaluation,
        late_share=_late_share(slot.report for slot in state.sessions.slots.values()),
        refused_zombies=state.sessions.zombies_refused,
        counts=counts(state, now),
        merges=state.history.merges,
        merged_offers=state.history.merged_offers,
        seconds=state.sessions.uptime.seconds,
        training_seconds=state.sessions.uptime.training_seconds,
        learners={each.name: each.learners for each in state.expected.regions},
        unread=len(state.reading.unread),
    )


def _state(state: ShardState, now: float) -> tuple[pb.ShardState, str]:
    if state.failed:
        return pb.SHARD_FAILED, state.failed
    if state.ending.complete:
        return pb.SHARD_COMPLETE, ""
    if state.recovery is not None:
        return pb.SHARD_RECOVERING, recovery.why(state, now)
    if state.history.ended:
        return pb.SHARD_FINAL, ""
    if not state.history.run:
        return pb.SHARD_STARTING, "no run has started yet"
    if not state.history.heads:
        refused = state.seed.refused
        return pb.SHARD_SEEDING, refused or "waits for a learner's first values"
    if not state.serving:
        return pb.SHARD_STARTING, "waits for the registrar"
    if late := seeding.missing(state):
        left = f"at most {seeding.seconds_left(state, now):.0f} s more"
        return pb.SHARD_SEEDING, f"waits for {', '.join(late)} to begin together, {left}"
    return pb.SHARD_SERVING, ""


def why_no_export(state: ShardState, run_hash: str, now: float) -> str:
    """Why no export of a job that trains can be taken here now (rule 36); empty: one can."""
    if run_hash != state.run_file.hash:
        return "spec.sync, seed or syncer.shards differ from this shard's"
    _, reason = _state(state, now)
    if state.reading.unread:
        reason = reason or "the shard reads its values back"
    return "" if state.history.heads and state.is_whole else reason


def _slot(state: ShardState, slot: Slot, now: float) -> pb.SlotStatus:
    taken = state.history.taken.get(slot.name)
    owned = state.history.owned.get(slot.name)
    report, alive = slot.report, slot.session is not None
    merge = state.rounds.shares.get(slot.name, NO_SHARE)
    return pb.SlotStatus(
        slot=slot.name,
        state=slot.state(now),
        incarnation=taken.incarnation if taken else 0,
        uid=taken.uid if taken else "",
        instance=taken.instance if taken else "",
        t_m=report.t_m,
        step_seconds=report.step_seconds,
        loss=report.loss,
        first_losses=report.first_losses,
        tokens=slot.tokens,
        tokens_here=slot.tokens - slot.restored,
        seconds_since_report=now - slot.reported_at,
        cursor=report.cursor,
        busy_share=report.busy_share,
        blocked_seconds=report.blocked_seconds,
        owner_uid=owned.uid if owned else "",
        owner_generation=owned.generation if owned else 0,
        merge_share=merge.share,
        merge_tokens_per_step=merge.tokens_per_step,
        merges_over_half=merge.over_half,
        above_tokens_per_step=state.rounds.above.get(slot.name, 0.0),
        reason=("" if alive else slot.left) or _refused(state, slot),
        finished=report.finished,
        late_share=_late_share([report]),
        trouble=printable(" ".join(report.trouble.split()), TROUBLE_LETTERS_MAX),
    )


def _late_share(reports: Iterable[pb.Report]) -> float:
    """Return the share of the tokens of these processes that came too late for a merge."""
    counts = [(each.late, each.tokens) for each in reports]
    return sum(late for late, _ in counts) / max(1, sum(tokens for _, tokens in counts))


def _refused(state: ShardState, slot: Slot) -> str:
    """Why nothing of this slot is merged at present; empty when an offer of it was merged since."""
    refused = state.rounds.refused.get(slot.name)
    if refused is None:
        return ""
    offers = "its last offer was" if refused.count == 1 else f"its last {refused.count} offers were"
    return f"{offers} refused: {refused.reason}"


ANSWER_SECONDS_MAX: Final = 30.0  # in which a Call is answered, or something comes before it
LOOKED_AT_PER_SECOND: Final = 100e6  # bytes of its values, before a learner sends a seed
ANSWER_STEPS: Final = 2  # steps after a Call by which it must have been answered
NO_ANSWER: Final = (
    f"no offer came in {ANSWER_SECONDS_MAX:.0f} s after its Call, although the learner trains"
)


def unanswered(state: ShardState, now: float) -> list[Effect]:
    """End the sessions that have answered a Call for too long with nothing at all (rule 10).

    A learner answers at its next step boundary, and its transfers come one after the other, so the
    time since the Call alone says nothing. A Call of a round that has closed need not be answered.
    """
    effects: list[Effect] = []
    for number, session in sorted(state.sessions.open.items()):
        if session.receiving or not session.credits:
            continue
        position = state.sessions.slots[session.slot].report.t_m
        for fragment, credit in sorted(session.credits.items()):
            each = state.rounds.open.get(fragment)
            if each is None or each.closed_at is not None or each.base != credit.base:
                continue
            silent_seconds = now - max(session.heard_at, credit.called_at)
            if silent_seconds > ANSWER_SECONDS_MAX and position >= credit.t_m + ANSWER_STEPS:
                reason = f"slice {fragment}: {NO_ANSWER}"
                calls.refused(state, session.slot, fragment, reason, final=True)
                effects.append(end_session(number, pb.BAD_TRANSFER, reason))
                break
    return effects


def unseeded(state: ShardState, now: float) -> list[Effect]:
    """End the session that was asked for version 0 and from which nothing comes (rule 1).

    A learner looks at all its values before it sends them, which takes time in a large model.
    """
    asked = state.seed.session
    session = None if asked is None else state.sessions.open.get(asked)
    if session is None or session.receiving or seeding.is_whole(state):
        return []
    allowed = ANSWER_SECONDS_MAX + seeding.byte_count(state) / LOOKED_AT_PER_SECOND
    if now - max(session.heard_at, seeding.asked_at(state, now)) <= allowed:
        return []
    reason = f"no seed came in {allowed:.0f} s after it was asked for"
    return [end_session(session.number, pb.BAD_TRANSFER, reason)]
