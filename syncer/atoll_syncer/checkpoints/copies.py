"""Checkpoints of a run: copies of what its shards have stored (rule 42).

    PLACE/step-N/<shard>/objects/     what part.json names, as in the shard's store
    PLACE/step-N/<shard>/part.json    last, and once: a snapshot of the shard's log
    PLACE/step-N/checkpoint.json      from shard 0, once all parts are there: it is whole
    PLACE/step-N/model/               likewise, then: the model of it (checkpoints/restoring)

A place is a folder that every shard reaches, or one of a bucket. An object comes into a part
without being read where the file system can link it, or the bucket's server can copy it. Of two
processes of a shard that write one part both write objects that are named by their content, and
only one creates part.json.

A run that began with a checkpoint may come to a step of which its parent has left a part. That goes
first: parts of two runs are never taken together.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from atoll_protos import documents
from atoll_protos.job.layout import Layout
from atoll_syncer.model.history import History
from atoll_syncer.storage import journal
from atoll_syncer.storage.files import Store, StoreMissing, copy_object
from atoll_syncer.storage.journal import DamagedError, LogSnapshot

STEP: Final = re.compile(r"step-([0-9]+)/?")
PART: Final = "part.json"
WHOLE: Final = "checkpoint.json"
UNFINISHED_KEPT: Final = 2  # of attempts; the older of them may become whole yet


class Place(Protocol):
    """A store of checkpoints, as FileStore and ObjectStore are."""

    url: str

    def below(self, name: str) -> Store: ...
    def folders(self) -> list[str]: ...
    def read(self, name: str) -> bytes | bytearray: ...
    def write(self, name: str, data: bytes) -> None: ...
    def send(self, source: Path, name: str) -> None: ...
    def remove(self, name: str) -> None: ...


def steps_of(place: Place) -> list[int]:
    """Return the numbers of the folders step-N, ascending."""
    return sorted(int(step[1]) for step in map(STEP.fullmatch, place.folders()) if step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One shard's part of a checkpoint, to be taken. `snapshot` is what its log says by now."""

    step: int
    shard: int
    shards: int
    layout: Layout
    snapshot: LogSnapshot
    restore_from: str = ""  # spec.checkpoint.from of the job
    uid: str = ""  # of the job

    @property
    def history(self) -> History:
        return self.snapshot.history

    @property
    def part(self) -> str:
        return part_name(self.step, self.shard)

    @property
    def objects(self) -> frozenset[str]:
        """That must stay in the store while they are copied."""
        return frozenset(_of_checkpoint(self.history).live_objects())


def part_name(step: int, shard: int) -> str:
    return f"{step_name(step)}/{shard}"


def model_name(step: int) -> str:
    return f"{step_name(step)}/model"


def step_name(step: int) -> str:
    return f"step-{step}"


def _of_checkpoint(history: History) -> History:
    """Of each slice only the newest version; the key of proofs is for the shards alone."""
    return dataclasses.replace(history, previous={}, previous_merged={}, key="")


# ------------------------------------------------------------ taking


def is_taken(place: Place, attempt: Attempt) -> bool:
    """Whether this run has the part already; what another run has left there is removed."""
    found = read_part(place, attempt.step, attempt.shard)
    if found is None:
        return False
    if found.history.run == attempt.history.run:
        return True
    _remove_whole(place, attempt.step)
    remove_part(place, attempt.step, attempt.shard)
    return False


def works(
    place: Place, store: Store, attempt: Attempt, time: Callable[[], float]
) -> Iterator[Callable[[], object]]:
    """Yield what is to be done for a part, one after the other; each may be done again."""
    part = place.below(attempt.part)
    taken = dataclasses.replace(attempt.snapshot, history=_of_checkpoint(attempt.history))
    yield part.open
    for name in sorted(attempt.objects):
        yield partial(copy_object, store, part, name)
    yield partial(journal.write, part, taken, time(), PART)


# ------------------------------------------------------------ whole ones


def finish(place: Place, attempt: Attempt, time: Callable[[], float]) -> Sequence[int]:
    """Return the shards that have no part yet, or shard 0, which marks it whole; none: it is.

    Shard 0 says so in its place when all parts are there.
    """
    step, run, shards = attempt.step, attempt.history.run, range(attempt.shards)
    if is_whole(place, step, run):
        return []
    parts = [read_part(place, step, shard) for shard in shards]
    histories = [part.history for part in parts if part is not None and part.history.run == run]
    if len(histories) < attempt.shards or attempt.shard:
        lacking = [n for n, part in enumerate(parts) if part is None or part.history.run != run]
        return lacking or [0]
    about = {
        "format": 1,
        "run": run,
        "run_hash": attempt.history.run_hash,
        "from": attempt.restore_from,
        "uid": attempt.uid,
        "step": step,
        "time": time(),
        "tick": min(each.tick for each in histories),
        "shards": attempt.shards,
        "layout_digest": attempt.history.layout_digest,
        "tensors": attempt.history.tensors,
        "parts": [
            {"shard": shard, "slices": _slices(attempt.layout, shard, history)}
            for shard, history in enumerate(histories)
        ],
    }
    data = json.dumps(documents.to_document(about), indent=1).encode()
    place.write(f"{step_name(step)}/{WHOLE}", data)
    return []


def _slices(layout: Layout, shard: int, history: History) -> list[dict[str, Any]]:
    """For other programs: what lies where in the objects of a part."""
    return [
        {
            "fragment": owned.fragment,
            "object": history.heads[owned.fragment].object,
            "pieces": [
                {
                    "tensor": layout.tensors[piece.tensor].name,
                    "start": piece.start,
                    "stop": piece.stop,
                    "offset": piece.offset,
                }
                for piece in owned.pieces
            ],
        }
        for owned in layout.shard_slices(shard)
    ]


def newer_elsewhere(place: Place, attempt: Attempt) -> int:
    """Return the newest step above an attempt's of which another shard has a part, or 0."""
    run, others = attempt.history.run, [x for x in range(attempt.shards) if x != attempt.shard]
    for step in reversed(steps_of(place)):
        parts = (read_part(place, step, each) for each in others if step > attempt.step)
        if any(part is not None and part.history.run == run for part in parts):
            return step
    return 0


def is_whole(place: Place, step: int, run: str) -> bool:
    about = read_whole(place, step)
    return about is not None and about["run"] == run


def read_whole(place: Place, step: int) -> dict[str, Any] | None:
    """Return what checkpoint.json says; None: it is not there, or is none."""
    with suppress(StoreMissing, ValueError, KeyError, TypeError):
        about = documents.mapping(bytes(place.read(f"{step_name(step)}/{WHOLE}")))
        for name, kind in (("run", str), ("time", float), ("tick", int), ("shards", int)):
            documents.from_document(kind, about[name])
        if about["shards"] > 0:
            return about
    return None


def of_job(about: Mapping[str, Any]) -> tuple[object, ...]:
    """By what the runs of one job are known: the run hash, spec.checkpoint.from, and its UID."""
    return about.get("run_hash"), about.get("from", ""), about.get("uid", "")


def read_part(place: Place, step: int, shard: int) -> LogSnapshot | None:
    """Return what part.json says; None: it is not there, or is none."""
    with suppress(StoreMissing, DamagedError):
        return journal.read_snapshot(place.below(part_name(step, shard)), PART)
    return None


# ------------------------------------------------------------ removing


def prune(place: Place, attempt: Attempt, keep: int) -> int | None:
    """Remove this shard's parts of older checkpoints; returns the newest step that is whole.

    The newest `keep` whole ones stay, and the newest attempts, which may become whole yet.
    """
    run, shard = attempt.history.run, attempt.shard
    steps = steps_of(place)
    whole = [step for step in steps if is_whole(place, step, run)]
    newest = whole[-1] if whole else None
    open_ = [step for step in steps if newest is None or step > newest]
    stay = {*whole[-keep:], *_mine(place, open_, run, shard)[-UNFINISHED_KEPT:]}
    for step in _mine(place, [step for step in steps if step not in stay], run, shard):
        if shard == 0:
            _remove_whole(place, step)
        remove_part(place, step, shard)
    return newest


def _mine(place: Place, steps: Sequence[int], run: str, shard: int) -> list[int]:
    found = {step: read_part(place, step, shard) for step in steps}
    return [step for step, part in found.items() if part is not None and part.history.run == run]


def _remove_whole(place: Place, step: int) -> None:
    place.remove(f"{step_name(step)}/{WHOLE}")
    place.remove(model_name(step))


def remove_part(place: Place, step: int, shard: int) -> None:
    """Its part.json goes first: what has one is whole."""
    place.remove(f"{part_name(step, shard)}/{PART}")
    place.remove(part_name(step, shard))
