"""Counts of what a slot has trained: of two origins, in the log, and in the metrics (rule 35)."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from atoll_protos import documents
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Settled, Trained
from unit.syncer.fixtures import Play

KNOWN = Trained(incarnation=2, before=100, now=30, said=50, settled=Settled(merged=6, late=2))
FOLLOWED = Trained(incarnation=3, before=130, now=5, said=5, settled_before=KNOWN.settled)


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (Trained(), KNOWN),
        (Trained(incarnation=2, before=90, now=40, said=60), {"now": 40, "said": 60}),
        (Trained(incarnation=2, before=110, now=20, said=20), {"before": 110}),
        (Trained(incarnation=1, before=60, now=70, said=70), {"before": 130}),
        (Trained(incarnation=1, before=60, now=7, said=7), KNOWN),
        (Trained(incarnation=2, settled=Settled(late=7)), {"settled": Settled(merged=6, late=7)}),
        (
            Trained(incarnation=1, settled=Settled(overlap=5), settled_before=Settled(overlap=4)),
            {"settled_before": Settled(overlap=9)},
        ),
        (Trained(incarnation=1, parent=50), {"parent": 50}),
        (Trained(incarnation=3, now=5, said=5), FOLLOWED),
    ],
)
def test_two_counts_of_a_slot_make_one_in_either_order(
    other: Trained, both: Trained | dict[str, Any]
) -> None:
    if isinstance(both, dict):
        both = replace(KNOWN, **both)
    assert KNOWN.also(other) == other.also(KNOWN) == both


def test_a_merge_counts_for_the_process_whose_offer_it_has() -> None:
    assert KNOWN.merges(2, 10).settled == Settled(merged=16, late=2)
    assert KNOWN.merges(1, 10) == replace(KNOWN, settled_before=Settled(merged=10))
    assert KNOWN.merges(3, 10).settled_before == KNOWN.settled
    assert KNOWN.merges(3, 10).settled == Settled(merged=10)


def test_the_counts_are_in_the_log_in_a_snapshot_of_it_and_in_the_metrics() -> None:
    play = Play()
    play.counted(400, 1000)
    counted = log.Counted(trained={"a-1": KNOWN})
    entries = [log.from_document(log.to_document(each)) for each in (*play.one.entries, counted)]
    assert entries[-1] == counted
    history = History.of(entries)
    totals = {slot: each.total for slot, each in history.trained.items()}
    assert totals == {"a-0": 400, "b-0": 1000, "a-1": 130}
    again = documents.from_document(History, documents.to_document(history))
    assert again.trained == history.trained
    registry = CollectorRegistry()
    ShardMetrics(registry).refresh(play.one.state, 0, 0, play.one.now)
    assert "atoll_syncer_tokens 1400.0" in generate_latest(registry).decode()
