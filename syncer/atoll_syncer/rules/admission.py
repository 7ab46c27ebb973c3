"""Who may join: the registrar's and every shard's answer to a Join (PROTOCOL.md, rules 3-5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD, split_slot
from atoll_protos.run import RunFile
from atoll_syncer.model.effects import EndSession
from atoll_syncer.model.log import History, Taken

REMEDIES: Final[Mapping[int, str]] = {
    pb.SUPERSEDED: "end this process; another one has its place",
    pb.OTHER_LAYOUT: "give every learner the same model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Welcome it; with `entry` only after that entry is durable."""

    incarnation: int
    entry: Taken | None = None


def refuse(code: pb.Code, reason: str, remedy: str, *, retry: bool = False) -> pb.End:
    """A refusal or an end, with what to do about it."""
    return pb.End(code=code, reason=reason, remedy=remedy, retry=retry)


def end_session(session: int, code: pb.Code, reason: str) -> EndSession:
    """A session ends, with the remedy that goes with the code."""
    retry = code in (pb.BAD_MESSAGE, pb.BAD_TRANSFER, pb.REPLACED)
    return EndSession(session, refuse(code, reason, REMEDIES.get(code, "join anew"), retry=retry))


def check(join: pb.Join, run_file: RunFile, layout_digest: str, run: str) -> pb.End | None:
    """What must be equal everywhere (rule 3); None when all is well."""
    if join.protocol != PROTOCOL:
        return refuse(
            pb.OTHER_PROTOCOL,
            f"protocol {join.protocol}, this shard speaks {PROTOCOL}",
            "run one version of Atoll everywhere",
        )
    if join.run_hash != run_file.hash:
        return refuse(
            pb.OTHER_RUN_HASH,
            "spec.sync, seed or syncer.shards differ from this shard's",
            "apply one manifest everywhere",
        )
    if layout_digest and join.layout_digest != layout_digest:
        return refuse(
            pb.OTHER_LAYOUT,
            "the model's tensors differ from those of this run",
            "give every learner the same model, or start another job",
        )
    if not run:
        return refuse(pb.NOT_READY, "no run has started yet", "try again", retry=True)
    if join.observer:
        return None
    try:
        region, _ = split_slot(join.slot)
    except SpecError as error:
        return refuse(pb.UNKNOWN_SLOT, str(error), error.remedy)
    if region not in {each.name for each in run_file.regions}:
        known = ", ".join(each.name for each in run_file.regions)
        return refuse(
            pb.UNKNOWN_SLOT,
            f"slot {join.slot}: region {region} is not of this job",
            f"use one of spec.regions: {known}",
        )
    return None


def admit(
    join: pb.Join, history: History, *, shard: int, live_instance: str, pending: bool
) -> Admitted | pb.End:
    """Rules 4 and 5. `live_instance` has the slot's session; `pending`: its entry is on its way."""
    taken = history.taken.get(join.slot)
    highest = taken.incarnation if taken else 0
    if taken is not None and taken.instance == join.instance and join.incarnation in (0, highest):
        return Admitted(incarnation=highest)  # asking again returns the same
    if join.instance in history.superseded.get(join.slot, ()) or 0 < join.incarnation <= highest:
        return _superseded(join, highest)
    if pending:
        return refuse(pb.SLOT_HELD, f"{join.slot} is being given away", "try again", retry=True)
    if join.incarnation == 0 and shard != REGISTRAR_SHARD:
        return refuse(
            pb.NOT_READY, "the registrar gives incarnations", "join shard 0 first", retry=True
        )
    if join.incarnation == 0 and (end := _owner_objects(join, history, live_instance)) is not None:
        return end
    incarnation = join.incarnation or max(highest, history.named.get(join.slot, 0)) + 1
    entry = Taken(slot=join.slot, incarnation=incarnation, uid=join.uid, instance=join.instance)
    return Admitted(incarnation=incarnation, entry=entry)


def _owner_objects(join: pb.Join, history: History, live_instance: str) -> pb.End | None:
    owned, taken = history.owned.get(join.slot), history.taken.get(join.slot)
    if owned is not None:
        if owned.uid == join.uid:
            return None
        if taken is not None and taken.uid == join.uid:
            return _superseded(join, taken.incarnation)
        return refuse(
            pb.NOT_READY,
            f"the operator named another pod owner of {join.slot}",
            "wait for the operator's next word",
            retry=True,
        )
    if live_instance and live_instance != join.instance:
        return refuse(
            pb.SLOT_HELD,
            f"{join.slot} has a live session of {live_instance}",
            "stop that process, or wait until its session ends",
            retry=True,
        )
    return None


def _superseded(join: pb.Join, highest: int) -> pb.End:
    return refuse(
        pb.SUPERSEDED,
        f"{join.slot} has gone on to incarnation {highest}",
        "end this process; another one has its place",
    )
