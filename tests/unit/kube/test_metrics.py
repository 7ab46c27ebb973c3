"""No metric is registered and never set: an alert on it would be silent."""

import re
from pathlib import Path

import atoll_operator.kube
from atoll_operator.kube.metrics import Metrics

FOLDER = Path(atoll_operator.kube.__file__).parent


def test_every_metric_is_set_somewhere() -> None:
    text = "".join(
        each.read_text() for each in FOLDER.rglob("*.py") if each.name not in ("metrics.py",)
    )
    names = [name for name in vars(Metrics()) if name != "registry"]
    assert names
    for name in names:
        assert re.search(rf"metrics\.{name}\b", text), name
