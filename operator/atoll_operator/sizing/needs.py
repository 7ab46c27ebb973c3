"""What a job needs of links and machines, by the formulas of docs/sizing.md; pure.

The learners of the syncer's region reach the shards without leaving it. The border of that region
carries what all other regions send and get.

The symbols are N parameters that travel, M learners, t seconds of a step, P fragments, H period,
tau overlap and S shards. E = N / H parameters are due in each tick. A fragment of N / P goes up
from each learner and down to it every H / P ticks, and has tau steps for its way.

Seconds of a processor for each value were measured on two busy cores, with gRPC and TLS: upper
bounds. `python -m bench.stages` in tests/ measures them again, without these two. Bytes are counted
in the code.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from atoll_operator.api.job.fields import RegionSpec
from atoll_operator.api.job.spec import Spec
from atoll_protos.errors import SpecError, require
from atoll_protos.job.run_file import AUTO_FRAGMENTS_MAX
from atoll_protos.transfer import codecs
from atoll_protos.transfer.codecs import Wire

LANE_BYTES: Final = 2.8e6  # that one connection has under way at most, with Linux's usual limits
MERGE_SECONDS: Final = 1e-9  # (5 M + 13) of them for each value of a shard's part
ROUND_TRIPS: Final = 1.5  # on the way of a fragment: the offer, and the call before it
SHARD_BYTES: Final = 0.2e9  # of memory, beside the values
TRANSPORT_SECONDS: Final = 6e-9  # of a learner's processors for each value that is due
THREAD_SECONDS: Final = 2.6e-9  # of its busiest thread
# Of the training thread in `learner.step`, for each value that is due: 3 to 4 ms for 12.6 million
# on an H100, November 2026 (`python -m bench.gpu` in tests/).
COPY_SECONDS: Final = 0.3e-9
LINK_SHARE_MAX: Final = 0.8  # of a link, on average: above it slices wait for each other
WAITING_SHARE_MAX: Final = 0.1  # of the time of learners that wait for each other
THREAD_SHARE_MAX: Final = 0.5  # of a tick


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink:
    """The line of one region to the syncer, or of the syncer's region to all others.

    It carries so much in each direction at once. The round trip of the syncer's own region is not
    used.
    """

    bits_per_second: float
    round_trip_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a plan is made for, beside the manifest: parameters that travel, seconds of a step."""

    parameters: int
    step_seconds: float
    links: Mapping[str, RegionLink] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """What leaves and enters one region, in bit/s, with all its learners; None: not known.

    Peaks are the rates while a fragment travels that its overlap just hides.
    """

    region: str
    learners: int
    out: float
    into: float
    out_peak: float | None  # None: no rate is enough, or the overlap is 0 and any is
    into_peak: float | None
    link_share: float | None  # of the busier direction, on average
    way_seconds: float | None = None  # of a fragment to the shards and back, with its merge
    lanes: int | None = None  # connections to each shard that the line asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of a whole job. `tick_seconds` are those of a step with its waits."""

    borders: tuple[Border, ...]
    up: float  # bit/s of one learner on average
    down: float
    tick_seconds: float
    waiting_share: float | None  # of the learners' time; None: they wait, and for how long depends
    slack_seconds: float  # that training hides of a fragment's way


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Bytes, byte/s and cores: of each host of a learner beside the training, and of each shard."""

    learner_memory: float
    learner_cores: float
    learner_network: float  # bit/s of the busier direction
    learner_thread: float  # seconds of its busiest thread in a tick
    copying_share: float  # of the training thread's time
    shards_exact: float
    shards_least: int  # the same in whole shards
    shard_memory: float
    shard_cores: float
    shard_network: float
    shard_writes: float
    shard_room: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """`used`: of what works well, so above 1 it does not hold."""

    what: str
    used: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Rates are averages; `limits` has the tightest first."""

    parameters: int
    step_seconds: float
    traffic: Traffic
    machines: Machines
    limits: tuple[LimitUse, ...]


def needs(spec: Spec, given: Assumptions) -> Needs:
    """Raise SpecError for a region that the job does not have, and for a job without learners."""
    names = [region.name for region in spec.regions]
    for name in given.links:
        if name not in names:
            problem = f"the job has no region {name}"
            raise SpecError("--link", problem, f"give one of {', '.join(names)}")
    require(spec.learners > 0, "spec.regions", "has no learner", "give a region `learners`")
    moves = traffic(spec, given)
    needed = machines(spec, given.parameters, moves)
    uses = (*_of_links(spec, moves), *_of_processors(spec, needed, moves.tick_seconds))
    return Needs(
        parameters=given.parameters,
        step_seconds=given.step_seconds,
        traffic=moves,
        machines=needed,
        limits=tuple(sorted(uses, key=lambda use: -use.used)),
    )


def links(spec: Spec) -> dict[str, RegionLink]:
    """Return those that the manifest has, by region."""
    return {
        region.name: RegionLink(
            bits_per_second=region.link.megabits_per_second * 1e6,
            round_trip_seconds=region.link.round_trip_milliseconds / 1e3,
        )
        for region in spec.regions
        if region.link is not None
    }


def warnings(spec: Spec) -> tuple[str, ...]:
    """Return one for each link or overlap that will not hold by the manifest's own numbers.

    Without spec.sizing, or a link of the region, nothing is said. What a training really needs its
    tape and `atoll top` show.
    """
    if spec.sizing is None or not spec.learners:
        return ()
    given = Assumptions(
        parameters=spec.sizing.parameters,
        step_seconds=spec.sizing.step_milliseconds / 1e3,
        links=links(spec),
    )
    return tuple(use.sentence for use in _of_links(spec, traffic(spec, given)) if use.used > 1)


def fragments(spec: Spec) -> int:
    """Return P; `auto` as for a model that has tensors enough."""
    count, period = spec.sync.fragments, spec.sync.period
    return count if isinstance(count, int) else min(AUTO_FRAGMENTS_MAX, period)


def traffic(spec: Spec, given: Assumptions) -> Traffic:
    """Averages follow from the period, or from the waits where learners wait for each other."""
    bits = fragment_bits(spec, given.parameters)
    ways = {region.name: way_seconds(spec, given, region.name) for region in spec.regions}
    away = [region.name for region in _away(spec) if region.learners]
    between = spec.sync.period * given.step_seconds / fragments(spec)
    apart = _round_seconds(spec, given, between, [ways[name] for name in away])
    unknown = spec.sync.lockstep and any(ways[name] is None for name in away)
    rates = (bits[0] / apart, bits[1] / apart)
    return Traffic(
        borders=_borders(spec, given, rates, ways),
        up=rates[0],
        down=rates[1],
        tick_seconds=given.step_seconds * apart / between,
        waiting_share=None if unknown else 1 - between / apart,
        slack_seconds=spec.sync.overlap * given.step_seconds,
    )


def machines(spec: Spec, parameters: int, moves: Traffic) -> Machines:
    tick_seconds = moves.tick_seconds
    shards, learners, due = spec.syncer.shards, spec.learners, parameters / spec.sync.period
    held = 12 if codecs.base_encoding(spec.sync.wire.down) == codecs.encoding_of(Wire.F32) else 8
    rate = max(moves.up, moves.down)
    merging = 5 * learners * due / tick_seconds * MERGE_SECONDS
    return Machines(
        learner_memory=held * parameters + 20 * due,
        learner_cores=TRANSPORT_SECONDS * due / tick_seconds,
        learner_network=rate,
        learner_thread=THREAD_SECONDS * due,
        copying_share=COPY_SECONDS * due / tick_seconds,
        shards_exact=merging,
        shards_least=math.ceil(merging),
        shard_memory=(10 * parameters + 4 * (learners + 1) * due) / shards + SHARD_BYTES,
        shard_cores=(5 * learners + 13) * due / tick_seconds * MERGE_SECONDS / shards,
        shard_network=learners * rate / shards,
        shard_writes=8 * due / tick_seconds / shards,
        shard_room=20 * parameters / shards + 0.6e9,
    )


def fragment_bits(spec: Spec, parameters: int) -> tuple[int, int]:
    """Of one fragment of one learner, up and down."""
    wire, elements = spec.sync.wire, parameters // fragments(spec)
    up, down = (
        8 * codecs.encoded_size(elements, codecs.encoding_of(kind)) for kind in (wire.up, wire.down)
    )
    return up, down


def rate_of_one(spec: Spec, name: str, links: Mapping[str, RegionLink]) -> float | None:
    """bit/s of each direction that one learner of a region has while all of them send.

    None: the region's link is not known, or nothing of it leaves the syncer's region.
    """
    home = spec.syncer_region
    region = next(region for region in spec.regions if region.name == name)
    if name == home or name not in links or not region.learners:
        return None
    own = links[name].bits_per_second / region.learners
    if home not in links:
        return own
    return min(own, links[home].bits_per_second / sum(region.learners for region in _away(spec)))


def way_seconds(spec: Spec, given: Assumptions, name: str) -> float | None:
    rate = rate_of_one(spec, name, given.links)
    if rate is None:
        return None
    sending = sum(fragment_bits(spec, given.parameters)) / rate
    return sending + _fixed_seconds(spec, given.parameters, given.links[name])


def _of_links(spec: Spec, moves: Traffic) -> Iterator[LimitUse]:
    """Of lines, of overlaps, and of waits for them."""
    for border in moves.borders:
        name = border.region
        if border.link_share is not None:
            yield LimitUse(
                what=f"the link of {name}",
                used=border.link_share / LINK_SHARE_MAX,
                sentence=f"{name}: {border.link_share:.0%} of its link on average, and"
                f" {LINK_SHARE_MAX:.0%} is the most that works well",
            )
        if border.way_seconds is not None and not spec.sync.lockstep:
            yield LimitUse(
                what=f"the overlap for {name}",
                used=border.way_seconds / moves.slack_seconds,
                sentence=f"{name}: a fragment's way takes {border.way_seconds:.2g} s, and the"
                f" overlap hides {moves.slack_seconds:.2g} s, so work comes too late",
            )
    if spec.sync.lockstep and moves.waiting_share is not None:
        yield LimitUse(
            what="the wait for the slowest link",
            used=moves.waiting_share / WAITING_SHARE_MAX,
            sentence=f"learners wait for the network in {moves.waiting_share:.0%} of their time",
        )


def _of_processors(spec: Spec, needed: Machines, tick_seconds: float) -> Iterator[LimitUse]:
    yield LimitUse(
        what="the shards' processors",
        used=needed.shards_exact / spec.syncer.shards,
        sentence=f"the merges need {needed.shards_least} shards, and there are"
        f" {spec.syncer.shards}",
    )
    yield LimitUse(
        what="a learner's transport",
        used=needed.learner_thread / (THREAD_SHARE_MAX * tick_seconds),
        sentence=f"the transport of a learner needs {needed.learner_thread:.2g} s of one core in"
        f" each step of {tick_seconds:.2g} s",
    )


def _fixed_seconds(spec: Spec, parameters: int, link: RegionLink | None) -> float:
    """Of a way, however wide the line is: round trips and the merge."""
    elements = parameters // fragments(spec)
    merge = (5 * spec.learners + 13) * elements / spec.syncer.shards * MERGE_SECONDS
    return merge + (ROUND_TRIPS * link.round_trip_seconds if link else 0.0)


def _away(spec: Spec) -> list[RegionSpec]:
    return [region for region in spec.regions if region.name != spec.syncer_region]


def _round_seconds(
    spec: Spec, given: Assumptions, between: float, ways: Sequence[float | None]
) -> float:
    """From one fragment's round to the next. Free learners train on whatever the way takes.

    Others wait for what the overlap leaves, and a line carries one fragment in each direction.
    """
    if not spec.sync.lockstep:
        return between
    way = max((seconds for seconds in ways if seconds is not None), default=0.0)
    slack = spec.sync.overlap * given.step_seconds
    if slack <= between:
        return between + max(0.0, way - slack)
    bits = max(fragment_bits(spec, given.parameters))
    rates = [rate_of_one(spec, region.name, given.links) for region in spec.regions]
    sending = max((bits / rate for rate in rates if rate is not None), default=0.0)
    return max(between, sending, way * between / slack)  # several are under way at once


def _borders(
    spec: Spec, given: Assumptions, rates: tuple[float, float], ways: Mapping[str, float | None]
) -> tuple[Border, ...]:
    """In the manifest's order. That of the syncer's region carries what all others exchange."""
    away = [_border(spec, given, region, rates, ways[region.name]) for region in _away(spec)]
    home = next(region for region in spec.regions if region.name == spec.syncer_region)
    out, into = sum(border.into for border in away), sum(border.out for border in away)
    at_home = Border(
        region=home.name,
        learners=home.learners,
        out=out,
        into=into,
        out_peak=_sum([border.into_peak for border in away]),
        into_peak=_sum([border.out_peak for border in away]),
        link_share=_share(out, into, given.links.get(home.name)),
    )
    by_name = {border.region: border for border in (at_home, *away)}
    return tuple(by_name[region.name] for region in spec.regions)


def _border(
    spec: Spec,
    given: Assumptions,
    region: RegionSpec,
    rates: tuple[float, float],
    way: float | None,
) -> Border:
    """Of a region whose learners reach the shards over its border."""
    link, count = given.links.get(region.name), region.learners
    out, into = (count * rate for rate in rates)
    slack = spec.sync.overlap * given.step_seconds - _fixed_seconds(spec, given.parameters, link)
    peak = count * sum(fragment_bits(spec, given.parameters)) / slack if slack > 0 else None
    lanes = None
    if link is not None and count:
        under_way = link.bits_per_second / 8 * link.round_trip_seconds / count
        lanes = max(1, math.ceil(under_way / LANE_BYTES / spec.syncer.shards))
    return Border(
        region=region.name,
        learners=count,
        out=out,
        into=into,
        out_peak=None if peak is None else max(out, peak),
        into_peak=None if peak is None else max(into, peak),
        link_share=_share(out, into, link),
        way_seconds=way,
        lanes=lanes,
    )


def _share(out: float, into: float, link: RegionLink | None) -> float | None:
    return None if link is None else max(out, into) / link.bits_per_second


def _sum(peaks: Sequence[float | None]) -> float | None:
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if len(known) == len(peaks) else None
