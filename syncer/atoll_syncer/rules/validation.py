"""What others send is checked here before any other rule uses it (rule 38).

`atoll_protos.bounds` has the table of what each field keeps to; here is what depends on the state.
Each function returns an objection in words; empty when the message can be true. What is plausible
and yet untrue is another matter: rule 22 says how far a claim to hold a version is believed, and
rule 39 how far a claim about the clock is.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import bounds
from atoll_protos.bounds import AHEAD_MAX, above, first
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Fragments
from atoll_protos.names import PROTOCOL, split_slot
from atoll_syncer.model.state import ShardState

SLICES_MAX: Final = 4_096  # that a Join may name while no layout is known
PART_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


def of_join(state: ShardState, join: pb.Join) -> str:
    """Of this protocol and run file only: others are refused for that, and nothing is read."""
    if join.protocol != PROTOCOL or join.run_hash != state.run_file.hash:
        return ""
    mine = state.number
    epoch = join.epochs_seen[mine] if len(join.epochs_seen) > mine else 0
    return (
        bounds.objection(join)
        or above("tick_seen", join.tick_seen, state.ending.length.ticks_max)
        or above("epochs_seen", len(join.epochs_seen), state.run_file.shards)
        or above("epochs_seen", epoch, max(state.term.epoch, state.history.epoch) + AHEAD_MAX)
        or _of_incarnations(state, join.slot, join.incarnation)
        or _of_slices(state, [held.slice for held in join.held])
        or _of_versions(state, (held.version.number for held in join.held))
    )


def of_message(state: ShardState, message: pb.ToShard) -> str:
    """Check a control message after the Join. A Model is checked with its layout (seeding)."""
    report = message.report
    return (
        bounds.objection(message)
        or above("late", report.late, report.tokens)
        or above("epochs_seen", len(report.epochs_seen), state.run_file.shards)
        or _of_slices(state, [progress.slice for progress in report.slices])
        or _of_versions(state, (progress.held for progress in report.slices))
    )


def of_transfer(state: ShardState, transfer: pb.Transfer) -> str:
    """Return the head of one; its slice, its permission and its size are judged in sessions."""
    held = transfer.held
    return (
        bounds.objection(transfer)
        or _of_versions(state, [held.version.version.number])
        or _of_lineage(state, held.lineage)
    )


def _of_lineage(state: ShardState, lineage: Sequence[pb.SlotMerged]) -> str:
    """Return what a held version is said to hold of every slot: it becomes part of an entry."""
    if len({merged.slot for merged in lineage}) < len(lineage):
        return "a slot is named twice"
    return first(
        of_slot(state, merged.slot)
        or _of_incarnations(state, merged.slot, merged.incarnation, merged.trained.incarnation)
        for merged in lineage
    )


def of_call(state: ShardState, request: Any) -> str:
    objection = bounds.objection(request)
    match request:
        case pb.HelloRequest():
            return objection or _of_shard(state, request.shard) or _of_hello(state, request)
        case pb.MarkBegunRequest():
            return objection or _of_shard(state, request.shard)
        case pb.ReportFinalRequest() if PART_FILE.fullmatch(request.file) is None:
            return f"file {request.file!r} is no plain relative path"
        case pb.ReportFinalRequest():
            return objection or _of_shard(state, request.shard)
        case pb.SetOwnerRequest():
            return objection or of_slot(state, request.slot)
    return f"{type(request).__name__} is no call of the registrar"


def _of_hello(state: ShardState, request: pb.HelloRequest) -> str:
    if request.run_hash != state.run_file.hash:
        return "spec.sync, seed or syncer.shards differ from the registrar's"
    return first(of_slot(state, named.slot) for named in request.named) or first(
        of_slot(state, taken.slot) or _of_incarnations(state, taken.slot, taken.incarnation)
        for taken in request.taken
    )


def _of_shard(state: ShardState, shard: int) -> str:
    return above("shard", shard, state.run_file.shards - 1)


def of_slot(state: ShardState, slot: str) -> str:
    try:
        region, _ = split_slot(slot)
    except SpecError as error:
        return str(error)
    return "" if state.run_file.has_region(region) else f"slot {slot}: region {region} is unknown"


def _of_incarnations(state: ShardState, slot: str, *incarnations: int) -> str:
    taken = state.history.taken.get(slot)
    known = max(taken.incarnation if taken else 0, state.history.named.get(slot, 0))
    return above(f"incarnation of {slot}", max(incarnations), known + AHEAD_MAX)


def _of_versions(state: ShardState, numbers: Iterable[int]) -> str:
    return above("version", max(numbers, default=0), state.ending.length.ticks_max)


def _of_slices(state: ShardState, slices: Sequence[int]) -> str:
    """Each once, and of this shard; while no layout is known their number is not either."""
    unknown = state.layout is None and state.run_file.sync.fragments is Fragments.AUTO
    known = range(SLICES_MAX) if unknown else state.fragments
    for fragment in slices:
        if fragment not in known:
            return f"slice {fragment} is unknown"
    return "" if len(set(slices)) == len(slices) else "a slice is named twice"
