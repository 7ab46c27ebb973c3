"""Incarnations: which instance of a slot gets one, and what shows the other shards that it did.

`admit` decides, and a *proof* shows it (rules 4 and 5). A registrar that has lost the entry with
the key of proofs has another key, while shards with the former one in their logs go on: both count.
"""

import hmac
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.model.effects import refuse
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Taken
from atoll_syncer.model.state import ShardState


def key(state: ShardState) -> str:
    """The registrar's, as it tells it to the other shards."""
    return state.history.key or state.run.key


def proof(state: ShardState, join: pb.Join, incarnation: int) -> str:
    """That the registrar has given this instance this incarnation; empty elsewhere."""
    return (
        ""
        if join.observer or not state.registrar
        else made(key(state), state.history.run, join, incarnation)
    )


def is_proved(state: ShardState, join: pb.Join) -> bool:
    """Whether the Join shows a proof of its incarnation, as far as this shard knows the key."""
    keys = filter(None, (state.history.key, state.run.key))
    proofs = (made(each, state.history.run, join, join.incarnation) for each in keys)
    return any(hmac.compare_digest(each.encode(), join.proof.encode()) for each in proofs)


def made(secret: str, run: str, join: pb.Join, incarnation: int) -> str:
    """Hexadecimal; each part is told apart from the next by its length."""
    parts = [run, join.slot, str(incarnation), join.instance]
    text = "".join(f"{len(each)}:{each}" for each in parts)
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


# ------------------------------------------------------------ who gets one


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Welcome the instance; with an `entry`, only after that entry is durable."""

    incarnation: int
    entry: Taken | None = None


def admit(
    join: pb.Join, history: History, *, shard: int, live_instance: str, pending: bool, proved: bool
) -> Admitted | pb.End:
    """Rules 4 and 5.

    `live_instance` has the slot's session; `pending`: its entry is on its way; `proved`: the Join
    has a proof that the registrar gave the incarnation.
    """
    taken = history.taken.get(join.slot)
    highest = taken.incarnation if taken else 0
    if taken is not None and taken.instance == join.instance and join.incarnation in (0, highest):
        return Admitted(incarnation=highest)  # asking again returns the same
    if join.instance in history.superseded.get(join.slot, ()) or 0 < join.incarnation <= highest:
        return _superseded(join, highest)
    if pending:
        return refuse(pb.SLOT_HELD, f"another instance is joining as {join.slot}")
    if join.incarnation == 0 and shard != REGISTRAR_SHARD:
        return refuse(pb.NOT_READY, "the registrar gives incarnations", "join shard 0 first")
    if shard != REGISTRAR_SHARD and not proved:
        what = f"nothing shows that incarnation {join.incarnation} of {join.slot} was given"
        return refuse(pb.NOT_READY, what, "join shard 0 again, whose Welcome brings a proof")
    if shard == REGISTRAR_SHARD:
        others = (slot for slot, each in history.taken.items() if each.instance == join.instance)
        if other := next((slot for slot in others if slot != join.slot), ""):
            return of_another_run(f"{join.instance} has the slot {other}")
        if join.incarnation > 0 and not _may_have_given(join, history):
            return of_another_run(f"incarnation {join.incarnation} of {join.slot} was never given")
        if (end := _owner_objects(join, history, live_instance)) is not None:
            return end
    incarnation = join.incarnation or max(highest, history.named.get(join.slot, 0)) + 1
    entry = Taken(slot=join.slot, incarnation=incarnation, uid=join.uid, instance=join.instance)
    return Admitted(incarnation=incarnation, entry=entry)


def _may_have_given(join: pb.Join, history: History) -> bool:
    """Whether the registrar may have given it, with a part of its log lost (rules 4, 22)."""
    named = join.incarnation <= history.named.get(join.slot, 0)
    return join.run == history.run and (history.incomplete or named)


def of_another_run(reason: str) -> pb.End:
    """Its state must not meet this run's; a new process has none (rule 2)."""
    return refuse(pb.OTHER_RUN, reason)


def _owner_objects(join: pb.Join, history: History, live_instance: str) -> pb.End | None:
    """Whether the operator's word, or a live session, keeps this instance out (rule 4)."""
    owned, taken = history.owned.get(join.slot), history.taken.get(join.slot)
    if owned is not None:
        if owned.uid == join.uid:
            return None
        if taken is not None and taken.uid == join.uid:
            return _superseded(join, taken.incarnation)
        return refuse(
            pb.NOT_READY,
            f"the operator named another pod owner of {join.slot}",
            "wait until the operator names this pod",
        )
    if taken is not None and join.uid in history.superseded_uids.get(join.slot, ()):
        return _superseded(join, taken.incarnation)
    if live_instance and live_instance != join.instance:
        return refuse(
            pb.SLOT_HELD,
            f"{join.slot} has a live session of {live_instance}",
            "stop that process, or wait until its session ends",
        )
    return None


def _superseded(join: pb.Join, highest: int) -> pb.End:
    return refuse(pb.SUPERSEDED, f"{join.slot} has a newer process, with incarnation {highest}")
