"""Alerts and dashboard: each reads metrics and labels that the programs export."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client import CollectorRegistry

from atoll_operator.api.status.reasons import STATUSES
from atoll_operator.kube.metrics import Metrics as OperatorMetrics
from atoll_protos.job.run_file import SLOT_TEXTS
from atoll_syncer.duties.metrics import ShardMetrics
from chart.rendering import of_kind, template
from chart.shown import DASHBOARD, RULES, panels, rules

SUFFIXES = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
}
NAME = re.compile(r"\batoll_(?:syncer|operator)_[a-z_]+\b")
SELECTED = re.compile(r"(atoll_[a-z_]+)\{([^}]*)\}")
OF_A_SCRAPE = {"namespace", "training_job", "shard", "pod"}
GROUPED = re.compile(r"(?:by|without) \(([^)]*)\)")


def exported() -> dict[str, set[str]]:
    """Labels by the name of each sample that an operator or a shard may export."""
    found = {}
    for program in (OperatorMetrics(), ShardMetrics(CollectorRegistry())):
        metrics = {id(each): each for each in vars(program).values() if hasattr(each, "_type")}
        for metric in metrics.values():
            labels = {*metric._labelnames} | ({"le"} if metric._type == "histogram" else set())
            for suffix in SUFFIXES[metric._type]:
                found[metric._name + suffix] = labels
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Yield title and query of every alert and of every panel."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    yield from panels()


QUERIES = [pytest.param(expr, id=f"{title} {n}") for n, (title, expr) in enumerate(queries())]


@pytest.mark.parametrize("expr", QUERIES)
def test_every_query_reads_metrics_that_are_exported(expr: str) -> None:
    names = NAME.findall(expr)
    assert names
    assert {*names} <= exported().keys()


@pytest.mark.parametrize("expr", QUERIES)
def test_every_query_uses_labels_that_its_metrics_have(expr: str) -> None:
    known = exported()
    for name, selectors in SELECTED.findall(expr):
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)", selectors):
            assert label in known[name] | OF_A_SCRAPE, (name, label)
    have = set().union(*(known[name] for name in NAME.findall(expr))) | OF_A_SCRAPE
    for group in GROUPED.findall(expr):
        assert {label.strip() for label in group.split(",")} <= have


@pytest.mark.parametrize("expr", QUERIES)
def test_every_state_that_a_query_names_is_one(expr: str) -> None:
    states = {
        "atoll_operator_jobs": {reason for kind, reason in STATUSES if kind == "Ready"},
        "atoll_syncer_slots": {*SLOT_TEXTS.values()},
    }
    for name, selectors in SELECTED.findall(expr):
        for words in re.findall(r'\bstate=~?"([^"]+)"', selectors):
            assert {*words.split("|")} <= states[name]


def test_the_chart_ships_both_as_they_are_with_the_labels_that_find_them(helm: str) -> None:
    found = template(
        helm, "metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.release=p",
        "metrics.dashboard.enabled=true",
    )  # fmt: skip
    (rule,) = of_kind(found, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "p"
    (dashboard,) = of_kind(found, "ConfigMap")
    assert json.loads(dashboard["data"]["atoll.json"]) == json.loads(DASHBOARD.read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_shards_samples_carry_the_name_of_its_job(helm: str) -> None:
    (_, shards) = of_kind(template(helm, "metrics.podMonitor.enabled=true"), "PodMonitor")
    (endpoint,) = shards["spec"]["podMetricsEndpoints"]
    assert {each["targetLabel"] for each in endpoint["relabelings"]} <= OF_A_SCRAPE
