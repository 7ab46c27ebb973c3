"""Checkpoints of a run: copies of what its shards have stored (rule 42).

    PLACE/step-N/<shard>/         snapshots/ and objects/ as in the shard's store, part.json last
    PLACE/step-N/checkpoint.json  from shard 0, once all parts are there: the checkpoint is whole
    PLACE/step-N/model/           likewise, then: the model of it (checkpoints/rendering)

So a part is read like the store of a shard. Its part.json is created once, and then nothing of the
part changes. Of two processes of a shard that write one part both write objects that are named by
their content, and only one creates part.json.

A run that began with a checkpoint may come to a step of which its parent has left a part. That goes
first: parts of two runs are never taken together.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from atoll_protos import json_text
from atoll_protos.job.layout import Layout
from atoll_syncer.checkpoints.places import Place
from atoll_syncer.model import documents
from atoll_syncer.model.history import History
from atoll_syncer.storage import snapshots
from atoll_syncer.storage.snapshots import LogSnapshot
from atoll_syncer.storage.store import Store, StoreMissing

PART: Final = "part.json"
WHOLE: Final = "checkpoint.json"
UNFINISHED_KEPT: Final = 2  # of attempts; the older of them may become whole yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """What part.json says: of which run and moment the part is, and what it holds."""

    run: str
    run_hash: str
    step: int
    tick: int
    shard: int
    shards: int
    layout_digest: str
    position: int  # of the log's entry up to which it has everything
    objects: Mapping[str, int] = field(default_factory=dict)  # size of each in bytes
    slices: tuple[Mapping[str, Any], ...] = ()  # for other programs: what lies where


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
    if found.run == attempt.history.run:
        return True
    _remove_whole(place, attempt.step)
    remove_part(place, attempt.step, attempt.shard)
    return False


def works(
    place: Place, store: Store, attempt: Attempt, time: Callable[[], float]
) -> Iterator[Callable[[], object]]:
    """What is to be done for a part, one after the other; each may be done again."""
    sizes: dict[str, int] = {}

    def take(name: str) -> None:
        sizes[name] = place.take(store, attempt.part, name)

    def finish() -> None:
        part = place.part(attempt.part)
        taken = dataclasses.replace(attempt.snapshot, history=_of_checkpoint(attempt.history))
        snapshots.write(part, taken, time())
        part.create(PART, _document(_part_file(attempt, sizes)))

    yield lambda: place.make_part(attempt.part)
    for each in sorted(attempt.objects):
        yield lambda name=each: take(name)  # type: ignore[misc]
    yield finish


def _part_file(attempt: Attempt, sizes: Mapping[str, int]) -> PartFile:
    history, tensors = attempt.history, attempt.layout.tensors
    slices = [
        {
            "fragment": each.fragment,
            "object": history.heads[each.fragment].object,
            "pieces": [
                {
                    "tensor": tensors[piece.tensor].name,
                    "start": piece.start,
                    "stop": piece.stop,
                    "offset": piece.offset,
                }
                for piece in each.pieces
            ],
        }
        for each in attempt.layout.shard_slices(attempt.shard)
    ]
    return PartFile(
        run=history.run,
        run_hash=history.run_hash,
        step=attempt.step,
        tick=history.tick,
        shard=attempt.shard,
        shards=attempt.shards,
        layout_digest=history.layout_digest,
        position=attempt.snapshot.position,
        objects=sizes,
        slices=tuple(slices),
    )


# ------------------------------------------------------------ whole ones


def finish(place: Place, attempt: Attempt, time: Callable[[], float]) -> Sequence[int]:
    """The shards that have no part yet, or shard 0 alone, which says that it is whole; none: it is.

    Shard 0 says so in its place when all parts are there.
    """
    step, run = attempt.step, attempt.history.run
    if is_whole(place, step, run):
        return []
    parts = [read_part(place, step, shard) for shard in range(attempt.shards)]
    found = [each for each in parts if each is not None and each.run == run]
    if len(found) < attempt.shards or attempt.shard:
        there = {each.shard for each in found}
        return [shard for shard in range(attempt.shards) if shard not in there] or [0]
    about = {
        "format": 1,
        "run": run,
        "run_hash": attempt.history.run_hash,
        "from": attempt.restore_from,
        "uid": attempt.uid,
        "step": step,
        "time": time(),
        "tick": min(each.tick for each in found),
        "shards": attempt.shards,
        "layout_digest": attempt.history.layout_digest,
        "byte_count": sum(sum(each.objects.values()) for each in found),
        "tensors": attempt.history.tensors,
        "parts": found,
    }
    place.write(f"{step_name(step)}/{WHOLE}", _document(about))
    return []


def newer_elsewhere(place: Place, attempt: Attempt) -> int:
    """The newest step above an attempt's of which another shard has a part; 0: there is none."""
    run, others = attempt.history.run, [x for x in range(attempt.shards) if x != attempt.shard]
    for step in reversed(place.steps()):
        parts = (read_part(place, step, each) for each in others if step > attempt.step)
        if any(part is not None and part.run == run for part in parts):
            return step
    return 0


def is_whole(place: Place, step: int, run: str) -> bool:
    about = read_whole(place, step)
    return about is not None and about["run"] == run


def read_whole(place: Place, step: int) -> dict[str, Any] | None:
    """What checkpoint.json says; None: it is not there, or is none."""
    with suppress(StoreMissing, ValueError, KeyError, TypeError):
        about = json_text.mapping(place.read(f"{step_name(step)}/{WHOLE}"))
        for name, kind in (("run", str), ("time", float), ("tick", int), ("shards", int)):
            documents.from_document(kind, about[name])
        if about["shards"] > 0:
            return about
    return None


def of_job(about: Mapping[str, Any]) -> tuple[object, ...]:
    """By what the runs of one job are known: the run hash, spec.checkpoint.from, and its UID."""
    return about.get("run_hash"), about.get("from", ""), about.get("uid", "")


def read_part(place: Place, step: int, shard: int) -> PartFile | None:
    """What part.json says; None: it is not there, or is none."""
    with suppress(StoreMissing, ValueError, KeyError, TypeError, AttributeError):
        data = place.read(f"{part_name(step, shard)}/{PART}")
        found: PartFile = documents.from_document(PartFile, json_text.loads(data))
        return found
    return None


def _document(value: Any) -> bytes:
    return json.dumps(documents.to_document(value), indent=1).encode()


# ------------------------------------------------------------ removing


def prune(place: Place, attempt: Attempt, keep: int) -> int | None:
    """Remove this shard's parts of older checkpoints; returns the newest step that is whole.

    The newest `keep` whole ones stay, and the newest attempts, which may become whole yet.
    """
    run, shard = attempt.history.run, attempt.shard
    steps = place.steps()
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
    return [step for step, part in found.items() if part is not None and part.run == run]


def _remove_whole(place: Place, step: int) -> None:
    place.remove(f"{step_name(step)}/{WHOLE}")
    place.remove(model_name(step))


def remove_part(place: Place, step: int, shard: int) -> None:
    """Its part.json goes first: what has one is whole."""
    place.remove(f"{part_name(step, shard)}/{PART}")
    place.remove(part_name(step, shard))
