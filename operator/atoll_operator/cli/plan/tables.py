"""A plan as text, for a person who buys links and machines."""

from collections.abc import Iterator, Sequence
from typing import Final

from atoll_operator.api.job.spec import Job, Spec
from atoll_operator.sizing.goodput import Goodput, Interval
from atoll_operator.sizing.needs import Needs, RegionNeeds

LINK_COLUMNS: Final = (
    *("region", "learners", "out Gbit/s", "peak", "in Gbit/s", "peak"),
    *("of the link", "way s", "lanes"),
)
MACHINE_COLUMNS: Final = ("", "memory GB", "cores", "network Gbit/s", "disk GB/s", "room GB")
DAY_HOURS: Final = 24
OPTIONS_MAX: Final = 5
Rows = Sequence[Sequence[str]]


def lines(job: Job, found: Needs) -> Iterator[str]:
    yield _head(job, found)
    yield ""
    yield from _table(LINK_COLUMNS, [_of_link(each) for each in found.regions])
    yield from _about_traffic(job.spec, found)
    yield ""
    yield from _bill(found)
    if found.goodput is not None:
        yield ""
        yield from _failures(found.goodput)
    yield ""
    yield from _table(MACHINE_COLUMNS, _of_machines(job.spec, found))
    if (writes := found.machines.store_writes_per_day) is not None:
        yield f"The bucket gets {writes:,.0f} requests that write a day."
    yield ""
    yield from _verdict(found)


def _head(job: Job, found: Needs) -> str:
    spec = job.spec
    length = "of unknown length (give --tokens-per-step)"
    if found.hours is not None:
        length = _length(found.hours)
        length += " to the end" if found.traffic.waiting_share is not None else " and waits"
    parts = [
        f"{job.name}: {found.parameters:,} parameters, {spec.learners} learners",
        f"steps of {found.step_seconds:g} s",
        length,
    ]
    if found.tokens_per_second is not None:
        parts.append(f"{found.tokens_per_second:,.0f} tokens a second")
    return ", ".join(parts)


def _length(hours: float) -> str:
    if hours >= 2 * DAY_HOURS:
        return f"{hours / DAY_HOURS:,.3g} days"
    return f"{hours:,.3g} h" if hours >= 1 else f"{60 * hours:,.3g} min"


def _of_link(each: RegionNeeds) -> Sequence[str]:
    border = each.border
    return (
        border.region,
        str(border.learners),
        _gigabits(border.out),
        _gigabits(border.out_peak),
        _gigabits(border.into),
        _gigabits(border.into_peak),
        _percent(border.link_share),
        "" if border.way_seconds is None else f"{border.way_seconds:.2g}",
        "" if border.lanes is None else str(border.lanes),
    )


def _about_traffic(spec: Spec, found: Needs) -> Iterator[str]:
    busiest = next(
        (each for each in found.traffic.borders if each.region == found.busiest_region), None
    )
    if busiest is not None:
        where = ", where the shards are" if busiest.region == spec.syncer_region else ""
        yield f"The busiest site is {busiest.region}{where}."
    copying = f"learner.step copies in {found.copying_share:.1%} of their time."
    waiting = found.traffic.waiting_share
    if not spec.sync.lockstep:
        yield f"Learners never wait for the network; {copying}"
    elif waiting is None:
        yield f"Learners wait for the network, and --link of all regions tells how long; {copying}"
    else:
        yield f"Learners wait for the network in {waiting:.0%} of their time; {copying}"


def _bill(found: Needs) -> Iterator[str]:
    """What leaves and enters each region, and what that costs."""
    priced = any(each.money_per_day is not None for each in found.regions)
    ends = found.hours is not None
    head = ["region", "out GB a day", "in GB a day"]
    head += ["money a day", *(["to the end"] if ends else [])] if priced else []
    rows = []
    for each in found.regions:
        row = [each.border.region]
        row += [f"{x / 1e9:,.0f}" for x in (each.out_bytes_per_day, each.into_bytes_per_day)]
        if priced:
            row += [_money(each.money_per_day), *([_money(each.money)] if ends else [])]
        rows.append(row)
    if priced and len(rows) > 1:
        total = ["all", f"{found.bytes_per_day / 1e9:,.0f}", f"{found.bytes_per_day / 1e9:,.0f}"]
        rows.append([*total, _money(found.money_per_day), *([_money(found.money)] if ends else [])])
    yield from _table(head, rows)


def _failures(found: Goodput) -> Iterator[str]:
    yield (
        f"A learner fails every {found.hours_between_failures:.3g} h, is away for"
        f" {found.away_seconds:.0f} s, and loses {found.lost_seconds:.2g} s of training."
    )
    rows = [("goodput", *_spread(found.goodput)), ("uptime", *_spread(found.uptime))]
    yield from _table(("", "mean", "middle 90% of jobs"), rows)


def _spread(share: Interval) -> tuple[str, str]:
    return f"{share.mean:.2%}", f"{share.low:.2%} to {share.high:.2%}"


def _of_machines(spec: Spec, found: Needs) -> Rows:
    needed, shards, hosts = found.machines, spec.syncer.shards, spec.learner.hosts
    learner = (f"{needed.learner_memory / 1e9:.3g}", f"{needed.learner_cores:.2g}")
    shard = (
        f"{needed.shard_memory / 1e9:.3g}",
        f"{needed.shard_cores:.2g}",
        _gigabits(needed.shard_network),
        f"{needed.shard_writes / 1e9:.2g}",
        f"{needed.shard_room / 1e9:.3g}",
    )
    each_shard = f"each of {shards} shards" if shards > 1 else "the shard"
    each_learner = "each learner" if hosts == 1 else f"each of a learner's {hosts} hosts"
    own = (f"{each_learner}, beside its training", *learner, _gigabits(needed.learner_network))
    return (*own, "", ""), (each_shard, *shard)


def _verdict(found: Needs) -> Iterator[str]:
    """What does not hold, the tightest limit, and what helps most."""
    tightest = found.limits[0]
    broken = [each for each in found.limits if each.used > 1]
    for each in broken:
        yield f"Will not hold: {each.said}."
    if not broken:
        yield (
            f"It holds. The tightest limit is {tightest.what}, at {tightest.used:.0%} of what"
            " works well."
        )
    if len(found.together) > 1:
        yield f"All holds with {', '.join(found.together)}."
    options = found.options[:OPTIONS_MAX]
    if not options:
        return
    yield ""
    rows = [(each.setting, f"{each.used:.0%}", each.tightest) for each in options]
    yield from _table(("what helps, the most first", "then at", "of"), rows, left={2})


def _gigabits(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e9:.3g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _money(amount: float | None) -> str:
    if amount is None:
        return "no price"
    return f"{amount:,.2f}" if amount < 100 else f"{amount:,.0f}"  # noqa: PLR2004


def _table(head: Sequence[str], rows: Rows, left: set[int] | None = None) -> Iterator[str]:
    """The first column, and those of `left`, begin at the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    begin = {0} | (left or set())
    for row in (head, *rows):
        yield "  ".join(
            cell.ljust(width) if number in begin else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
