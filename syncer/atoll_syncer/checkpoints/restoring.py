"""Reads a checkpoint for a run that begins with it, however its model is cut there (rule 43).

    PLACE/step-N                 that checkpoint
    PLACE, PLACE/checkpoints     the newest whole one of it
    PLACE, PLACE/commits         the stores of a job that is gone, each as its log says

Each gives the history and the objects of every shard. Of each old slice that overlaps the new ones
the object is read once, whole, so its digest is always compared.

Writes the model of a whole checkpoint beside its parts, as an export has it (rule 42).

    each slice of each part --> SCRATCH/rendered/parts: what learners hold of it
    these --> SCRATCH/rendered: the model's files (storage/export)
                            --> PLACE/step-N/model/, the index last

One slice is in memory at a time. What is begun is begun anew after trouble.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Layout, Piece, Slice, build_layout, specs_of
from atoll_protos.job.run_file import RunFile
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.checkpoints import copies
from atoll_syncer.checkpoints.copies import PART, STEP, Attempt, Place
from atoll_syncer.model.history import NONE_TRAINED, History
from atoll_syncer.model.log import Trained
from atoll_syncer.storage.export import (
    INDEX,
    PARTS,
    Export,
    ExportPart,
    as_learners_hold,
    encode_part,
)
from atoll_syncer.storage.files import (
    DAMAGED,
    OBJECTS,
    Store,
    StoreCorrupt,
    StoreMissing,
    files_in_order,
    read_object,
    whole_file,
)
from atoll_syncer.storage.journal import HEARTBEAT, Journal
from atoll_syncer.storage.objects import ObjectError, decode
from atoll_syncer.storage.versions import read_data_states, read_slice

ANOTHER: Final = "begin a new job with another checkpoint"

Values = Mapping[str, Array]  # master and momentum, f32[n]


class RestoreRefusedError(Exception):
    """The run cannot begin with this checkpoint: where, why, and what to do."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(f"RestoreRefused: {where}: {reason}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What was found: where, what each shard's history says, and how the model is cut there."""

    url: str
    parts: Sequence[Store]
    histories: Sequence[History]
    layout: Layout
    remedy: str  # where something in it is damaged

    @property
    def run(self) -> str:
        return self.histories[0].run

    @property
    def tick(self) -> int:
        return min(each.tick for each in self.histories)

    @property
    def cursors(self) -> dict[str, int]:
        """The largest of each slot."""
        return {slot: self._furthest(slot).cursors[slot] for slot in self._slots()}

    @property
    def trained(self) -> dict[str, Trained]:
        """By processes of another run: incarnations begin anew."""
        found: dict[str, Trained] = {}
        for history in self.histories:
            for slot, each in history.trained.items():
                found[slot] = found.get(slot, NONE_TRAINED).also(each)
        totals = {slot: each.total for slot, each in found.items()}
        return {slot: Trained(before=total, parent=total) for slot, total in totals.items()}

    def data_states(self) -> dict[str, bytes]:
        """Each from the shard with the slot's largest cursor. Raises RestoreRefusedError."""
        kept: dict[str, bytes] = {}
        for slot in self._slots():
            history = self._furthest(slot)
            if name := history.data_states.get(slot):
                number = next(n for n, each in enumerate(self.histories) if each is history)
                with self.errors(number):
                    kept[slot] = read_data_states(self.parts[number], name)[slot]
        return kept

    def _slots(self) -> list[str]:
        return sorted({slot for each in self.histories for slot in each.cursors})

    def _furthest(self, slot: str) -> History:
        return max(
            self.histories,
            key=lambda each: (each.cursors.get(slot, -1), slot in each.data_states),
        )

    def errors(self, shard: int) -> AbstractContextManager[None]:
        """Raise RestoreRefusedError that names what is damaged or gone in a part."""
        return refusing(f"{self.url}/{shard}", self.remedy)


@contextmanager
def refusing(where: str, remedy: str) -> Iterator[None]:
    """Turn what is damaged or gone into a RestoreRefusedError; trouble that may pass stays."""
    try:
        yield
    except (StoreCorrupt, StoreMissing) as error:
        name = f"/{error.path}" if error.path.startswith(OBJECTS) else ""
        raise RestoreRefusedError(f"{where}{name}", error.reason, remedy) from error
    except (ObjectError, KeyError) as error:
        raise RestoreRefusedError(where, repr(error), remedy) from error


# ------------------------------------------------------------ finding it


def find(url: str, open_place: Callable[[str], Place]) -> Checkpoint:
    """Raise RestoreRefusedError, StoreUnavailable, and SpecError for a URL that is none."""
    url = url.rstrip("/")
    above, _, last = url.rpartition("/")
    if named := STEP.fullmatch(last):
        return _whole(open_place(above), int(named[1]))
    for each in (url, f"{url}/checkpoints"):
        place = open_place(each)
        if steps := _whole_steps(place):
            return _whole(place, steps[-1])
    for each in (url, f"{url}/commits"):
        if found := _stores(open_place(each)):
            return found
    raise RestoreRefusedError(url, "there is no whole checkpoint", "give the place of one")


def find_of_job(place: Place, job: RunFile) -> Checkpoint | None:
    """Return the newest whole one that a run of this very job has left; None: there is none.

    A job that was deleted and made again is another one. Raises RestoreRefusedError and
    StoreUnavailable.
    """
    mine = job.hash, job.restore_from, job.uid
    steps = _whole_steps(place, lambda about: copies.of_job(about) == mine)
    return _whole(place, steps[-1]) if steps else None


def _whole_steps(
    place: Place, wanted: Callable[[Mapping[str, Any]], bool] = lambda about: True
) -> list[int]:
    """Of all runs, the newest last: the step of a former run may be higher."""
    times = {step: copies.read_whole(place, step) for step in copies.steps_of(place)}
    whole = [(step, about) for step, about in times.items() if about is not None]
    return [step for _, step in sorted((x["time"], step) for step, x in whole if wanted(x))]


def _whole(place: Place, step: int) -> Checkpoint:
    url, steps = f"{place.url}/{copies.step_name(step)}", _whole_steps(place)
    if step not in steps:
        other = f", such as {place.url}/{copies.step_name(steps[-1])}" if steps else ""
        raise RestoreRefusedError(url, "it is not whole", f"give one that is{other}")
    older = steps[: steps.index(step)]
    remedy = ANOTHER
    if older:
        before = f"{place.url}/{copies.step_name(older[-1])}"
        remedy = f"begin a new job with the one before it, {before}"
    about = copies.read_whole(place, step)
    assert about is not None, "it was whole"
    histories = []
    for number in range(about["shards"]):
        part = copies.read_part(place, step, number)
        if part is None or part.history.run != about["run"]:
            reason = "the part is not there, or is damaged"
            raise RestoreRefusedError(f"{url}/{number}", reason, remedy)
        histories.append(part.history)
    parts = [place.below(copies.part_name(step, n)) for n in range(len(histories))]
    return _checkpoint(url, parts, histories, remedy)


def _stores(place: Place) -> Checkpoint | None:
    """Those of a job, which has at least one."""
    parts: list[Store] = []
    while _is_there(place, f"{len(parts)}/{HEARTBEAT}"):
        parts.append(place.below(str(len(parts))))
    journals = [Journal(part, lambda: 0.0) for part in parts]
    with refusing(place.url, ANOTHER):
        histories = [journal.read() for journal in journals]
    for number, journal in enumerate(journals):
        if journal.lost_entries:
            raise RestoreRefusedError(f"{place.url}/{number}", "its log is damaged", ANOTHER)
    return _checkpoint(place.url, parts, histories, ANOTHER) if parts else None


def _checkpoint(
    url: str, parts: Sequence[Store], histories: Sequence[History], remedy: str
) -> Checkpoint:
    for number, history in enumerate(histories):
        if history.run != histories[0].run or not history.heads:
            reason = "it is another run's, or has no values yet"
            raise RestoreRefusedError(f"{url}/{number}", reason, remedy)
    layout = _layout(histories, remedy, url)
    return Checkpoint(url=url, parts=parts, histories=histories, layout=layout, remedy=remedy)


def _layout(histories: Sequence[History], remedy: str, url: str) -> Layout:
    first = histories[0]
    try:
        layout = build_layout(specs_of(first.tensors), len(first.heads), len(histories))
    except SpecError as error:
        raise RestoreRefusedError(url, str(error), remedy) from error
    if layout.digest != first.layout_digest:
        reason = "its model is cut as only another version of Atoll, or more shards, would cut it"
        raise RestoreRefusedError(url, reason, "use the version that wrote it")
    return layout


# ------------------------------------------------------------ taking it up


def difference(checkpoint: Checkpoint, layout: Layout) -> str:
    """Return the first tensor whose name or shape differs from the checkpoint's; or empty."""
    mine = {each.name: each.shape for each in layout.tensors}
    theirs = {each.name: each.shape for each in checkpoint.layout.tensors}
    for name in sorted(mine | theirs):
        if mine.get(name) == theirs.get(name):
            continue
        if name not in theirs:
            return f"the model's tensor {name} is not in it"
        if name not in mine:
            return f"its tensor {name} is not in the model"
        return f"its tensor {name} has the shape {theirs[name]}, and the model's {mine[name]}"
    return ""


def fill(checkpoint: Checkpoint, layout: Layout, shard: int, slices: Mapping[int, Values]) -> None:
    """Write master and momentum of this shard's slices, by fragment, in place.

    Raises RestoreRefusedError, StoreUnavailable.
    """
    for old, overlaps in _overlaps(checkpoint.layout, layout, shard):
        head = checkpoint.histories[old.shard].heads[old.fragment]
        with checkpoint.errors(old.shard):
            data = read_object(checkpoint.parts[old.shard], head.object, checkpoint.remedy)
            content, _ = decode(data)
            for name in ("master", "momentum"):
                if content[name].shape != (old.element_count,):
                    raise ObjectError(f"{head.object} has another layout")
        for each in overlaps:
            for name, values in slices[each.fragment].items():
                part = content[name][each.source : each.source + each.count]
                values[each.target : each.target + each.count] = part


def merges(checkpoint: Checkpoint, layout: Layout, shard: int) -> tuple[int, ...]:
    """By fragment, how many merges a momentum has taken in; of several, the fewest."""
    found: dict[int, list[int]] = defaultdict(list)
    for old, overlaps in _overlaps(checkpoint.layout, layout, shard):
        head = checkpoint.histories[old.shard].heads[old.fragment]
        for each in overlaps:
            found[each.fragment].append(head.merges)
    return tuple(min(found[each.fragment]) for each in layout.shard_slices(shard))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overlap:
    """Elements that an old slice has at `source`, and the new one of a fragment at `target`."""

    fragment: int
    source: int
    target: int
    count: int


def _overlaps(old: Layout, new: Layout, shard: int) -> Iterator[tuple[Slice, list[_Overlap]]]:
    """Yield the old slices that have something of a shard's new ones."""
    mine: dict[str, list[tuple[int, Piece]]] = defaultdict(list)
    for owned in new.shard_slices(shard):
        for piece in owned.pieces:
            mine[new.tensors[piece.tensor].name].append((owned.fragment, piece))
    for each in old.slices:
        found = [
            _Overlap(
                fragment=fragment,
                source=piece.offset + start - piece.start,
                target=wanted.offset + start - wanted.start,
                count=stop - start,
            )
            for piece in each.pieces
            for fragment, wanted in mine[old.tensors[piece.tensor].name]
            if (start := max(piece.start, wanted.start)) < (stop := min(piece.stop, wanted.stop))
        ]
        if found:
            yield each, found


FOLDER: Final = "rendered"


def render(place: Place, attempt: Attempt, scratch: Path, wire_down: Wire) -> None:
    """Raise StoreCorrupt and StoreMissing (a part is damaged), StoreFull and StoreUnavailable."""
    name, target = copies.model_name(attempt.step), Export(scratch / FOLDER)
    if _is_there(place, f"{name}/{INDEX}"):
        return
    shutil.rmtree(target.folder, ignore_errors=True)
    parts, numbers = list[ExportPart](), range(attempt.shards)
    stores = [place.below(copies.part_name(attempt.step, number)) for number in numbers]
    histories = [_history(place, attempt.step, number) for number in numbers]
    for number, (store, history) in enumerate(zip(stores, histories, strict=True)):
        for each in attempt.layout.shard_slices(number):
            count, head = each.element_count, history.heads[each.fragment]
            base = read_slice(
                store,
                head,
                master=np.empty(count, F32),
                momentum=np.empty(count, F32),
                form=each.form,
                wire_down=wire_down,
            )
            file = f"{PARTS}/{number}-{each.fragment}.safetensors"
            held = {each.fragment: as_learners_hold(base)}
            with whole_file(target.folder / file) as written:
                for piece in encode_part(history.run, number, held):
                    written.write(piece)
            parts.append(ExportPart(file=file, digest=written.digest))
    tick = min(each.tick for each in histories)
    target.assemble(histories[0].run, attempt.layout, parts, tick=tick)
    for path in files_in_order(target.folder):
        place.send(path, f"{name}/{path.relative_to(target.folder).as_posix()}")
    shutil.rmtree(target.folder, ignore_errors=True)


def _is_there(place: Place, name: str) -> bool:
    try:
        return bool(place.read(name))
    except StoreMissing:
        return False


def _history(place: Place, step: int, shard: int) -> History:
    part = copies.read_part(place, step, shard)
    if part is None:
        raise StoreCorrupt(f"{copies.part_name(step, shard)}/{PART}", "it is not whole", DAMAGED)
    return part.history
