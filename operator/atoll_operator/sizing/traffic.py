"""What goes over the border of each region, how long a fragment is under way, and who waits.

The learners of the syncer's region reach the shards without leaving it. The border of that region
carries what all other regions send and get.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from atoll_operator.api.job.learner_fields import RegionSpec
from atoll_operator.api.job.spec import Spec
from atoll_protos.job.run_file import AUTO_FRAGMENTS_MAX
from atoll_protos.transfer import codecs

LANE_BYTES: Final = 2.8e6  # that one connection has under way at most, with Linux's usual limits
MERGE_SECONDS: Final = 1e-9  # (5 M + 13) of them for each value of a shard's part
ROUND_TRIPS: Final = 1.5  # on the way of a fragment: the offer, and the call before it


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink:
    """The line of one region to the syncer, or of the syncer's region to all others.

    It carries so much in each direction at once. The round trip of the syncer's own region is not
    used.
    """

    bits_per_second: float
    round_trip_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
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
    way_seconds: float | None  # of a fragment to the shards and back, with its merge
    lanes: int | None  # connections of each host to each shard that the line asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of a whole job. `tick_seconds` are those of a step with its waits."""

    borders: tuple[Border, ...]
    up: float  # bit/s of one learner on average
    down: float
    tick_seconds: float
    waiting_share: float | None  # of the learners' time; None: they wait, and for how long depends
    slack_seconds: float  # that training hides of a fragment's way

    @property
    def busiest(self) -> Border | None:
        """The region with the most traffic in one direction; None: nothing leaves a region."""
        found = max(self.borders, key=lambda each: max(each.out, each.into))
        return found if found.out or found.into else None


def fragments(spec: Spec) -> int:
    """P; `auto` as for a model that has tensors enough."""
    given, period = spec.sync.fragments, spec.sync.period
    return given if isinstance(given, int) else min(AUTO_FRAGMENTS_MAX, period)


def traffic(spec: Spec, given: Given) -> Traffic:
    """Averages follow from the period, or from the waits where learners wait for each other."""
    bits = fragment_bits(spec, given.parameters)
    ways = {region.name: way_seconds(spec, given, region.name) for region in spec.regions}
    away = [each.name for each in spec.regions if each.learners and each.name != spec.syncer_region]
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


def fragment_bits(spec: Spec, parameters: int) -> tuple[int, int]:
    """Of one fragment of one learner, up and down."""
    wire, elements = spec.sync.wire, parameters // fragments(spec)
    up, down = (
        8 * codecs.encoded_size(elements, codecs.encoding_of(each)) for each in (wire.up, wire.down)
    )
    return up, down


def rate_of_one(spec: Spec, name: str, links: Mapping[str, RegionLink]) -> float | None:
    """bit/s of each direction that one learner of a region has while all of them send.

    None: the region's link is not known, or nothing of it leaves the syncer's region.
    """
    home, region = spec.syncer_region, next(each for each in spec.regions if each.name == name)
    if name == home or name not in links or not region.learners:
        return None
    own = links[name].bits_per_second / region.learners
    if home not in links:
        return own
    return min(own, links[home].bits_per_second / _learners_away(spec))


def way_seconds(spec: Spec, given: Given, name: str) -> float | None:
    rate = rate_of_one(spec, name, given.links)
    if rate is None:
        return None
    sending = sum(fragment_bits(spec, given.parameters)) / rate
    return sending + _fixed_seconds(spec, given.parameters, given.links[name])


def _fixed_seconds(spec: Spec, parameters: int, link: RegionLink | None) -> float:
    """Of a way, however wide the line is: round trips and the merge."""
    elements = parameters // fragments(spec)
    merge = (5 * spec.learners + 13) * elements / spec.syncer.shards * MERGE_SECONDS
    return merge + (ROUND_TRIPS * link.round_trip_seconds if link else 0.0)


def _learners_away(spec: Spec) -> int:
    return sum(each.learners for each in spec.regions if each.name != spec.syncer_region)


def _round_seconds(spec: Spec, given: Given, between: float, ways: Sequence[float | None]) -> float:
    """From one fragment's round to the next. Free learners train on whatever the way takes.

    Others wait for what the overlap leaves, and a line carries one fragment in each direction.
    """
    if not spec.sync.lockstep:
        return between
    way = max((each for each in ways if each is not None), default=0.0)
    slack = spec.sync.overlap * given.step_seconds
    if slack <= between:
        return between + max(0.0, way - slack)
    bits = max(fragment_bits(spec, given.parameters))
    rates = [rate_of_one(spec, each.name, given.links) for each in spec.regions]
    sending = max((bits / rate for rate in rates if rate is not None), default=0.0)
    return max(between, sending, way * between / slack)  # several are under way at once


def _peaks(spec: Spec, given: Given) -> dict[str, float | None]:
    """bit/s with which the fragment of one learner comes back in time, by region."""
    bits = sum(fragment_bits(spec, given.parameters))
    slack = spec.sync.overlap * given.step_seconds
    found: dict[str, float | None] = {}
    for each in spec.regions:
        left = slack - _fixed_seconds(spec, given.parameters, given.links.get(each.name))
        found[each.name] = bits / left if left > 0 else None
    return found


def _borders(
    spec: Spec, given: Given, rates: tuple[float, float], ways: Mapping[str, float | None]
) -> tuple[Border, ...]:
    """In the manifest's order."""
    home, peaks, links = spec.syncer_region, _peaks(spec, given), given.links
    connected = spec.learner.hosts * spec.syncer.shards  # hosts of a learner, each to each shard
    away = {
        each.name: _away(
            each, connected, rates, peaks[each.name], ways[each.name], links.get(each.name)
        )
        for each in spec.regions
        if each.name != home
    }
    at_home = _home(spec, tuple(away.values()), links.get(home))
    return tuple(away.get(each.name, at_home) for each in spec.regions)


def _away(
    region: RegionSpec,
    connected: int,
    rates: tuple[float, float],
    peak: float | None,
    way: float | None,
    link: RegionLink | None,
) -> Border:
    """A region whose learners reach the shards over its border."""
    count = region.learners
    out, into = (count * each for each in rates)
    lanes = share = None
    if link is not None:
        share = max(out, into) / link.bits_per_second
        if count:
            under_way = link.bits_per_second / 8 * link.round_trip_seconds / count
            lanes = max(1, math.ceil(under_way / LANE_BYTES / connected))
    return Border(
        region=region.name,
        learners=count,
        out=out,
        into=into,
        out_peak=None if peak is None else max(out, count * peak),
        into_peak=None if peak is None else max(into, count * peak),
        link_share=share,
        way_seconds=way,
        lanes=lanes,
    )


def _home(spec: Spec, away: Sequence[Border], link: RegionLink | None) -> Border:
    """The syncer's region, which gets what the others send."""
    home = next(each for each in spec.regions if each.name == spec.syncer_region)
    out, into = sum(each.into for each in away), sum(each.out for each in away)
    return Border(
        region=home.name,
        learners=home.learners,
        out=out,
        into=into,
        out_peak=_sum([each.into_peak for each in away]),
        into_peak=_sum([each.out_peak for each in away]),
        link_share=None if link is None else max(out, into) / link.bits_per_second,
        way_seconds=None,
        lanes=None,
    )


def _sum(peaks: Sequence[float | None]) -> float | None:
    known = [each for each in peaks if each is not None]
    return sum(known) if len(known) == len(peaks) else None
