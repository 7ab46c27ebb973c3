"""What a manifest itself expects of its links and steps, and warnings of what will not hold.

Where it gives no numbers (spec.sizing, and the link of a region) nothing is said. What a training
really needs, its tape and `atoll top` show.
"""

from atoll_operator.api.job.spec import Spec
from atoll_operator.sizing.advice import of_links
from atoll_operator.sizing.traffic import Given, RegionLink, traffic


def links(spec: Spec) -> dict[str, RegionLink]:
    return {
        each.name: RegionLink(
            bits_per_second=each.link.megabits_per_second * 1e6,
            round_trip_seconds=each.link.round_trip_milliseconds / 1e3,
        )
        for each in spec.regions
        if each.link is not None
    }


def warnings(spec: Spec) -> tuple[str, ...]:
    """One for each link or overlap that will not hold by the manifest's own numbers."""
    if spec.sizing is None or not spec.learners:
        return ()
    given = Given(
        parameters=spec.sizing.parameters,
        step_seconds=spec.sizing.step_milliseconds / 1e3,
        links=links(spec),
    )
    found = [each.said for each in of_links(spec, traffic(spec, given)) if each.used > 1]
    return tuple(f"{said}; `atoll plan` names settings that hold" for said in found)
