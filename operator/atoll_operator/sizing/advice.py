"""Which limit of a job is the tightest, and which setting would help most.

Each setting is tried on the same job: the smallest value with which everything holds, or else the
one beyond which it gains nothing more. So the advice follows from the formulas alone. What a longer
period or a shorter number format does to the quality of the model is in docs/algorithm.md.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from atoll_operator.api.job.spec import Spec
from atoll_operator.api.job.sync_fields import PERIOD_MAX
from atoll_operator.api.job.syncer_fields import SHARDS_MAX
from atoll_operator.sizing.machines import Machines, machines
from atoll_operator.sizing.traffic import Given, Traffic, fragments, traffic
from atoll_protos.transfer import codecs
from atoll_protos.transfer.codecs import Wire

LINK_SHARE_MAX: Final = 0.8  # of a link, on average: above it slices wait for each other
WAITING_SHARE_MAX: Final = 0.1  # of the time of learners that wait for each other
THREAD_SHARE_MAX: Final = 0.5  # of a tick
TRIES: Final = 12  # to find the least value of a setting
TOGETHER_MAX: Final = 4  # settings that are proposed together
GAIN: Final = 0.99  # of what was used before: what gains less is no advice
SHORTER_WIRES: Final = (  # up and down
    (Wire.INT8, Wire.INT8),
    (Wire.INT4, Wire.INT8),
    (Wire.INT2, Wire.INT4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """`used`: of what works well, so above 1 it does not hold."""

    what: str
    used: float
    said: str  # the same in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A change of the manifest, and how much of the tightest limit is used after it."""

    setting: str
    used: float
    tightest: str

    @property
    def holds(self) -> bool:
        return self.used <= 1


def limits(spec: Spec, given: Given) -> tuple[LimitUse, ...]:
    """The tightest first; without a link of any region only those of processors."""
    moves = traffic(spec, given)
    needed = machines(spec, given.parameters, moves)
    found = (*of_links(spec, moves), *_of_processors(spec, needed, moves.tick_seconds))
    return tuple(sorted(found, key=lambda each: -each.used))


def of_links(spec: Spec, moves: Traffic) -> Iterator[LimitUse]:
    """Of lines, of overlaps, and of waits for them."""
    for each in moves.borders:
        if each.link_share is not None:
            yield LimitUse(
                what=f"the link of {each.region}",
                used=each.link_share / LINK_SHARE_MAX,
                said=f"{each.region}: {each.link_share:.0%} of its link on average, and"
                f" {LINK_SHARE_MAX:.0%} is the most that works well",
            )
        if each.way_seconds is not None and not spec.sync.lockstep:
            yield LimitUse(
                what=f"the overlap for {each.region}",
                used=each.way_seconds / moves.slack_seconds,
                said=f"{each.region}: a fragment's way takes {each.way_seconds:.2g} s, and the"
                f" overlap hides {moves.slack_seconds:.2g} s, so work comes too late",
            )
    if spec.sync.lockstep and moves.waiting_share is not None:
        yield LimitUse(
            what="the wait for the slowest link",
            used=moves.waiting_share / WAITING_SHARE_MAX,
            said=f"learners wait for the network in {moves.waiting_share:.0%} of their time",
        )


def _of_processors(spec: Spec, needed: Machines, tick_seconds: float) -> Iterator[LimitUse]:
    yield LimitUse(
        what="the shards' processors",
        used=needed.shards_exact / spec.syncer.shards,
        said=f"the merges need {needed.shards_least} shards, and there are {spec.syncer.shards}",
    )
    yield LimitUse(
        what="a learner's transport",
        used=needed.learner_thread / (THREAD_SHARE_MAX * tick_seconds),
        said=f"the transport of a learner needs {needed.learner_thread:.2g} s of one core in each"
        f" step of {tick_seconds:.2g} s",
    )


def options(spec: Spec, given: Given) -> tuple[Option, ...]:
    """What helps, the most first."""
    return tuple(option for option, _, _ in _tried(spec, given))


def together(spec: Spec, given: Given) -> tuple[str, ...]:
    """Settings that hold together, each the best one after those before it; empty: none do."""
    found: list[str] = []
    while limits(spec, given)[0].used > 1:
        tried = _tried(spec, given)
        if not tried or len(found) == TOGETHER_MAX:
            return ()
        option, spec, given = tried[0]
        found.append(option.setting)
    return tuple(found)


def _tried(spec: Spec, given: Given) -> list[tuple[Option, Spec, Given]]:
    """The best first, each with the job and the lines as they are then."""
    before = limits(spec, given)[0].used
    found = []
    for setting, changed in _changes(spec, given):
        lines = _moved(spec, changed, given)
        tightest = limits(changed, lines)[0]
        if tightest.used < before * GAIN:
            option = Option(setting=setting, used=tightest.used, tightest=tightest.what)
            found.append((option, changed, lines))
    return sorted(found, key=lambda each: (not each[0].holds, each[0].used))


def _changes(spec: Spec, given: Given) -> Iterator[tuple[str, Spec]]:
    """Each with its words."""
    sync, shards = spec.sync, spec.syncer.shards
    tried = (
        ("sync.period", sync.period, partial(_with_sync, spec, "period"), PERIOD_MAX),
        ("sync.overlap", sync.overlap, partial(_with_sync, spec, "overlap"), sync.period - 1),
        ("sync.fragments", fragments(spec), partial(_with_sync, spec, "fragments"), sync.period),
        ("syncer.shards", shards, partial(_with_syncer, spec, "shards"), SHARDS_MAX),
    )
    for path, value, changed, most in tried:
        found = _least(changed, value, most, given)
        if found != value:
            yield f"spec.{path} from {value} to {found}", changed(found)
    enough = min(1.0, limits(spec, given)[0].used * GAIN)
    for up, down in SHORTER_WIRES:
        if _bits(up) <= _bits(sync.wire.up) and _bits(down) <= _bits(sync.wire.down):
            wire = sync.wire.model_copy(update={"up": up, "down": down})
            shorter = _with_sync(spec, "wire", wire)
            yield f"spec.sync.wire up {up}, down {down}", shorter
            if limits(shorter, given)[0].used <= enough:
                break
    largest = max(spec.regions, key=lambda each: each.learners)
    home = next(each for each in spec.regions if each.name == spec.syncer_region)
    if largest.learners > home.learners:
        yield f"spec.syncer.region {largest.name}", _with_syncer(spec, "region", largest.name)


def _bits(wire: Wire) -> int:
    return codecs.BY_WIRE[wire].bits


def _with_sync(spec: Spec, field: str, value: Any) -> Spec:
    return spec.model_copy(update={"sync": spec.sync.model_copy(update={field: value})})


def _with_syncer(spec: Spec, field: str, value: Any) -> Spec:
    return spec.model_copy(update={"syncer": spec.syncer.model_copy(update={field: value})})


def _least(changed: Callable[[int], Spec], value: int, most: int, given: Given) -> int:
    """The least value that holds, or where it stops to help; twice as much if all holds already."""
    used = limits(changed(value), given)[0].used
    if used <= 1:
        return min(2 * value, most)
    for _ in range(TRIES):
        more = min(max(value + 1, math.ceil(value * used - 1e-9)), most)
        now = limits(changed(more), given)[0].used if more > value else used
        if now >= used:
            break
        value, used = more, now
        if used <= 1:
            break
    return value


def _moved(spec: Spec, changed: Spec, given: Given) -> Given:
    """The lines as they are from another region: at most the way over the old one."""
    home, new = spec.syncer_region, changed.syncer_region
    if new == home or new not in given.links:
        return given
    more = given.links[new].round_trip_seconds
    links = {
        name: replace(link, round_trip_seconds=link.round_trip_seconds + more)
        for name, link in given.links.items()
    }
    return replace(given, links=links)
