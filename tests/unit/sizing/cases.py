"""Jobs and lines of the tests: a billion parameters, steps of a second."""

from typing import Any

from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.spec import Spec
from atoll_operator.sizing.needs import Assumptions, RegionLink

BILLION = 10**9


def spec_of(learners: dict[str, int], **more: Any) -> Spec:
    """Learners by region, of which the first has the shards."""
    named = [{"name": name, "learners": count} for name, count in learners.items()]
    spec = {"steps": 3600, "regions": named, **more}
    return from_object({"metadata": {"name": "big"}, "spec": spec}).spec


def given(links: dict[str, tuple[float, float]] | None = None, seconds: float = 1.0) -> Assumptions:
    """Gbit/s and seconds of a round trip by region."""
    return Assumptions(
        parameters=BILLION,
        step_seconds=seconds,
        links={
            name: RegionLink(bits_per_second=rate * 1e9, round_trip_seconds=seconds)
            for name, (rate, seconds) in (links or {}).items()
        },
    )
