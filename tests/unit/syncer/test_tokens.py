"""Counts of what a slot has trained: of two origins, in the log, and in the metrics (rule 35)."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.model import documents, log
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Trained
from unit.syncer.scenes_side import Play

KNOWN = Trained(incarnation=2, before=100, now=30, said=50)


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (Trained(), KNOWN),
        (Trained(incarnation=2, before=90, now=40, said=60), {"now": 40, "said": 60}),
        (Trained(incarnation=2, before=110, now=20, said=20), {"before": 110}),
        (Trained(incarnation=1, before=60, now=70, said=70), {"before": 130}),
        (Trained(incarnation=1, before=60, now=7, said=7), KNOWN),
        (Trained(incarnation=3, now=5, said=5), Trained(incarnation=3, before=130, now=5, said=5)),
    ],
)
def test_two_counts_of_a_slot_make_one_in_either_order(
    other: Trained, both: Trained | dict[str, int]
) -> None:
    if isinstance(both, dict):
        both = Trained(**{"incarnation": 2, "before": 100, "now": 30, "said": 50, **both})
    assert KNOWN.also(other) == other.also(KNOWN) == both


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
