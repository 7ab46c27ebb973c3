"""What the probes answer: whether the operator is live and ready, and how old its news are.

The liveness probe fails only for what a restart heals: a pass or the election that hangs, though
each of its calls has a deadline, or a watch that has neither failed nor seen a sign of life. An API
server that is away or refuses is none of these, however long it lasts.

The readiness probe fails until every collection has been listed, and while one has been out of
sight for BROKEN_SECONDS_MAX of an API server that answers, as is known from the election, which
asks it every two seconds. A standby is ready. Nothing is routed by readiness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_operator.kube.observed.cache import Sight

PASS_SECONDS_MAX = 120.0
WATCH_SECONDS_MAX = 180.0  # longer than silence, back-off and the deadline of a call together
BROKEN_SECONDS_MAX = 60.0
ELECTION_SECONDS_MAX = 60.0  # longer than a look at the Lease with the deadlines of its calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What each part of the operator did last, in monotonic seconds; None: never yet."""

    now: float
    leads: bool
    holder: str  # who leads, as far as this replica knows; empty: nobody
    tried_at: float  # when it last looked at the Lease, or tried to
    answering_since: float | None  # since when the API server answers each look; None: it does not
    last_pass_at: float | None = None  # that succeeded
    passes: Mapping[str, float] = field(default_factory=dict)  # that run: since when, by job
    sights: Mapping[str, Sight] = field(default_factory=dict)  # by path


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A probe's answer."""

    problems: tuple[str, ...]
    signs: Signs

    @property
    def ok(self) -> bool:
        return not self.problems

    def body(self) -> dict[str, object]:
        """The answer as JSON: what is wrong, and ages in seconds."""
        signs = self.signs

        def age(at: float | None) -> float | None:
            return None if at is None else round(signs.now - at, 1)

        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "role": "leader" if signs.leads else "standby",
            "leader": signs.holder,
            "leaseSeconds": age(signs.tried_at),
            "lastPassSeconds": age(signs.last_pass_at),
            "runningPassSeconds": {job: age(at) for job, at in sorted(signs.passes.items())},
            "watchSeconds": {path: age(s.alive_at) for path, s in sorted(signs.sights.items())},
        }


def live(signs: Signs) -> Health:
    now, watches = signs.now, signs.sights.items()
    found = [
        f"the pass of {k} hangs" for k, at in signs.passes.items() if now - at > PASS_SECONDS_MAX
    ]
    found += [f"the watch of {k} hangs" for k, s in watches if now - s.tried_at > WATCH_SECONDS_MAX]
    if now - signs.tried_at > ELECTION_SECONDS_MAX:
        found.append("the election hangs")
    return Health(problems=tuple(found), signs=signs)


def ready(signs: Signs) -> Health:
    problems, now = [], signs.now
    answering = 0.0 if signs.answering_since is None else now - signs.answering_since
    for path, each in signs.sights.items():
        why = f": {each.problem}" if each.problem else ""
        broken = 0.0 if each.broken_at is None else now - each.broken_at
        if not each.listed:
            problems.append(f"{path} is not listed yet{why}")
        elif min(broken, answering) > BROKEN_SECONDS_MAX:
            problems.append(f"{path} cannot be watched{why}")
    return Health(problems=tuple(problems), signs=signs)
