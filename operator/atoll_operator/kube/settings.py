"""What one install of the operator is told: by the chart, through the environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_protos.environment import Env, default, value
from atoll_protos.errors import SpecError

EVERY_REGION = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One install serves `regions`, or ("*",): every region, told apart by a label of nodes."""

    worker_image: str  # of learners and evaluators whose template names none
    syncer_image: str
    regions: tuple[str, ...] = (EVERY_REGION,)
    region_label: str = default(Env.OPERATOR_REGION_LABEL)
    pull_policy: str = default(Env.OPERATOR_PULL_POLICY)
    http_port: int = int(default(Env.OPERATOR_HTTP_PORT))  # probes and metrics
    namespaces: tuple[str, ...] = ()  # empty: all

    @property
    def spans_regions(self) -> bool:
        """Whether nodes of this cluster lie in several regions."""
        return self.regions == (EVERY_REGION,)

    def serves(self, region: str) -> bool:
        """Whether the region's pods are this install's to make."""
        return self.spans_regions or region in self.regions


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Raises SpecError that names the variable."""
    regions = _words(value(environment, Env.OPERATOR_REGIONS))
    if not regions or (EVERY_REGION in regions and len(regions) > 1):
        raise SpecError(Env.OPERATOR_REGIONS, "mixes * and names", "give * or names")
    return Settings(
        worker_image=value(environment, Env.WORKER_IMAGE),
        syncer_image=value(environment, Env.SYNCER_IMAGE),
        regions=regions,
        region_label=value(environment, Env.OPERATOR_REGION_LABEL),
        pull_policy=value(environment, Env.OPERATOR_PULL_POLICY),
        http_port=int(value(environment, Env.OPERATOR_HTTP_PORT)),
        namespaces=_words(value(environment, Env.OPERATOR_NAMESPACES)),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
