"""All figures of `atoll plan` together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from atoll_operator.api.job.spec import Spec
from atoll_operator.sizing import advice
from atoll_operator.sizing.advice import LimitUse, Option
from atoll_operator.sizing.goodput import RECOVERY_SECONDS, ChipFailures, Goodput, goodput
from atoll_operator.sizing.machines import DAY_SECONDS, Machines, machines
from atoll_operator.sizing.traffic import Border, Given, Traffic, rate_of_one, traffic
from atoll_protos.errors import SpecError, require
from atoll_protos.transfer import codecs

MONTH_SECONDS: Final = 30 * DAY_SECONDS  # for failures, where the length of the job is not known
# Of the training thread in `learner.step`, for each value that is due: 3 to 4 ms for 12.6 million
# on an H100, November 2026 (`python -m bench.gpu` in tests/).
COPY_SECONDS: Final = 0.3e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """Of a learner; `recovery_seconds` None: as measured, and the values over the link."""

    per_learner: int
    failures_per_year: float  # of one chip
    recovery_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNeeds:
    """Bytes over the border of a region; money None: no price is known."""

    border: Border
    out_bytes_per_day: float
    into_bytes_per_day: float
    money_per_day: float | None
    money: float | None  # to the end of the job; None also where its length is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Rates are averages; `limits` and `options` have the tightest and the best first."""

    parameters: int
    step_seconds: float
    hours: float | None  # to the end; None: it depends on what is not known
    tokens_per_second: float | None
    copying_share: float  # of the training thread's time
    traffic: Traffic
    regions: tuple[RegionNeeds, ...]
    busiest_region: str  # empty: nothing leaves a region
    machines: Machines
    goodput: Goodput | None
    limits: tuple[LimitUse, ...]
    options: tuple[Option, ...]
    together: tuple[str, ...]  # settings with which all holds; empty: it does, or none are known

    @property
    def bytes_per_day(self) -> float:
        """Between regions; each byte once."""
        return sum(each.out_bytes_per_day for each in self.regions)

    @property
    def money_per_day(self) -> float:
        return sum(each.money_per_day or 0.0 for each in self.regions)

    @property
    def money(self) -> float | None:
        """To the end of the job."""
        if self.hours is None:
            return None
        return sum(each.money or 0.0 for each in self.regions)


def needs(
    spec: Spec,
    given: Given,
    prices: Mapping[str, float] | None = None,
    tokens_per_step: int | None = None,
    chips: Chips | None = None,
) -> Needs:
    """`prices` are money for 10^9 bytes that leave a region.

    `tokens_per_step` is of a learner in regions that tell none. Raises SpecError for
    a region that the job does not have, and for tokens that the manifest has already.
    """
    prices = prices or {}
    _check_regions(spec, "--link", given.links)
    _check_regions(spec, "--egress", prices)
    told = all(each.tokens_per_step for each in spec.regions)
    problem, remedy = "every region of the manifest has tokensPerStep", "leave the flag out"
    require(tokens_per_step is None or not told, "--tokens-per-step", problem, remedy)
    require(spec.learners > 0, "spec.regions", "has no learner", "give a region `learners`")
    moves = traffic(spec, given)
    tokens = _tokens_per_second(spec, tokens_per_step, moves.tick_seconds)
    seconds = _seconds(spec, moves.tick_seconds, tokens)
    busiest, due = moves.busiest, given.parameters / spec.sync.period / spec.learner.hosts
    return Needs(
        parameters=given.parameters,
        step_seconds=given.step_seconds,
        hours=None if seconds is None else seconds / 3600,
        tokens_per_second=tokens,
        copying_share=COPY_SECONDS * due / moves.tick_seconds,
        traffic=moves,
        regions=tuple(_of_region(each, seconds, prices) for each in moves.borders),
        busiest_region=busiest.region if busiest else "",
        machines=machines(spec, given.parameters, moves),
        goodput=_goodput(spec, given, chips, moves, seconds) if chips else None,
        limits=advice.limits(spec, given),
        options=advice.options(spec, given),
        together=advice.together(spec, given),
    )


def _check_regions(spec: Spec, flag: str, given: Mapping[str, object]) -> None:
    names = [region.name for region in spec.regions]
    for name in given:
        if name not in names:
            problem = f"the job has no region {name}"
            raise SpecError(flag, problem, f"give one of {', '.join(names)}")


def _tokens_per_second(spec: Spec, tokens_per_step: int | None, tick: float) -> float | None:
    """Of all learners, at the clock of the job; None: a region's learners tell none."""
    counts = [
        (each.learners, each.tokens_per_step or tokens_per_step)
        for each in spec.regions
        if each.learners
    ]
    if any(tokens is None for _, tokens in counts):
        return None
    return sum(learners * (tokens or 0) for learners, tokens in counts) / tick


def _seconds(spec: Spec, tick: float, tokens_per_second: float | None) -> float | None:
    if spec.steps is not None:
        return spec.steps * tick
    return None if not tokens_per_second else (spec.tokens or 0) / tokens_per_second


def _of_region(each: Border, seconds: float | None, prices: Mapping[str, float]) -> RegionNeeds:
    price = prices.get(each.region)
    daily = None if price is None else each.out / 8 * DAY_SECONDS / 1e9 * price
    known = daily is not None and seconds is not None
    return RegionNeeds(
        border=each,
        out_bytes_per_day=each.out / 8 * DAY_SECONDS,
        into_bytes_per_day=each.into / 8 * DAY_SECONDS,
        money_per_day=daily,
        money=(daily or 0.0) * (seconds or 0.0) / DAY_SECONDS if known else None,
    )


def _goodput(
    spec: Spec, given: Given, chips: Chips, moves: Traffic, seconds: float | None
) -> Goodput:
    away = chips.recovery_seconds
    if away is None:
        away = RECOVERY_SECONDS + _values_seconds(spec, given)
    failures = ChipFailures(
        chips_per_learner=chips.per_learner,
        per_chip_year=chips.failures_per_year,
        away_seconds=away,
    )
    period = spec.sync.period * moves.tick_seconds
    length = MONTH_SECONDS if seconds is None else seconds
    return goodput(failures, spec.learners, spec.learners_needed, period, length)


def _values_seconds(spec: Spec, given: Given) -> float:
    """In which a learner that begins gets all values, over the slowest link that is known."""
    encoding = codecs.base_encoding(spec.sync.wire.down)
    bits = 8 * codecs.encoded_size(given.parameters, encoding)
    rates = [rate_of_one(spec, each.name, given.links) for each in spec.regions]
    return max((bits / rate for rate in rates if rate is not None), default=0.0)
