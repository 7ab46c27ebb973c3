"""The settings of one install of the operator, which the chart gives through the environment.

They are read once at start. `atoll_protos.environment` has the variables with their defaults.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from atoll_protos.environment import Env, default, value
from atoll_protos.errors import SpecError

EVERY_REGION = "*"

T = TypeVar("T")


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
    """Raise SpecError that names the variable."""

    def read(name: str, parse: Callable[[str], T]) -> T:
        text = value(environment, name).strip()
        try:
            return parse(text)
        except ValueError as error:
            raise SpecError(name, f"is {text!r}", str(error)) from error

    return Settings(
        worker_image=value(environment, Env.WORKER_IMAGE),
        syncer_image=value(environment, Env.SYNCER_IMAGE),
        regions=read(Env.OPERATOR_REGIONS, _regions),
        region_label=value(environment, Env.OPERATOR_REGION_LABEL),
        pull_policy=value(environment, Env.OPERATOR_PULL_POLICY),
        pod_user=read(Env.OPERATOR_POD_USER, _user),
        http_port=int(value(environment, Env.OPERATOR_HTTP_PORT)),
        namespaces=read(Env.OPERATOR_NAMESPACES, _words),
        api_requests_per_second=read(Env.OPERATOR_API_REQUESTS, _above_zero),
        api_burst=int(read(Env.OPERATOR_API_BURST, _above_zero)),
        limits=Limits(
            of_job=read(Env.OPERATOR_CHILDREN_PER_JOB, _above_zero),
            of_namespace=read(Env.OPERATOR_CHILDREN_PER_NAMESPACE, _above_zero),
            in_all=read(Env.OPERATOR_CHILDREN, _above_zero),
        ),
        lease=read(Env.OPERATOR_LEASE, _namespace_and_name),
        certificate_seconds=read(Env.OPERATOR_CERTIFICATE_SECONDS, _above_zero),
    )


def _regions(text: str) -> tuple[str, ...]:
    regions = _words(text)
    if not regions or (EVERY_REGION in regions and len(regions) > 1):
        raise ValueError("give * or names")
    return regions


def _user(text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("give a number above 0, or nothing")
    return int(text) if text else None


def _above_zero(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise ValueError("give a number above 0")


def _namespace_and_name(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ValueError("give NAMESPACE/NAME")
    return namespace, name


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
