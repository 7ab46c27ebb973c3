"""Writes the model of a whole checkpoint beside its parts, as an export has it (rule 42).

    each slice of each part --> SCRATCH/rendered/parts: what learners hold of it
    these, and the companion --> SCRATCH/rendered: the model's files (storage/export)
                            --> PLACE/step-N/model/, the index last

One slice is in memory at a time. What is begun is begun anew after trouble.
"""

import shutil
from pathlib import Path
from typing import Final

import numpy as np

from atoll_protos.job.companion import PARTS
from atoll_protos.transfer.arrays import F32
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.checkpoints import copies
from atoll_syncer.checkpoints.copies import Attempt
from atoll_syncer.checkpoints.places import DAMAGED, Place
from atoll_syncer.model.history import History
from atoll_syncer.storage import companions, snapshots
from atoll_syncer.storage.export import INDEXES, Export, ExportPart, as_learners_hold, encode_part
from atoll_syncer.storage.files import whole_file
from atoll_syncer.storage.store import Store, StoreCorrupt, StoreMissing
from atoll_syncer.storage.versions import read_slice

FOLDER: Final = "rendered"


def render(place: Place, attempt: Attempt, scratch: Path, wire_down: Wire) -> None:
    """Raises StoreCorrupt and StoreMissing (a part is damaged), StoreFull and StoreUnavailable."""
    name, target = copies.model_name(attempt.step), Export(scratch / FOLDER)
    if any(_is_there(place, f"{name}/{index}") for index in INDEXES):
        return
    shutil.rmtree(target.folder, ignore_errors=True)
    parts, numbers = list[ExportPart](), range(attempt.shards)
    stores = [place.part(copies.part_name(attempt.step, number)) for number in numbers]
    histories = [_history(store) for store in stores]
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
    first = histories[0]
    companion = [
        companions.read_parts(stores[0], names)
        for names in (first.companion, first.companion_changed)
    ]
    tick = min(each.tick for each in histories)
    target.assemble(first.run, attempt.layout, parts, companion, tick=tick)
    place.bring(target.folder, name)
    shutil.rmtree(target.folder, ignore_errors=True)


def _is_there(place: Place, name: str) -> bool:
    try:
        return bool(place.read(name))
    except StoreMissing:
        return False


def _history(part: Store) -> History:
    found = snapshots.read_newest(part)
    if found is None:
        raise StoreCorrupt("snapshots", "there is none that is whole", DAMAGED)
    return found.history
