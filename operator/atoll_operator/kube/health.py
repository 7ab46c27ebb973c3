"""What the probes answer: whether the operator is live and ready, and how old its news are.

The liveness probe fails only for what a restart heals, which is a part that hangs: a pass that has
run for PASS_SECONDS_MAX, though every call in it has a deadline of its own, or a watch that has
done nothing for WATCH_SECONDS_MAX, neither failed nor seen a sign of life. An API server that is
away, or that refuses, is nothing that a restart heals: the watches try again with back-off, so they
do not hang, and the operator is not killed for it, however long it lasts.

The readiness probe says whether the operator does its work, or could take it over: every collection
has been listed, and none has been out of sight for BROKEN_SECONDS_MAX of an API server that
answers. Whether it answers is known from the election, which asks it every two seconds; where it
does not, no replica is better than another, and nothing is wrong with this one. Nothing is routed
by readiness: it is for `kubectl get pods`, `helm --wait`, budgets and alerts. A standby is ready,
and so is an operator without jobs in a cluster where nothing happens: bookmarks come each minute.

The body of both says whether this replica leads, which one does, and every age: of the last pass,
of the last look at the Lease, and by watch of its last sign of life.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_operator.kube.cache import Sight

PASS_SECONDS_MAX = 120.0
WATCH_SECONDS_MAX = 180.0  # longer than silence, back-off and the deadline of a call together
BROKEN_SECONDS_MAX = 60.0
ELECTION_SECONDS_MAX = 60.0  # longer than a look at the Lease with the deadlines of its calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long ago what happened, in seconds; None: never yet."""

    election: "ElectionAge"
    last_pass: float | None = None  # that succeeded
    passes: Mapping[str, float] = field(default_factory=dict)  # that run now: since when, by job
    watches: Mapping[str, "WatchAge"] = field(default_factory=dict)  # by path


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionAge:
    """This replica in the election, in seconds."""

    leads: bool
    holder: str  # who leads, as far as this replica knows; empty: nobody
    tried: float  # since it last looked at the Lease, or tried to
    answering: float | None  # for how long the API server has answered each look; None: it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAge:
    """One watch, in seconds."""

    tried: float  # since it last did anything
    alive: float | None = None  # since its last list, event or bookmark
    broken: float | None = None  # since when it does not work; None: it works
    problem: str = ""
    listed: bool = True


def watch_age(sight: Sight, now: float) -> WatchAge:
    """The ages of one watch."""
    return WatchAge(
        tried=now - sight.tried_at,
        alive=None if sight.alive_at is None else now - sight.alive_at,
        broken=None if sight.broken_at is None else now - sight.broken_at,
        problem=sight.problem,
        listed=sight.listed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A probe's answer."""

    problems: tuple[str, ...]
    ages: Ages

    @property
    def ok(self) -> bool:
        """Whether the probe succeeds."""
        return not self.problems

    def body(self) -> dict[str, object]:
        """The answer as JSON: what is wrong, and ages in seconds."""
        watches = {path: each.alive for path, each in self.ages.watches.items()}
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "role": "leader" if self.ages.election.leads else "standby",
            "leader": self.ages.election.holder,
            "leaseSeconds": round(self.ages.election.tried, 1),
            "lastPassSeconds": _rounded({"": self.ages.last_pass})[""],
            "runningPassSeconds": _rounded(self.ages.passes),
            "watchSeconds": _rounded(watches),
        }


def live(ages: Ages) -> Health:
    """Fails when a restart of the operator is needed."""
    hanging = [f"the pass of {k} hangs" for k, s in ages.passes.items() if s > PASS_SECONDS_MAX]
    hanging += [
        f"the watch of {path} hangs"
        for path, each in ages.watches.items()
        if each.tried > WATCH_SECONDS_MAX
    ]
    if ages.election.tried > ELECTION_SECONDS_MAX:
        hanging.append("the election hangs")
    return Health(problems=tuple(hanging), ages=ages)


def ready(ages: Ages) -> Health:
    """Fails until everything is listed, and while something has been out of sight for long."""
    problems, answering = [], ages.election.answering or 0.0
    for path, each in ages.watches.items():
        why = f": {each.problem}" if each.problem else ""
        if not each.listed:
            problems.append(f"{path} is not listed yet{why}")
        elif each.broken is not None and min(each.broken, answering) > BROKEN_SECONDS_MAX:
            problems.append(f"{path} cannot be watched{why}")
    return Health(problems=tuple(problems), ages=ages)


def _rounded(ages: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if age is None else round(age, 1) for name, age in sorted(ages.items())}
