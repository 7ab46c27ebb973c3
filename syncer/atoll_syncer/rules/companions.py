"""The companion: what an export needs beside the values that travel (rule 36).

    version 0 is durable --SendCompanion--> parts arrive --each stored, all named--> its entry
        ^                                      |
        +--------- session closed -------------+

    the job has ended --SendCompanion(changed) to all--> the first whole one --> its entry

The export waits for both while a learner that has one is connected, and WAITS_SECONDS at most.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.companion import (
    BYTES_MAX,
    CHANGED_BYTES_MAX,
    WAITS_SECONDS,
    part_bytes,
    part_count,
)
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, Send, TapeLine
from atoll_syncer.model.state import ShardState

# ------------------------------------------------------------ asking


def ask(state: ShardState) -> list[Effect]:
    known = state.history.heads and state.term.durable and state.recovery is None
    if not state.registrar or not known or state.history.closed is not None:
        return []
    companion, effects = state.companion, list[Effect]()
    havers = _learners_with_one(state)
    if not state.history.companion and companion.session is None and havers:
        companion.session, companion.objects = havers[0], ()
        effects.append(_send(havers[0], changed=False))
    if state.history.ended and not state.history.companion_changed:
        new = [each for each in havers if each not in companion.changed_asked]
        companion.changed_asked.update(new)
        effects += [_send(each, changed=True) for each in new]
    return effects


def _send(session: int, *, changed: bool) -> Effect:
    return Send(session, pb.ToLearner(send_companion=pb.SendCompanion(changed=changed)))


def _learners_with_one(state: ShardState) -> list[int]:
    opened = state.sessions.open
    return [n for n in state.sessions.welcomed if opened[n].slot and opened[n].join.has_companion]


def session_closed(state: ShardState, session: int) -> None:
    companion = state.companion
    companion.changed_asked.discard(session)
    if companion.session == session and not companion.is_logged:
        companion.session = None  # whose parts the next `ask` forgets


# ------------------------------------------------------------ arriving


def objection(state: ShardState, session: int, transfer: pb.Transfer) -> str:
    """Why a part may not come; empty when it may."""
    companion, part = state.companion, transfer.companion
    expected, most = len(companion.objects), BYTES_MAX
    asked = companion.session == session and not companion.is_logged
    if part.changed:
        asked, expected, most = session in companion.changed_asked, 0, CHANGED_BYTES_MAX
    if not asked:
        return "this session was not asked for a companion"
    if not 0 < part.companion_bytes <= most:
        return f"a companion of {part.companion_bytes} bytes; the most is {most}"
    if part.part != expected or part.part >= part_count(part.companion_bytes):
        return f"part {part.part} of a companion is out of place"
    if transfer.byte_count != part_bytes(part.companion_bytes, part.part):
        return f"part {part.part} of a companion has {transfer.byte_count} bytes"
    return ""


def wants(state: ShardState, session: int, part: pb.Companion) -> bool:
    companion = state.companion
    if part.changed:
        return session in companion.changed_asked and not companion.is_changed_logged
    return companion.session == session and part.part == len(companion.objects)


def stored(state: ShardState, session: int, part: pb.Companion, name: str) -> list[Effect]:
    if not wants(state, session, part):
        return [_taken(session)] if part.changed and _is_whole(state) else []
    companion = state.companion
    objects: tuple[str, ...] = (name,)
    if part.changed:
        companion.is_changed_logged = True
    else:
        companion.objects = objects = (*companion.objects, name)
        if len(objects) < part_count(part.companion_bytes):
            return []
        companion.is_logged = True
    entry = log.CompanionStored(
        objects=objects, byte_count=part.companion_bytes, changed=part.changed
    )
    return [Append(entry)]


def appended(state: ShardState, entry: log.CompanionStored) -> list[Effect]:
    """It is durable: with both, whoever was asked at the end may leave."""
    record = {"event": "companion", "bytes": entry.byte_count, "changed": entry.changed}
    asked = sorted(state.companion.changed_asked) if _is_whole(state) else []
    return [TapeLine(record), *(_taken(each) for each in asked)]


def _is_whole(state: ShardState) -> bool:
    return bool(state.history.companion and state.history.companion_changed)


def _taken(session: int) -> Effect:
    return Send(session, pb.ToLearner(companion_taken=pb.CompanionTaken()))


# ------------------------------------------------------------ the export waits


def is_awaited(state: ShardState) -> bool:
    if state.companion.given_up or _is_whole(state):
        return False
    under_way = state.companion.is_logged and not state.history.companion
    return under_way or bool(_learners_with_one(state))


def time_passed(state: ShardState, now: float) -> None:
    """The export's patience, which begins when every shard's part is there."""
    companion = state.companion
    if len(state.history.finals) < state.run_file.shards or not state.registrar:
        return
    if companion.awaited_since is None:
        companion.awaited_since = now
    companion.given_up = now >= companion.awaited_since + WAITS_SECONDS
