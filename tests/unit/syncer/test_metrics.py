"""A shard's metrics: names and labels, what an effect of its rules counts, what gauges show."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import SLOT_TEXTS
from atoll_syncer.duties.metrics import (
    OFFER_OUTCOMES,
    PREFIX,
    STORE_REQUESTS,
    STORE_TROUBLES,
    TOKEN_CLASSES,
    ShardMetrics,
)
from atoll_syncer.model.effects import Effect, EndSession
from unit.syncer.fixtures import Play

Samples = dict[str, float]

BOUNDED = {"region", "class", "state", "outcome", "kind", "trouble", "code", "reason", "le"}


def test_names_have_the_prefix_labels_are_bounded_and_known_ones_are_there_at_once() -> None:
    metrics = ShardMetrics(CollectorRegistry())
    text = generate_latest(metrics.registry).decode()
    for name, label, values in (
        ("slots", "state", SLOT_TEXTS.values()),
        ("offers_total", "outcome", OFFER_OUTCOMES),
        ("tokens_by_class", "class", TOKEN_CLASSES),
        ("store_requests_total", "kind", STORE_REQUESTS),
        ("store_troubles_total", "trouble", STORE_TROUBLES),
    ):
        assert all(f'atoll_syncer_{name}{{{label}="{value}"}} 0.0' in text for value in values)
    for line in text.splitlines():
        if line.startswith("# TYPE") and line.endswith(" counter"):
            assert line.split()[2].endswith("_total")
    metrics.refusals.labels("FULL").inc()
    metrics.commit_seconds.observe(0.2)
    for metric in metrics.registry.collect():
        assert metric.name.startswith("atoll_syncer_")
        assert not metric.name.endswith(("_ms", "_milliseconds", "_mb", "_percent"))
        assert metric.documentation
        assert all({*sample.labels} <= BOUNDED for sample in metric.samples)


# ---------------------------------------------------------------- what is counted


def shown(metrics: ShardMetrics) -> Samples:
    """Every sample that is not 0, by its name without the prefix, and its label; no buckets."""
    found = {}
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            if sample.value and not sample.name.endswith(("_bucket", "_created")):
                label = "".join(f" {value}" for value in sample.labels.values())
                found[sample.name.removeprefix(f"{PREFIX}_") + label] = sample.value
    return found


def counted(*effects: Effect) -> Samples:
    metrics = ShardMetrics(CollectorRegistry())
    for effect in effects:
        metrics.count(effect)
    return shown(metrics)


def played(scene: str) -> Play:
    """Slice 1 is due and called of two learners, which counts nothing; then this scene."""
    play = Play()
    play.round("a-0", "a-1", quorum=2, grace=False)
    assert counted(*play.one.effects) == {}
    play(scene)
    return play


COMMIT = {
    **{"commits_total": 1, "merges_total": 1, "offers_total merged": 2, "quorum_seconds_count": 1},
    **{"quorum_seconds_sum": 2.0, "commit_seconds_count": 1, "commit_seconds_sum": 0.25},
}


@pytest.mark.parametrize(
    ("scene", "counts"),
    [
        (
            "later 0.5; offer a-0 1 5; slow_disk; later 1.5; offer a-1 1 5; later 0.25; flush",
            COMMIT,
        ),
        (
            "round a-0 a-1 grace=False; offer a-0 1 5; wait 0.5; clear; begins a-1 5; whole a-1",
            {"offers_total late": 1},
        ),
        ("refuse a-0 5", {"offers_total late": 1}),
        ("offer a-0 1 5; effect Stage 1; leave a-0; join a-0 new", {"offers_total dropped": 1}),
        (
            "begins a-0 5; bad a-0 truncated",
            {"refusals_total BAD_TRANSFER": 1, "offers_total rejected": 1},
        ),
        ("owner a-0 another", {"refusals_total SUPERSEDED": 1, "zombies_refused_total": 1}),
        (  # a slice taken back is a commit without offers and times
            "empty a-0; holder a-0 9 8; clear; wait 1.0; held a-0 0 9; wait 1.0; held a-0 1 8",
            {"commits_total": 2, "recoveries_total": 2},
        ),
    ],
)
def test_what_happens_is_counted_once(scene: str, counts: Samples) -> None:
    assert counted(*played(scene).one.effects) == counts


@pytest.mark.parametrize("code", sorted({*pb.Code.keys()} - {"BAD_TRANSFER", "SUPERSEDED"}))
def test_every_other_refusal_is_no_offer_and_no_zombie(code: str) -> None:
    assert counted(EndSession(1, pb.End(code=code))) == {f"refusals_total {code}": 1}


# ---------------------------------------------------------------- gauges


def test_the_gauges_show_what_is_there_now_and_go_back() -> None:
    play = played("join - eye observer=True; leave a-1")
    one, metrics = play.one, ShardMetrics(CollectorRegistry())
    metrics.refresh(one.state, 4096, 3, one.now)
    always = {"epoch": 1, "tick": one.state.clock.tick, "tape_dropped_lines": 3}
    found = {"sessions": 2, "slots Training": 1, "slots Lost": 1, "rounds_open": 1}
    assert shown(metrics) == always | found | {"staged_bytes": 4096}
    play("join a-1; report a-1 5; offer a-0 1 5; offer a-1 1 5")
    metrics.refresh(one.state, 0, 3, one.now)
    counted_now = {"merge_share_max": 0.5, "tokens_by_class merged": 50.0}
    assert shown(metrics) == always | counted_now | {"sessions": 3, "slots Training": 2}
    play("round a-0 a-1; offer a-0 1 5")
    metrics.refresh(play.one.state, 0, 3, play.one.now)
    assert shown(metrics)["grace_seconds"] == play.one.state.rounds.open[1].grace_seconds > 0
