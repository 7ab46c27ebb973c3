"""What the probes answer: whether the operator is live and ready, and how old its news are.

A probe must fail only for what a restart heals, and never in a cluster that is merely quiet. So
limits stand on two ages only. A pass that has run for PASS_SECONDS_MAX hangs: every call in it has
a deadline of its own. A watch of nodes or Leases without any sign for WATCH_SECONDS_MAX is dead:
the API server sends a bookmark every minute and ends each watch after five. All other ages (of the
last pass, of the last event of each kind that kopf watches) are reported for people, without a
limit: without jobs there are no passes, and without changes no events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PASS_SECONDS_MAX = 120.0
WATCH_SECONDS_MAX = 420.0  # longer than one watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long ago what happened, in seconds; None: never yet."""

    last_pass: float | None = None  # that succeeded
    passes: Mapping[str, float] = field(default_factory=dict)  # that run now: since when, by job
    watches: Mapping[str, float] = field(default_factory=dict)  # last sign of life, by path
    events: Mapping[str, float | None] = field(default_factory=dict)  # last one, by plural


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
        last = self.ages.last_pass
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "lastPassSeconds": None if last is None else round(last, 1),
            "runningPassSeconds": _rounded(self.ages.passes),
            "watchSeconds": _rounded(self.ages.watches),
            "lastEventSeconds": _rounded(self.ages.events),
        }


def live(ages: Ages) -> Health:
    """Fails when a restart of the operator is needed."""
    hanging = [f"the pass of {k} hangs" for k, s in ages.passes.items() if s > PASS_SECONDS_MAX]
    silent = [
        f"the watch of {p} is silent" for p, s in ages.watches.items() if s > WATCH_SECONDS_MAX
    ]
    return Health(problems=(*hanging, *silent), ages=ages)


def ready(ages: Ages, *, listed: bool) -> Health:
    """Fails until nodes and Leases have been `listed`: before that no lost node is seen."""
    return Health(problems=() if listed else ("nodes are not listed yet",), ages=ages)


def _rounded(ages: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if age is None else round(age, 1) for name, age in sorted(ages.items())}
