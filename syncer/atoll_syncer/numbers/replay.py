"""Makes the versions of a slice again from its record, with the code of a shard (rule 29).

What was decided of a merge is taken from the record: which offers, in which order, with which
weights, and the momentum. All that is computed is computed again, so the bits of master, momentum
and base must be those that the shard has stored and published. One slice is in memory at a time.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Layout, build_layout, specs_of
from atoll_protos.job.run_file import Sync
from atoll_protos.job.strict_json import parse
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.checkpoints import merge_records
from atoll_syncer.checkpoints.merge_records import RecordedMerge, RecordStart
from atoll_syncer.model.effects import MergeOffers, Stage
from atoll_syncer.model.log import Participant
from atoll_syncer.model.round import weight
from atoll_syncer.numbers.arrivals import TransferError
from atoll_syncer.numbers.merge import rounding
from atoll_syncer.numbers.values import StoredVersion, TensorValues
from atoll_syncer.storage.store import Store, StoreCorrupt, StoreMissing, object_name


class DifferenceError(Exception):
    """A version is not what its record says, or cannot be made again: `number`, and why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


class NamesOnly:
    """In place of a store: what is put gets its name, and is forgotten."""

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return object_name(epoch, digest.hexdigest())


def replay(store: Store, start: RecordStart, epochs: dict[int, int]) -> Iterator[RecordedMerge]:
    """Each version of the slice, made again with equal bits; `epochs` are those that count.

    Raises DifferenceError at the first that is not, SpecError for a record of another model or
    program, StoreUnavailable.
    """
    slice_, number = start.slice, start.head.number
    values = _begun(store, start)
    digest = start.head.digest
    while remaining := [each for each in epochs if each > number]:
        number += 1
        if number not in epochs:
            reason = f"is not in the record, and version {min(remaining)} is"
            raise DifferenceError(number, reason)
        try:
            merge = merge_records.read_merge(store, slice_, number, epochs[number])
            _stage(store, values, merge)
        except (StoreCorrupt, StoreMissing) as error:
            raise DifferenceError(number, f"{error.path}: {error.reason}") from error
        if merge.before != digest:
            reason = f"was made from one with the digest {merge.before}, and the one before it has"
            raise DifferenceError(number, f"{reason} {digest}")
        made = _made(values, merge)
        digest = made.digest
        if reason := _difference(made, merge):
            raise DifferenceError(number, reason)
        yield merge


def _difference(made: StoredVersion, merge: RecordedMerge) -> str:
    """In what a version that was made again differs; empty: in nothing."""
    if made.digest != merge.digest:
        reason = f"has the digest {made.digest}, and was published with {merge.digest}"
    elif made.object != merge.object:
        reason = f"has another master or momentum: {made.object}, stored as {merge.object}"
    else:
        return ""
    slots = ", ".join(each.participant.slot for each in merge.offers)
    reason = f"{reason}; merged were the offers of {slots or 'nobody'}"
    if merge.rounding == rounding():
        return reason
    return f"{reason}, on a processor whose sums round otherwise than here"


def _begun(store: Store, start: RecordStart) -> TensorValues:
    """The slice with the version of its start. Raises SpecError, DifferenceError."""
    layout, sync = _layout(start), parse(Sync, json.dumps(start.sync), "spec.sync")
    sync = dataclasses.replace(sync, norm_limit=0.0)  # who is an outlier was decided then
    try:
        values = TensorValues.allocate(layout, start.shard, sync, start.slice)
    except MemoryError as error:
        raise DifferenceError(start.head.number, str(error)) from error
    try:
        values.restore(start.slice, start.head, store)
    except (StoreCorrupt, StoreMissing) as trouble:
        reason = f"{trouble.path}: {trouble.reason}"
        raise DifferenceError(start.head.number, reason) from trouble
    return values


def _layout(start: RecordStart) -> Layout:
    layout = build_layout(specs_of(start.tensors), start.fragments, start.shards)
    if layout.digest != start.layout_digest:
        raise SpecError(
            "layout", "is as only another version of Atoll cuts it", "use the one that recorded it"
        )
    return layout


def _stage(store: Store, values: TensorValues, merge: RecordedMerge) -> None:
    """Raises DifferenceError, StoreCorrupt, StoreMissing, StoreUnavailable."""
    for each in merge.offers:
        p = each.participant
        if reason := _objection(p):
            raise DifferenceError(merge.number, f"the offer of {p.slot}: {reason}")
        try:
            head = pb.Transfer(
                offer=pb.Offer(slice=merge.slice, capture=p.capture), encoding=each.encoding
            )
            arrived = values.examine(head, merge_records.read_offer(store, each))
        except (StoreCorrupt, StoreMissing) as error:
            reason = f"the offer of {p.slot}: {error.path}: {error.reason}"
            raise DifferenceError(merge.number, reason) from error
        except (TransferError, ValueError, TypeError) as error:
            raise DifferenceError(merge.number, f"the offer of {p.slot}: {error}") from error
        values.stage(Stage(p.slot, p.incarnation, merge.slice, p.capture), arrived)


def _objection(p: Participant) -> str:
    """Why counters are not those of an offer; empty: they may be."""
    try:
        found = weight(p.steps, p.tokens)
    except (ArithmeticError, TypeError) as error:
        return f"no weight follows from {p.steps} steps and {p.tokens} tokens ({error})"
    if found != p.weight:
        return (
            f"{p.steps} steps and {p.tokens} tokens weigh {found}, and it was merged with"
            f" {p.weight}"
        )
    return ""


def _made(values: TensorValues, merge: RecordedMerge) -> StoredVersion:
    effect = MergeOffers(
        merge.slice,
        tuple(each.participant for each in merge.offers),
        merge.momentum,
        last=merge.last,
    )
    making = values.begin_merge(effect, merge.run, merge.epoch)
    making.compute()
    made = making.write(NamesOnly())
    values.committed(merge.slice)
    return made
