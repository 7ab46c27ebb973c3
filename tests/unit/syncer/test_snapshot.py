"""A history as plain JSON values: nothing of it is forgotten."""

import dataclasses
import json
from typing import Any

import pytest

from atoll_protos import documents
from atoll_syncer.model.history import HeadVersion, History
from atoll_syncer.model.log import (
    Closed,
    Merged,
    Owned,
    Settled,
    ShardFinal,
    Taken,
    Trained,
    Uptime,
)


def a_history() -> History:
    """With a value in every field that is not its default."""
    taken = Taken(slot="a-0", incarnation=3, uid="u", instance="u-1", tokens=5)
    head = HeadVersion(number=4, epoch=2, digest="d", object="o", last=True)
    merged = Merged(slot="a-0", incarnation=3, base=3, capture=24, cursor=99)
    settled = Settled(merged=1, overlap=2, late=3)
    trained = Trained(incarnation=3, before=5, now=2, said=2, settled=settled, parent=4)
    return History(
        run="r",
        run_hash="h",
        key="k",
        epoch=2,
        pod="p",
        instance="p-1",
        taken={"a-0": taken},
        superseded={"a-0": ["u-0", "u-00"]},
        superseded_uids={"a-0": {"t", "s"}},
        owned={"a-0": Owned(slot="a-0", uid="u", generation=2)},
        begun={0, 1},
        model_from="a-0",
        tensors=({"name": "w", "shape": [2, 3], "dtype": "float32", "merge": "mean"},),
        layout_digest="l",
        frozen_digest="f",
        heads={0: head, 10: head},
        previous={1: head},
        merged={10: {"a-0": merged}, 2: {"b-0": merged}},
        previous_merged={10: {"a-0": merged}},
        trained={"a-0": trained},
        cursors={"a-0": 99},
        data_states={"a-0": "o2"},
        named={"a-0": 3},
        due={0: 8, 10: 4},
        checkpoint="s3://b/step-9",
        first_tick=9,
        tick=17,
        commits=5,
        merges=4,
        uptime=Uptime(seconds=9.5, training_seconds=9.0),
        merged_offers=7,
        incomplete=True,
        lost_entries=2,
        lost_before_seed=3,
        suspect={0, 10},
        torn={10},
        ended=True,
        finals={1: ShardFinal(shard=1, file="f", digest="z")},
        closed=Closed(result="Complete", reason=""),
    )


def test_every_field_of_a_history_comes_back_from_a_snapshot() -> None:
    before, empty = a_history(), History()
    for each in dataclasses.fields(History):
        assert getattr(before, each.name) != getattr(empty, each.name), each.name
    document = json.loads(json.dumps(documents.to_document(before)))
    assert documents.from_document(History, document) == before
    assert (
        documents.from_document(History, json.loads(json.dumps(documents.to_document(empty))))
        == empty
    )


def test_a_snapshot_of_another_version_is_read_as_far_as_it_is_known() -> None:
    document = documents.to_document(a_history())
    del document["torn"]
    document["later"] = True
    document["closed"]["later"] = True
    found = documents.from_document(History, document)
    assert found.torn == set()
    assert found.closed == Closed(result="Complete", reason="")


def test_a_copy_does_not_change_with_its_history() -> None:
    before = a_history()
    copied = before.copy()
    assert copied == before
    before.apply(Taken(slot="a-0", incarnation=4, uid="v", instance="v-1"))
    before.lose(1)
    assert copied == a_history()


@pytest.mark.parametrize("wrong", [{"run": 3}, {"epoch": "2"}, {"due": {"0": "8"}}])
def test_what_has_another_type_is_no_snapshot(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no"):
        documents.from_document(History, {**documents.to_document(a_history()), **wrong})
