"""What the rules know of the checkpoint with which a run begins (rule 43)."""

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_syncer.model.log import Trained


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """`url` names it alone. Mappings are by slot; `data_states` are objects of this shard's store.

    `kept` are the data states themselves.
    """

    url: str
    run: str
    tick: int
    cursors: Mapping[str, int]
    trained: Mapping[str, Trained]
    data_states: Mapping[str, str]
    kept: Mapping[str, bytes]
