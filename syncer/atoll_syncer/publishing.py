"""What a session holds of the heads, and what it is to get (rules 13, 17, 24)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.effects import Effect, PublishHead
from atoll_syncer.roster import Session
from atoll_syncer.state import State


def publish(state: State, session: int, fragment: int) -> pb.Publish | None:
    """The head as this session gets it, asked for when it is actually sent."""
    receiver, head = state.sessions.get(session), state.history.heads.get(fragment)
    if receiver is None or head is None:
        return None
    message = pb.Publish(version=state.head(fragment), tick=state.clock.tick, last=head.last)
    merged = state.history.merged.get((fragment, receiver.slot))
    if merged is not None:
        incarnation, base, capture = merged
        message.merged.CopyFrom(pb.Merged(incarnation=incarnation, base=base, capture=capture))
    return message


def note_held(state: State, joined: Session) -> None:
    """Which heads a Join names by their whole name."""
    for each in joined.join.held:
        head = state.history.heads.get(each.slice)
        if head is None or each.version.run != state.history.run:
            continue
        if each.version.digest == head.digest:
            joined.held[each.slice] = head.number


def what_it_lacks(state: State, joined: Session) -> list[Effect]:
    """At a Welcome: the heads that it does not hold."""
    return [
        PublishHead(joined.number, fragment)
        for fragment, head in sorted(state.history.heads.items())
        if joined.held.get(fragment) != head.number
    ]


def all_to(state: State, session: int) -> list[Effect]:
    """Every head to one session."""
    return [PublishHead(session, fragment) for fragment in sorted(state.history.heads)]


def to_all(state: State, fragment: int) -> list[Effect]:
    """One slice's head to every session."""
    return [PublishHead(number, fragment) for number in state.welcomed]
