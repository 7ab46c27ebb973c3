"""The settings of one install of the operator, which the chart gives through the environment.

They are read once at start. `atoll_protos.environment` has the variables with their defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_protos.environment import Env, default, value
from atoll_protos.errors import SpecError

EVERY_REGION = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most children (`observed.cache`) that jobs may have; by default any number."""

    of_job: float = float("inf")
    of_namespace: float = float("inf")
    in_all: float = float("inf")


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One install serves the named `regions`, or with ("*",) every region of a cluster.

    Where a cluster spans several, the label `region_label` of a node says in which region it lies.
    """

    worker_image: str  # of learners and evaluators whose template names none
    syncer_image: str
    regions: tuple[str, ...] = (EVERY_REGION,)
    region_label: str = default(Env.OPERATOR_REGION_LABEL)
    pull_policy: str = default(Env.OPERATOR_PULL_POLICY)
    pod_user: int | None = int(default(Env.OPERATOR_POD_USER))  # None: the cluster gives one
    http_port: int = int(default(Env.OPERATOR_HTTP_PORT))  # probes and metrics
    namespaces: tuple[str, ...] = ()  # empty: all
    api_requests_per_second: float = float(default(Env.OPERATOR_API_REQUESTS))
    api_burst: int = int(default(Env.OPERATOR_API_BURST))
    limits: Limits = NO_LIMITS  # of children
    lease: tuple[str, str] = ("default", "atoll-operator")  # namespace and name, of the election
    certificate_seconds: float = float(default(Env.OPERATOR_CERTIFICATE_SECONDS))

    @property
    def spans_regions(self) -> bool:
        return self.regions == (EVERY_REGION,)

    def serves(self, region: str) -> bool:
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
        pod_user=_user(environment, Env.OPERATOR_POD_USER),
        http_port=int(value(environment, Env.OPERATOR_HTTP_PORT)),
        namespaces=_words(value(environment, Env.OPERATOR_NAMESPACES)),
        api_requests_per_second=_above_zero(environment, Env.OPERATOR_API_REQUESTS),
        api_burst=int(_above_zero(environment, Env.OPERATOR_API_BURST)),
        limits=Limits(
            of_job=_above_zero(environment, Env.OPERATOR_CHILDREN_PER_JOB),
            of_namespace=_above_zero(environment, Env.OPERATOR_CHILDREN_PER_NAMESPACE),
            in_all=_above_zero(environment, Env.OPERATOR_CHILDREN),
        ),
        lease=_namespace_and_name(environment, Env.OPERATOR_LEASE),
        certificate_seconds=_above_zero(environment, Env.OPERATOR_CERTIFICATE_SECONDS),
    )


def _user(environment: Mapping[str, str], name: str) -> int | None:
    text = value(environment, name).strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise SpecError(name, f"is {text!r}", "give a number above 0, or nothing")
    return int(text)


def _above_zero(environment: Mapping[str, str], name: str) -> float:
    text = value(environment, name)
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise SpecError(name, f"is {text!r}", "give a number above 0")
    return found


def _namespace_and_name(environment: Mapping[str, str], variable: str) -> tuple[str, str]:
    text = value(environment, variable)
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise SpecError(variable, f"is {text!r}", "give NAMESPACE/NAME")
    return namespace, name


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
