"""What one install of the operator is told: by the chart, through the environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_protos.errors import SpecError

EVERY_REGION = "*"
REGION_LABEL = "topology.kubernetes.io/region"
PULL_POLICY = "IfNotPresent"
HTTP_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One install serves `regions`, or ("*",): every region, told apart by a label of nodes."""

    worker_image: str  # of learners and evaluators whose template names none
    syncer_image: str
    regions: tuple[str, ...] = (EVERY_REGION,)
    region_label: str = REGION_LABEL
    pull_policy: str = PULL_POLICY
    http_port: int = HTTP_PORT  # probes and metrics
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
    regions = _words(environment.get("ATOLL_OPERATOR_REGIONS", EVERY_REGION))
    if not regions or (EVERY_REGION in regions and len(regions) > 1):
        raise SpecError("ATOLL_OPERATOR_REGIONS", "mixes * and names", "give * or names")
    return Settings(
        worker_image=_required(environment, "ATOLL_WORKER_IMAGE"),
        syncer_image=_required(environment, "ATOLL_SYNCER_IMAGE"),
        regions=regions,
        region_label=environment.get("ATOLL_OPERATOR_REGION_LABEL", REGION_LABEL),
        pull_policy=environment.get("ATOLL_OPERATOR_PULL_POLICY", PULL_POLICY),
        http_port=int(environment.get("ATOLL_OPERATOR_HTTP_PORT", str(HTTP_PORT))),
        namespaces=_words(environment.get("ATOLL_OPERATOR_NAMESPACES", "")),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SpecError(name, "is not set", "set it to the image of the pods")
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
