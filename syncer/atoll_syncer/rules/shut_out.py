"""Who is shut out: slots that are not on the job's list, or not any more (rule 41).

Who is not on the list (`atoll_protos.job.run_file`) has a grace of GRACE_SECONDS, which begins

    was on the list     at the moment at which this shard has read a list without it
    was on none         at the first Join of such a slot of its region

A process gives none to a slot or region of its log that is not on the list with which it starts: a
restart lets nobody in again. Certificates that are revoked, or have expired, shut out at once; so
does a list that takes a machine, or one of its slots, away.
"""

from collections.abc import Mapping
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Expected
from atoll_protos.names import split_slot
from atoll_syncer.model.effects import Effect, EndSession, refuse
from atoll_syncer.model.roster import Certificate
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules import rounds

GRACE_SECONDS: Final = 90.0  # until an edit of the list has come to every shard and learner
NEVER: Final = float("inf")


def heard(state: ShardState, expected: Expected, now: float) -> list[Effect]:
    known, before = state.shut_out, state.expected
    state.expected = expected
    for slot in before.every - expected.every:
        known.unlisted[slot] = now
    for slot in expected.every - before.every:
        known.unlisted.pop(slot, None)
    were = {each.name: each.learners for each in before.regions}
    for each in expected.regions:
        if each.learners > were.get(each.name, 0):
            known.newcomers.pop(each.name, None)
    revoked = {
        each.region
        for each in expected.limits
        if each.generation > before.limit(each.region).generation
    }
    given = expected.given
    taken_away = {
        slot
        for name, slots in before.given.items()
        for slot in slots.difference(given.get(name, ()))
    }
    effects: list[Effect] = []
    for slot in _offered(state) if revoked or taken_away else ():
        if split_slot(slot)[0] in revoked or slot in taken_away:
            effects += rounds.withdraw(state, slot, state.standing(now))
    return [*effects, *_outdated(state, now)]


def refusal(
    state: ShardState, join: pb.Join, certificate: Certificate, now: float
) -> pb.End | None:
    """Whether it may join; a slot that is not on the list has its grace from now on."""
    slot = "" if join.observer else join.slot
    end = _of_certificate(state, certificate, slot, state.expected.given, now)
    if end is not None or join.observer:
        return end
    try:
        region, _ = split_slot(slot)
    except SpecError:
        return None  # it is refused for its name
    if _is_listed(state, slot):
        return None
    if slot not in state.shut_out.unlisted and region not in state.shut_out.newcomers:
        state.shut_out.newcomers[region] = -NEVER if _has_left(state, slot, region) else now
    return _end(state, slot, region) if is_out(state, slot, now) else None


def is_out(state: ShardState, slot: str, now: float) -> bool:
    if _is_listed(state, slot):
        return False
    since = state.shut_out.unlisted.get(slot)
    if since is None:
        since = state.shut_out.newcomers.get(split_slot(slot)[0], NEVER)
    return now >= since + GRACE_SECONDS


def time_passed(state: ShardState, now: float) -> list[Effect]:
    """End the sessions of those whose time is over, and drop what a slot without one offers."""
    effects = _outdated(state, now)
    if not (state.shut_out.unlisted or state.shut_out.newcomers):
        return effects
    for slot in _offered(state):
        if is_out(state, slot, now):
            effects += rounds.withdraw(state, slot, state.standing(now))
    ended = {each.session for each in effects if isinstance(each, EndSession)}
    for number, session in sorted(state.sessions.open.items()):
        if session.slot and number not in ended and is_out(state, session.slot, now):
            end = _end(state, session.slot, split_slot(session.slot)[0])
            effects.append(EndSession(number, end))
    return effects


def _offered(state: ShardState) -> list[str]:
    """Slots of which an open round has an offer, also without a session."""
    return sorted({slot for each in state.rounds.open.values() for slot in each.complete})


def _outdated(state: ShardState, now: float) -> list[Effect]:
    """End all sessions whose certificates are over, also those that wait for the run."""
    shown = {number: (each.slot, each.certificate) for number, each in state.sessions.open.items()}
    shown |= {number: (join.slot, each) for number, (join, each) in state.sessions.early.items()}
    given = state.expected.given
    ends = (
        (number, _of_certificate(state, certificate, slot, given, now))
        for number, (slot, certificate) in sorted(shown.items())
    )
    return [EndSession(number, end) for number, end in ends if end is not None]


def _of_certificate(
    state: ShardState,
    shown: Certificate,
    slot: str,
    given: Mapping[str, frozenset[str]],
    now: float,
) -> pb.End | None:
    if now >= shown.until:
        return refuse(
            pb.NOT_ALLOWED,
            "the certificate of this session has expired",
            "renew the credentials of this process; it tries again",
            retry=True,
        )
    if shown.region and shown.generation < state.expected.limit(shown.region).generation:
        return refuse(
            pb.NOT_ALLOWED,
            f"the certificates of region {shown.region} have been revoked",
            "bring those that `atoll credentials` prints now; this process tries again",
            retry=True,
        )
    if shown.machine and slot not in given.get(shown.machine, ()):
        lacks = f"slot {slot}" if shown.machine in given else "place"
        return refuse(
            pb.NOT_ALLOWED,
            f"machine {shown.machine} has no {lacks} on the job's list, or not any more",
            "give it one again; this process tries again",
            retry=True,
        )
    return None


def _is_listed(state: ShardState, slot: str) -> bool:
    return not state.expected.regions or slot in state.expected.every


def _has_left(state: ShardState, slot: str, region: str) -> bool:
    """Whether the log names it, or where its whole region is not on the list, any slot of that."""
    taken = state.history.taken
    if slot in taken or any(each.name == region for each in state.expected.regions):
        return slot in taken
    return any(split_slot(each)[0] == region for each in taken)


def _end(state: ShardState, slot: str, region: str) -> pb.End:
    learners = {each.name: each.learners for each in state.expected.regions}.get(region)
    has = f"no region {region}" if learners is None else f"{learners} learners of region {region}"
    return refuse(
        pb.UNKNOWN_SLOT,
        f"{slot} is shut out: the manifest in the syncer's cluster has {has}",
        "apply one manifest in all clusters, first in that of the syncer; this process tries again",
        retry=True,
    )
