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
    names = [name for name in vars(Metrics()) if name not in ("registry", "jobs", "namespaces")]
    assert "metrics.show_states(" in text  # jobs
    assert names
    for name in names:
        assert re.search(rf"metrics\.{name}\b", text), name


def test_jobs_are_counted_by_state_and_a_state_that_nobody_is_in_shows_0() -> None:
    metrics = Metrics()

    def shown(state: str) -> float | None:
        return metrics.registry.get_sample_value(
            "atoll_operator_jobs", {"job_namespace": "team", "state": state}
        )

    of_team = [("team", state) for state in ("Training", "Training", "Stalled", "")]
    metrics.show_states([*of_team, ("other", "Training")])
    assert (shown("Training"), shown("Stalled"), shown("Failed")) == (2, 1, 0)
    metrics.show_states([("team", "Failed")])
    assert (shown("Training"), shown("Stalled"), shown("Failed")) == (0, 0, 1)
    assert shown("") is None
    metrics.show_states([])  # its last job is deleted
    assert shown("Failed") == 0
