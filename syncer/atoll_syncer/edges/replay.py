"""Makes recorded versions again, and names the first that differs: `atoll replay DIR` (rule 29).

What was decided of a merge is taken from the record: which offers, in which order, with which
weights, and the momentum. All that is computed is computed again with the code of a shard, so the
bits of master, momentum and base must be those that the shard has stored and published. One slice
is in memory at a time, and nothing is written. Each slice has one line of output; the exit code is
DIFFERS where a version has other bits, and BAD_INPUT where there is no record.
"""

import argparse
import dataclasses
import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import build_layout, specs_of
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.duties import recording
from atoll_syncer.duties.recording import ANOTHER, RecordedMerge, RecordStart
from atoll_syncer.model.effects import MergeOffers, Stage
from atoll_syncer.model.roster import weight
from atoll_syncer.numbers.commit import TransferError
from atoll_syncer.numbers.values import StoredVersion, TensorValues
from atoll_syncer.storage.files import (
    MARK,
    SNAPSHOTS,
    FileStore,
    Store,
    StoreCorrupt,
    StoreError,
    StoreMissing,
    object_name,
    read_object,
    storage_errors,
)

FOLDER: Final = "record"  # in a run's folder
DIFFERS: Final = 1
LOST: Final = (StoreCorrupt, StoreMissing)


class DifferenceError(Exception):
    """A version is not what its record says, or cannot be made again."""


class NamesOnly:
    """In place of a store: what is put gets its name, and is forgotten."""

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        return object_name(epoch, hashlib.sha256(b"".join(parts)).hexdigest())


@dataclasses.dataclass(slots=True, kw_only=True)
class SliceReplay:
    """What is known of a slice's record so far; `reason`: why version `number` is not equal."""

    shard: int
    slice: int
    number: int | None = None  # of the version that is made; None: the record cannot begin
    count: int = 0  # of versions with equal bits
    time: float = 0.0  # of the last of them, in Unix seconds
    reason: str = ""

    @property
    def where(self) -> str:
        version = "" if self.number is None else f" version {self.number}"
        return f"shard {self.shard} slice {self.slice}{version}"

    @property
    def line(self) -> str:
        return f"{self.where}: {self.reason or f'the last of {self.count} with equal bits'}"

    def run(self, store: Store) -> None:
        """Make each version again. Raises StoreUnavailable."""
        try:
            self._make_all(store)
        except (DifferenceError, SpecError, *LOST, MemoryError) as error:
            self.reason = str(error)

    def _make_all(self, store: Store) -> None:
        name = recording.start_name(self.slice)
        start: RecordStart = recording.read(store, name, RecordStart)
        values = self._restored(store, start)
        number, epoch = start.head.number, start.head.epoch
        self.number, epochs = number, recording.versions(store, self.slice)
        # A version of an earlier term than the one before it is of a process that was deposed.
        while later := [n for n in epochs if n > number and epochs[n] >= epoch]:
            self.number = number = number + 1
            if number not in later:
                raise DifferenceError(f"is not in the record, and version {min(later)} is")
            epoch = epochs[number]
            name = recording.merge_name(self.slice, number, epoch)
            merge: RecordedMerge = recording.read(store, name, RecordedMerge)
            self._stage(store, values, merge)
            participants = tuple(offer.participant for offer in merge.offers)
            effect = MergeOffers(self.slice, participants, merge.momentum, last=merge.last)
            making = values.begin_merge(effect, start.run, epoch)
            making.compute()
            made = making.write(NamesOnly())
            values.committed(self.slice)
            _compare(made, merge)
            self.count, self.time = self.count + 1, merge.time

    def _restored(self, store: Store, start: RecordStart) -> TensorValues:
        """Return the slice with its first version."""
        if not (self.shard < start.shards and self.slice < start.fragments):
            raise DifferenceError("its beginning is of another slice")
        layout = build_layout(specs_of(start.tensors), start.fragments, start.shards)
        if layout.digest != start.layout_digest:
            problem = "is as only another version of Atoll cuts it"
            raise SpecError("layout", problem, "use the one that recorded it")
        sync = dataclasses.replace(start.sync, norm_limit=0.0)  # outliers were decided then
        values = TensorValues.allocate(layout, self.shard, sync, self.slice)
        self.number = start.head.number
        values.restore(self.slice, start.head, store)
        return values

    def _stage(self, store: Store, values: TensorValues, merge: RecordedMerge) -> None:
        for offer in merge.offers:
            p = offer.participant
            header = pb.Offer(slice=self.slice, capture=p.capture)
            try:
                if (weighs := weight(p.steps, p.tokens)) != p.weight:
                    counters = f"{p.steps} steps and {p.tokens} tokens weigh {weighs}"
                    raise ValueError(f"{counters}, and it was merged with {p.weight}")
                head = pb.Transfer(offer=header, encoding=offer.encoding)
                arrived = values.examine(head, read_object(store, offer.object, ANOTHER))
            except (*LOST, TransferError, ArithmeticError, ValueError, TypeError) as error:
                raise DifferenceError(f"the offer of {p.slot}: {error}") from error
            values.stage(Stage(p.slot, p.incarnation, self.slice, p.capture), arrived)


def _compare(made: StoredVersion, merge: RecordedMerge) -> None:
    """Raise DifferenceError."""
    if made.digest != merge.digest:
        reason = f"has the digest {made.digest}, and was published with {merge.digest}"
    elif made.object != merge.object:
        reason = f"has another master or momentum: {made.object}, stored as {merge.object}"
    else:
        return
    slots = ", ".join(offer.participant.slot for offer in merge.offers) or "nobody"
    raise DifferenceError(f"{reason}; merged were the offers of {slots}")


def records(run: Path) -> dict[int, Store]:
    """Return the record of each shard, by number. Raises SpecError, StoreUnavailable."""
    with storage_errors(run):
        marks = [mark.parent for mark in run.glob(f"{FOLDER}/*/{MARK}")]
    stores = {int(path.name): FileStore(path) for path in marks if path.name.isdecimal()}
    if not stores:
        remedy = "give the folder of a run that `atoll run --record` has recorded"
        raise SpecError(str(run), "holds no record", remedy)
    return dict(sorted(stores.items()))


def replayed(shard: int, store: Store) -> Iterator[SliceReplay]:
    """Slice after slice of a shard. Raises StoreUnavailable."""
    names = [name.removeprefix(SNAPSHOTS).removesuffix(".json") for name in store.names(SNAPSHOTS)]
    for slice_ in sorted(int(name) for name in names if name.isdecimal()):
        replay = SliceReplay(shard=shard, slice=slice_)
        replay.run(store)
        yield replay


def report(stores: Mapping[int, Store]) -> int:
    """Print what is equal and what is not; returns the exit code. Raises StoreUnavailable."""
    slices = list[SliceReplay]()
    for shard, store in stores.items():
        for replay in replayed(shard, store):
            slices.append(replay)
            sys.stdout.write(f"{replay.line}\n")
    equal = sum(replay.count for replay in slices)
    sys.stdout.write(f"{equal} versions of {len(slices)} slices have equal bits\n")
    differing = [replay for replay in slices if replay.reason]
    if not differing:
        return ExitCode.FINAL
    first = min(differing, key=lambda replay: replay.time)
    moment = time.strftime(", after %Y-%m-%d %H:%M:%S", time.localtime(first.time))
    sys.stdout.write(f"the first that differs is {first.where}{moment if first.time else ''}\n")
    return DIFFERS


def main() -> None:
    parser = argparse.ArgumentParser(prog="atoll replay", description=__doc__)
    parser.add_argument("run", type=Path)
    try:
        code = report(records(parser.parse_args().run))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        code = ExitCode.BAD_INPUT
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        code = ExitCode.TRY_AGAIN
    sys.exit(code)


if __name__ == "__main__":
    main()
