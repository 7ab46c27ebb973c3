from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from atoll_syncer.metrics import OFFER_OUTCOMES, SLOT_STATES, STORE_TROUBLES, Metrics

BOUNDED = {"state", "outcome", "trouble", "code", "le"}


def collected() -> list[Metric]:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.refusals.labels("FULL").inc()
    metrics.commit_seconds.observe(0.2)
    return list(registry.collect())


def test_every_name_has_the_prefix_and_a_base_unit_or_counts_something() -> None:
    for metric in collected():
        assert metric.name.startswith("atoll_syncer_")
        assert not metric.name.endswith(("_ms", "_milliseconds", "_mb", "_percent"))
        assert metric.documentation


def test_counters_end_in_total() -> None:
    text = generate_latest(Metrics(CollectorRegistry()).registry).decode()
    for line in text.splitlines():
        if line.startswith("# TYPE") and line.endswith(" counter"):
            assert line.split()[2].endswith("_total")


def test_no_label_is_unbounded() -> None:
    for metric in collected():
        for sample in metric.samples:
            assert set(sample.labels) <= BOUNDED


def test_states_and_outcomes_are_there_from_the_first_scrape() -> None:
    text = generate_latest(Metrics(CollectorRegistry()).registry).decode()
    for state in SLOT_STATES:
        assert f'atoll_syncer_slots{{state="{state}"}} 0.0' in text
    for outcome in OFFER_OUTCOMES:
        assert f'atoll_syncer_offers_total{{outcome="{outcome}"}} 0.0' in text
    for trouble in STORE_TROUBLES:
        assert f'atoll_syncer_store_troubles_total{{trouble="{trouble}"}} 0.0' in text
