"""Makes recorded versions again, and says the first that differs: `atoll replay PLACE` (rule 29).

    PLACE, PLACE/checkpoints   the place of a run's checkpoints, or the folder of a run
    PLACE/record               the records of all shards
    PLACE/record/<shard>       that of one

It reads, and writes nothing. It says one line for each slice, and ends with DIFFERS where a version
could not be made again with equal bits, with BAD_INPUT where there is no record.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_syncer.checkpoints import merge_records
from atoll_syncer.checkpoints.merge_records import FOLDER
from atoll_syncer.checkpoints.opening import open_place
from atoll_syncer.checkpoints.places import Place
from atoll_syncer.numbers.replay import DifferenceError, replay
from atoll_syncer.storage.store import MARK, Store, StoreCorrupt, StoreError, StoreMissing

DIFFERS: Final = 1
RECORD_IT: Final = "give the folder of a run that `atoll run --record` has recorded"

OpenPlace = Callable[[str], Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of a slice's record: `reason` says why version `number` is not equal.

    Without a number there is no version with which it could begin.
    """

    shard: int
    slice: int
    shards: int = 0  # of the run; 0: not known
    first: int = 0  # the version with which it begins
    count: int = 0  # of equal versions after it
    time: float = 0.0  # of the last of them, in Unix seconds
    number: int | None = None
    reason: str = ""

    @property
    def where(self) -> str:
        version = "" if self.number is None else f" version {self.number}"
        return f"shard {self.shard} slice {self.slice}{version}"

    @property
    def line(self) -> str:
        if self.reason:
            return f"{self.where}: {self.reason}"
        return (
            f"{self.where}: versions {self.first + 1} to {self.first + self.count} have equal bits"
        )


def records(url: str, open_place: OpenPlace) -> dict[int, Store]:
    """The records of the shards. Raises SpecError, StoreUnavailable."""
    for below in ("", "/checkpoints"):
        place = open_place(f"{url.rstrip('/')}{below}")
        for folder in (f"{FOLDER}/", ""):
            if found := dict(_of_shards(place, folder)):
                return found
    above, _, last = url.rstrip("/").rpartition("/")
    if last.isdecimal() and _is_store(place := open_place(above), last):
        return {int(last): place.part(last)}
    raise SpecError(url, "holds no record", RECORD_IT)


def _of_shards(place: Place, folder: str) -> Iterator[tuple[int, Store]]:
    number = 0
    while _is_store(place, f"{folder}{number}"):
        yield number, place.part(f"{folder}{number}")
        number += 1


def _is_store(place: Place, name: str) -> bool:
    try:
        return bool(place.read(f"{name}/{MARK}"))
    except StoreMissing:
        return False


def replayed(shard: int, store: Store) -> Iterator[Replayed]:
    """Slice after slice of a shard. Raises StoreUnavailable."""
    epochs = merge_records.recorded(store)
    for slice_ in merge_records.slices(store):
        found = Replayed(shard=shard, slice=slice_)
        try:
            start = merge_records.read_start(store, shard, slice_)
            found = replace(found, shards=start.shards, first=start.head.number)
            for merge in replay(store, start, epochs.get(slice_, {})):
                found = replace(found, count=found.count + 1, time=merge.time)
        except DifferenceError as error:
            found = replace(found, number=error.number, reason=str(error))
        except (SpecError, StoreCorrupt, StoreMissing) as error:
            found = replace(found, reason=str(error))
        yield found


def report(stores: Mapping[int, Store]) -> int:
    """Say what is equal and what is not; returns the exit code. Raises StoreUnavailable."""
    found = list[Replayed]()
    for shard, store in stores.items():
        for each in replayed(shard, store):
            found.append(each)
            _say(each.line)
    shards = max((each.shards for each in found), default=0)
    if lacking := sorted(set(range(shards)) - stores.keys()):
        _say(f"shards without a record here: {', '.join(map(str, lacking))}")
    _say(f"{sum(each.count for each in found)} versions of {len(found)} slices have equal bits")
    differing = [each for each in found if each.reason]
    if not differing:
        return ExitCode.FINAL
    first = min(differing, key=lambda each: each.time)
    after = f", after {_moment(first.time)}" if first.time else ""
    _say(f"the first that differs is {first.where}{after}")
    return DIFFERS


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="atoll replay", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--endpoint", default="")
    flags = parser.parse_args()
    try:
        code = report(records(flags.url, partial(open_place, flags.endpoint)))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        code = ExitCode.BAD_INPUT
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        code = ExitCode.TRY_AGAIN
    sys.exit(code)


if __name__ == "__main__":
    main()
