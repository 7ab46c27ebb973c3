"""The chart's alerts and the dashboard's queries, as tests read them."""

import json
from typing import Any

import yaml

from chart.rendering import CHART

RULES = CHART / "files/rules.yaml"
DASHBOARD = CHART / "files/dashboard.json"
EVERYTHING = {"$namespace": ".*", "$training_job": ".*"}  # as the dashboard opens


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    """Title and query of each line that a panel shows."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], each["expr"]) for panel in found for each in panel.get("targets", [])]


def filled(query: str, interval: str) -> str:
    """A panel's query as Grafana sends it; the interval is that of rates."""
    for name, value in {**EVERYTHING, "$__rate_interval": interval}.items():
        query = query.replace(name, value)
    return query
