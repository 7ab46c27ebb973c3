"""What is not answered: a learner that says nothing must not hold others up for ever."""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect, end_session
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules import seeding
from atoll_syncer.rules.rounds import calls

ANSWER_SECONDS_MAX: Final = 30.0  # in which a Call is answered, or something comes before it
WORD_SECONDS: Final = (1.2, 2.0)  # between two reports, at least and at most (rule 7)
TOGETHER_SECONDS: Final = 5.0  # who was heard so much earlier than the last one was lost before
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


def last_heard(state: ShardState) -> float | None:
    """When a learner was last heard in this term; None: none has joined."""
    return max((each.reported_at for each in state.sessions.slots.values()), default=None)


def word_seconds(state: ShardState) -> float | None:
    """In which time one of the learners that are here says something (rule 46).

    None: nobody is expected, since those that were heard last have left, or the job is over.
    """
    least, most = WORD_SECONDS
    slots = state.sessions.slots.values()
    since = (last_heard(state) or 0.0) - TOGETHER_SECONDS
    here = [each for each in slots if not each.left and each.reported_at >= since]
    if not here or state.history.ended:
        return None
    if state.sync.lockstep:
        return most  # who waits for a version makes no step
    steps = [each.report.step_seconds or most for each in here]
    return min(most, max(least, min(steps)))
