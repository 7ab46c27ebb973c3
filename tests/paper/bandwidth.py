"""The published bandwidths by formula: data-parallel training, and what `atoll plan` says."""

from typing import Any

from atoll_operator.api.job.spec import Spec
from atoll_operator.sizing.needs import Assumptions, traffic


def data_parallel(parameters: float, step_seconds: float, utilised: float) -> float:
    """Gbit/s of a site: bf16 gradients hide behind the backward pass, two thirds of a step [P]."""
    return 16 * parameters / (step_seconds * (2 / 3 + 1 / utilised - 1)) / 1e9


def planned(parameters: int, step_seconds: float, **sync: Any) -> tuple[float, float]:
    """Gbit/s up of one learner as `atoll plan` has them: in all, and of each of tau fragments."""
    job = {"steps": 1000, "regions": [{"name": "eu", "learners": 1}], "sync": sync}
    spec = Spec.model_validate(job)
    given = Assumptions(parameters=parameters, step_seconds=step_seconds)
    rate = traffic(spec, given).up / 1e9
    return rate, rate / spec.sync.overlap
