"""What a job needs of networks and machines, by the formulas of docs/sizing.md.

The symbols are N parameters that travel, M learners, t seconds of a step, P fragments, H period,
tau overlap and S shards. E = N / H parameters are due in each tick. One fragment of N / P goes up
from each learner and down to it every H / P ticks, and has tau steps for its way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from atoll_operator.api.job.spec import Spec
from atoll_operator.api.job.syncer_fields import StorageType
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import AUTO_FRAGMENTS_MAX
from atoll_protos.transfer import codecs
from atoll_protos.transfer.codecs import Wire

DAY_SECONDS: Final = 86_400
LANE_BYTES: Final = 2.8e6  # that one connection has under way at most, with Linux's usual limits
LINK_SHARE_MAX: Final = 0.8  # of a link, on average: above it slices wait for each other
SHARD_BYTES: Final = 0.2e9  # of memory, beside the values
PART_BYTES: Final = 64 << 20  # of an object, in one request


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink:
    """The line of one region to the syncer, the same both ways."""

    bits_per_second: float
    round_trip_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNeeds:
    """Of all learners of a region; None where no link was given."""

    region: str
    learners: int
    up: float  # bit/s on average
    down: float
    bytes_per_day: float  # both ways
    link_share: float | None  # of the busier way, on average
    way_seconds: float | None  # of a fragment to the shards and back, and its merge
    lanes: int | None  # connections of each learner to each shard that the link asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Rates are averages in bit/s, byte/s or cores; `advice` has what will not hold, if any."""

    parameters: int
    step_seconds: float
    hours: float | None  # to the end; None: the job's length is in tokens
    slack_seconds: float  # that training hides of a fragment's way
    regions: tuple[RegionNeeds, ...]
    learner_memory: float  # bytes, beside the training itself
    learner_cores: float
    shards_least: int
    syncer_up: float  # bit/s that the syncer sends
    syncer_down: float
    shard_memory: float  # bytes, each
    shard_cores: float
    shard_writes: float  # byte/s, each
    shard_room: float  # bytes, each
    store_writes_per_day: float | None  # requests; None: no bucket
    advice: tuple[str, ...]


def needs(
    spec: Spec, parameters: int, step_seconds: float, links: Mapping[str, RegionLink]
) -> Needs:
    """Raises SpecError for a link of a region that the job does not have."""
    names = [region.name for region in spec.regions]
    for name in links:
        if name not in names:
            problem = f"the job has no region {name}"
            raise SpecError("--link", problem, f"give one of {', '.join(names)}")
    sync, shards, learners = spec.sync, spec.syncer.shards, spec.learners
    due = parameters / sync.period
    regions = tuple(
        _of_region(spec, name, count, parameters, step_seconds, links.get(name))
        for name, count in ((region.name, region.learners) for region in spec.regions)
    )
    work = (5 * learners + 13) * due / step_seconds * 1e-9
    held = 12 if codecs.base_encoding(sync.wire.down) == codecs.encoding_of(Wire.F32) else 8
    bucket = spec.syncer.storage.type is StorageType.OBJECT_STORE
    return Needs(
        parameters=parameters,
        step_seconds=step_seconds,
        hours=None if spec.steps is None else spec.steps * step_seconds / 3600,
        slack_seconds=sync.overlap * step_seconds,
        regions=regions,
        learner_memory=held * parameters + 20 * due,
        learner_cores=6 * due / step_seconds * 1e-9,
        shards_least=math.ceil(5 * learners * due / step_seconds * 1e-9),
        syncer_up=sum(each.down for each in regions),
        syncer_down=sum(each.up for each in regions),
        shard_memory=(10 * parameters + 4 * (learners + 1) * due) / shards + SHARD_BYTES,
        shard_cores=work / shards,
        shard_writes=8 * due / step_seconds / shards,
        shard_room=20 * parameters / shards + 0.6e9,
        store_writes_per_day=_store_writes(spec, parameters, step_seconds) if bucket else None,
        advice=tuple(_advice(spec, regions, step_seconds)),
    )


def fragments(spec: Spec) -> int:
    """P; `auto` as for a model that has tensors enough."""
    given, period = spec.sync.fragments, spec.sync.period
    return given if isinstance(given, int) else min(AUTO_FRAGMENTS_MAX, period)


def _of_region(
    spec: Spec,
    name: str,
    learners: int,
    parameters: int,
    step_seconds: float,
    link: RegionLink | None,
) -> RegionNeeds:
    wire, elements = spec.sync.wire, parameters // fragments(spec)
    up, down = (
        8 * codecs.encoded_size(elements, codecs.encoding_of(w)) for w in (wire.up, wire.down)
    )
    rounds_per_second = fragments(spec) / (spec.sync.period * step_seconds)
    rates = [learners * bits * rounds_per_second for bits in (up, down)]
    way = lanes = share = None
    if link is not None and learners:
        rate = link.bits_per_second / learners
        merge = (5 * spec.learners + 13) * elements / spec.syncer.shards * 1e-9
        way = (up + down) / rate + 1.5 * link.round_trip_seconds + merge
        under_way = link.bits_per_second / 8 * link.round_trip_seconds / learners
        lanes = max(1, math.ceil(under_way / LANE_BYTES / spec.syncer.shards))
        share = max(rates) / link.bits_per_second
    return RegionNeeds(
        region=name,
        learners=learners,
        up=rates[0],
        down=rates[1],
        bytes_per_day=sum(rates) / 8 * DAY_SECONDS,
        link_share=share,
        way_seconds=way,
        lanes=lanes,
    )


def _store_writes(spec: Spec, parameters: int, step_seconds: float) -> float:
    """Requests of a day that write: parts of objects, entries of the log, heartbeats."""
    shards = spec.syncer.shards
    commits = shards * fragments(spec) / (spec.sync.period * step_seconds) * DAY_SECONDS
    parts = math.ceil(8 * parameters / fragments(spec) / shards / PART_BYTES)
    beats = shards * DAY_SECONDS / (1 if spec.syncer.standby else 2)
    return commits * (parts + 1) + beats


def _advice(spec: Spec, regions: tuple[RegionNeeds, ...], step_seconds: float) -> list[str]:
    """What will not hold, and the setting that helps."""
    found = []
    slack = spec.sync.overlap * step_seconds
    for each in regions:
        if each.link_share is None or each.way_seconds is None:
            continue
        if each.link_share > LINK_SHARE_MAX:
            period = math.ceil(spec.sync.period * each.link_share / LINK_SHARE_MAX)
            found.append(
                f"{each.region}: {each.link_share:.0%} of its link on average; raise "
                f"spec.sync.period from {spec.sync.period} to {period}, or send fewer bits "
                "(spec.sync.wire)"
            )
        elif spec.sync.overlap and each.way_seconds > slack:
            overlap, period = math.ceil(each.way_seconds / step_seconds), spec.sync.period
            more = f"spec.sync.overlap from {spec.sync.overlap} to {overlap}"
            if overlap >= period:  # an overlap is less than the period
                more += f" and spec.sync.period from {period} to more than that"
            found.append(
                f"{each.region}: a fragment's way takes {each.way_seconds:.2g} s and the overlap "
                f"hides {slack:.2g} s, so work comes too late; raise {more}, or send fewer bits "
                "(spec.sync.wire)"
            )
    return found
