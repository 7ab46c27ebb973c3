"""Shards without their store, and learners that bring versions back to them."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from unit.syncer.shard_side import KEY, RUN, Side, run_file, side, version


def hello(one: Side, *alive: str, begun: bool = True) -> None:
    """The registrar's word."""
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY, begun=begun, alive=alive), one.now))


def empty_shard(*alive: str, **sync: Any) -> Side:
    """Shard 1 of a job that had begun, with a new store."""
    one = side(shard=1, job=run_file(shards=2, **sync)).start()
    hello(one, *alive)
    hello(one, *alive)
    return one


def held_by(one: Side, slot: str, *numbers: int, epoch: int = 1, incarnation: int = 1) -> int:
    """A learner joins with these versions; the shard begins a term above what it has seen."""
    held = [version(fragment, n, epoch=epoch) for fragment, n in enumerate(numbers)]
    fields: dict[str, Any] = {
        "incarnation": incarnation,
        "run": RUN,
        "held": held,
        "epochs_seen": [1, epoch][: one.job.shards],
    }
    session = one.join(slot, tick_seen=40, **fields)
    if session not in one.state.sessions.open:  # the shard began a higher epoch (rule 20)
        session = one.join(slot, tick_seen=40, **fields)
    one.model(session)
    return session


def asked(one: Side) -> list[tuple[int, int, int]]:
    return [
        (session, message.version.slice, message.version.version.number)
        for session, message in one.sent("send_held")
    ]
