"""What others say is checked here, field by field, before any other rule looks at it (rule 38).

Each function answers with an objection in words; empty when the message can be true. A counter is
below 2^53, so that every sum of counters fits the fields in which it travels and is kept. What is
plausible and yet untrue is another matter: rule 22 says how far a claim to hold a version is
believed, and rule 39 how far a claim about the clock is.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Fragments
from atoll_protos.names import COUNTER_MAX, PROTOCOL, split_slot
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import ShardState

AHEAD_MAX: Final = 1_000_000  # of epochs and incarnations, above what is known here
SECONDS_MAX: Final = 1e9
LETTERS_MAX: Final = 512  # of a name, a digest, an id
TEXT_LETTERS_MAX: Final = 10_000  # of a reason in words
SLICES_MAX: Final = 4_096  # that a Join may name while no layout is known
SLOTS_MAX: Final = 20_000  # that a Hello or a lineage may name
PART_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


# ------------------------------------------------------------ sessions


def of_join(state: ShardState, join: pb.Join) -> str:
    """Of this protocol and run file only: others are refused for that, and nothing is read."""
    if join.protocol != PROTOCOL or join.run_hash != state.run_file.hash:
        return ""
    taken = state.history.taken.get(join.slot)
    incarnations = max(taken.incarnation if taken else 0, state.history.named.get(join.slot, 0))
    mine = state.number
    epoch = join.epochs_seen[mine] if len(join.epochs_seen) > mine else 0
    names = (join.run_hash, join.layout_digest, join.slot, join.uid, join.instance, join.run)
    return (
        _of_names((*names, join.frozen_digest, join.proof))
        or _of_counters(join, "t_m", "cursor")
        or _most("tick_seen", join.tick_seen, state.ending.length.ticks_max)
        or _most("epochs_seen", len(join.epochs_seen), state.run_file.shards)
        or _most("epochs_seen", max(join.epochs_seen, default=0), COUNTER_MAX)
        or _most("epochs_seen", epoch, max(state.term.epoch, state.history.epoch) + AHEAD_MAX)
        or _most("incarnation", join.incarnation, incarnations + AHEAD_MAX)
        or _of_slices(state, [each.slice for each in join.held])
        or next(filter(None, (_of_version(state, each.version) for each in join.held)), "")
    )


def of_message(state: ShardState, sender: Session, message: pb.ToShard) -> str:
    """A control message after the Join. A Model is looked at where its layout is made (seeding)."""
    match message.WhichOneof("kind"):
        case "report":
            return of_report(state, message.report)
        case "leave":
            return _of_text([message.leave.reason], TEXT_LETTERS_MAX)
        case "evaluation":
            evaluation = message.evaluation
            return _of_counters(evaluation, "tick", "tokens") or _of_seconds(evaluation, "seconds")
        case "model":
            table = message.model
            words = (t for each in table.tensors for t in (each.name, each.dtype, each.merge))
            return _of_names([table.layout_digest, *words])
    return ""


def of_report(state: ShardState, report: pb.Report) -> str:
    """The loss is for people and may be anything: a learner that diverges says so."""
    return (
        _of_counters(report, "t_m", "tokens", "cursor", "tick_seen", "reached")
        or _most("late", report.late, report.tokens)
        or _of_counters(report.settled, "overlap", "late")
        or _of_seconds(report, "step_seconds", "publish_seconds", "busy_share", "blocked_seconds")
        or _of_text([report.trouble], TEXT_LETTERS_MAX)
        or _most("epochs_seen", len(report.epochs_seen), state.run_file.shards)
        or _of_slices(state, [each.slice for each in report.slices])
        or next(filter(None, (_of_progress(state, each) for each in report.slices)), "")
    )


def _of_progress(state: ShardState, progress: pb.SliceProgress) -> str:
    return (
        _most("held", progress.held, state.ending.length.ticks_max)
        or _of_counters(progress.since, "steps", "tokens")
        or _of_names([progress.digest])
    )


# ------------------------------------------------------------ transfers


def of_transfer(state: ShardState, transfer: pb.Transfer) -> str:
    """The head of one; its slice, its permission and its size are looked at in transfers."""
    match transfer.WhichOneof("kind"):
        case "offer":
            offer = transfer.offer
            return (
                _of_counters(offer, "base", "capture", "t_m", "cursor")
                or _of_counters(offer.counters, "steps", "tokens")
                or _of_names([offer.base_digest])
            )
        case "held":
            return _of_version(state, transfer.held.version.version) or _of_lineage(
                state, transfer.held.lineage
            )
    return ""


def _of_lineage(state: ShardState, lineage: Sequence[pb.SlotMerged]) -> str:
    """What a held version is said to hold of every slot: it becomes part of an entry."""
    slots = [each.slot for each in lineage]
    if len(slots) > SLOTS_MAX or len(set(slots)) < len(slots):
        return f"a lineage of {len(slots)} slots, {len(set(slots))} different ones"
    for each in lineage:
        taken = state.history.taken.get(each.slot)
        known = max(taken.incarnation if taken else 0, state.history.named.get(each.slot, 0))
        objection = (
            of_slot(state, each.slot)
            or _of_counters(each, "base", "capture", "cursor")
            or _of_trained(each.trained)
            or _most(f"incarnation of {each.slot}", each.incarnation, known + AHEAD_MAX)
            or _most(f"incarnation of {each.slot}", each.trained.incarnation, known + AHEAD_MAX)
        )
        if objection:
            return objection
    return ""


def _of_trained(trained: pb.Trained) -> str:
    return (
        _of_counters(trained, "before", "now", "said", "parent")
        or _of_counters(trained.settled, "merged", "overlap", "late")
        or _of_counters(trained.settled_before, "merged", "overlap", "late")
    )


def _of_version(state: ShardState, version: pb.Version) -> str:
    return (
        _most("version", version.number, state.ending.length.ticks_max)
        or _of_counters(version, "epoch")
        or _of_names((version.run, version.digest))
    )


# ------------------------------------------------------------ calls


def of_call(state: ShardState, request: Any) -> str:
    match request:
        case pb.HelloRequest():
            return _of_shard(state, request.shard) or _of_hello(state, request)
        case pb.MarkBegunRequest():
            return _of_shard(state, request.shard) or _of_names([request.run])
        case pb.ReportFinalRequest():
            is_plain = PART_FILE.fullmatch(request.file) is not None
            return (
                _of_shard(state, request.shard)
                or _of_names((request.file, request.file_digest))
                or ("" if is_plain else f"file {request.file!r} is no plain relative path")
            )
        case pb.SetOwnerRequest():
            return (
                of_slot(state, request.slot)
                or _of_counters(request, "generation")
                or _of_names([request.uid])
            )
    return f"{type(request).__name__} is no call of the registrar"


def _of_hello(state: ShardState, request: pb.HelloRequest) -> str:
    if request.run_hash != state.run_file.hash:
        return "spec.sync, seed or syncer.shards differ from the registrar's"
    if objection := (
        _of_names([request.run])
        or _of_text([request.checkpoint], TEXT_LETTERS_MAX)
        or _of_counters(request, "tick")
        or _of_counters(request.length, "revision", "steps", "tokens")
        or _most("end", max(request.length.ends, default=0), COUNTER_MAX)
        or _most("slots", max(len(request.taken), len(request.named)), SLOTS_MAX)
        or _of_names(each.run for each in request.named)
        or next(filter(None, (of_slot(state, each.slot) for each in request.named)), "")
    ):
        return objection
    for each in request.taken:
        taken = state.history.taken.get(each.slot)
        known = taken.incarnation if taken else 0
        objection = (
            of_slot(state, each.slot)
            or _of_names((each.uid, each.instance))
            or _most(f"incarnation of {each.slot}", each.incarnation, known + AHEAD_MAX)
        )
        if objection:
            return objection
    return ""


def _of_shard(state: ShardState, shard: int) -> str:
    return _most("shard", shard, state.run_file.shards - 1)


def of_slot(state: ShardState, slot: str) -> str:
    try:
        region, _ = split_slot(slot)
    except SpecError as error:
        return str(error)
    return "" if state.run_file.has_region(region) else f"slot {slot}: region {region} is unknown"


# ------------------------------------------------------------ fields


def _of_counters(message: Any, *names: str) -> str:
    found = (_most(name, getattr(message, name), COUNTER_MAX) for name in names)
    return next(filter(None, found), "")


def _most(name: str, value: int, most: int) -> str:
    return f"{name} {value} is above {most}" if value > most else ""


def _of_seconds(message: Any, *names: str) -> str:
    for name in names:
        value = getattr(message, name)
        if not (math.isfinite(value) and 0 <= value <= SECONDS_MAX):
            return f"{name} {value} is not within 0..{SECONDS_MAX:.0f}"
    return ""


def _of_names(names: Iterable[str]) -> str:
    """Names, digests and ids go into words and logs as they are."""
    known = list(names)
    if not all(map(str.isprintable, known)):
        return "a name with characters that cannot be printed"
    return _of_text(known, LETTERS_MAX)


def _of_text(texts: Iterable[str], most: int) -> str:
    longest = max(map(len, texts), default=0)
    return f"a text of {longest} letters; the most is {most}" if longest > most else ""


def _of_slices(state: ShardState, slices: Sequence[int]) -> str:
    """Each once, and of this shard; while no layout is known their number is not either."""
    unknown = state.layout is None and state.run_file.sync.fragments is Fragments.AUTO
    known = range(SLICES_MAX) if unknown else state.fragments
    for fragment in slices:
        if fragment not in known:
            return f"slice {fragment} is unknown"
    return "" if len(set(slices)) == len(slices) else "a slice is named twice"
