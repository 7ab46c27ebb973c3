"""Who a round waits for: what of the learners' work is merged, and how long rounds take.

In tests/: python -m bench.waiting [--arm NAME]... [--fleet NAME]... [--link PERCENT]...

Production's rules of shard and learner in virtual time, without training: eight learners, eight
fragments, a period of 24 ticks and an overlap of 2. `link` is the share of the overlap that a
slice's way up and down take together. What is kept is merged / (1 - overlap), as shares of the
trained tokens (rule 13).
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Any, Final

from atoll_protos.job.run_file import GraceLimit, Quorum, Region, RunFile, Sync
from atoll_syncer.model.effects import Effect, MergeOffers
from atoll_syncer.model.log import Committed, Entry
from bench.results import Figure, option, publish
from sim.learner_process import LearnerProcess
from sim.scenario import Scenario, draw
from sim.shard_process import ShardProcess
from sim.simulate import logs_into
from sim.symbols import Key
from sim.watch import Watcher
from sim.world import World

QUIET: Final = 0  # a seed without faults
STEP_SECONDS: Final = 2.0  # of a learner at usual speed
DIES_AT: Final = 0.25  # of the time
LINKS: Final = (10, 50, 90, 130)
CLASSES: Final = ("merged", "overlap", "late", "lost")
BASE: Final = Sync(fragments=8, period=24, overlap=2)
ARMS: Final[Mapping[str, Sync]] = {
    "lock-step": replace(BASE, quorum=Quorum.ALL, lockstep=True),
    "K = 8": replace(BASE, quorum=8),
    "K = 7": replace(BASE, quorum=7),
    "K = 4": replace(BASE, quorum=4),
    "K = 1": BASE,
    "K = 1, limit Overlap": replace(BASE, grace_limit=GraceLimit.OVERLAP),
    "K = 1, no grace": replace(BASE, grace=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Eight learners. `paces` and `last_link` are times, over the usual ones."""

    paces: tuple[float, ...] = (1.0,) * 8
    spread: tuple[float, float] = (0.83, 1.17)  # of single steps: a standard deviation of 10%
    last_link: float = 1.0
    last_dies: bool = False  # its machine is gone, and nothing says so


FLEETS: Final[Mapping[str, Fleet]] = {
    "equal": Fleet(),
    "18% apart": Fleet(paces=(1.0,) * 4 + (1.18,) * 4),
    "one 3 x slower": Fleet(paces=(1.0,) * 7 + (3.0,)),
    "one dies": Fleet(last_dies=True),
    "18% apart, noise of 30%": Fleet(paces=(1.0,) * 4 + (1.18,) * 4, spread=(0.5, 1.5)),
    "18% apart, one link 2 x slower": Fleet(paces=(1.0,) * 4 + (1.18,) * 4, last_link=2.0),
    "18% apart, one link 3 x slower": Fleet(paces=(1.0,) * 4 + (1.18,) * 4, last_link=3.0),
}


def scenario(sync: Sync, fleet: Fleet, ticks: int, seed: int) -> Scenario:
    """One shard; each slice is one tensor."""
    drawn = draw(QUIET)
    job: RunFile = replace(
        drawn.run_file,
        regions=(Region(name="a", learners=len(fleet.paces)),),
        shards=1,
        seed=seed,
        steps=4 * ticks,  # it does not end in the time
        sync=sync,
        checkpoint=None,
    )
    one = drawn.layout.tensors[0]
    tensors = [replace(one, name=f"t{n}", merge="rda") for n in range(sync.fragment_count)]
    paces = zip(job.slots, fleet.paces, strict=True)
    return replace(
        drawn,
        seed=seed,
        run_file=job,
        layout=job.layout(tensors),
        step_seconds={slot: STEP_SECONDS * pace for slot, pace in paces},
        step_spread=fleet.spread,
        tokens_per_step=1,
        disk_seconds=0.002,
        merge_seconds=0.01,
        examine_seconds=0.01,
        delay_seconds=0.002,
        slice_seconds=0.0,
        ranks={},
        lanes_share=0.0,
        observer=False,
        fresh=True,
        snapshot_entries=100,
    )


class Counts(Watcher):
    """What became of offers and tokens, and how long rounds took."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.tokens: Counter[str] = Counter()  # by class, over all slices
        self.settled: Counter[str] = Counter()  # by process: tokens of all slices
        self.offers = self.merged = self.rounds = 0
        self.open_seconds: list[float] = []
        self.step_seconds: Counter[str] = Counter()  # by process
        self.began_at: dict[str, float] = {}  # its first step
        self.stepped_at: dict[str, float] = {}  # its last one was finished

    def recorded(self, learner: LearnerProcess, fields: dict[str, Any]) -> None:
        for each in fields.get("adopted", ()):
            for name in ("merged", "overlap", "late"):
                self.tokens[name] += each[name]
                self.settled[learner.name] += each[name]

    def stepped(self, learner: LearnerProcess) -> None:
        seconds = learner.training.step_seconds
        self.began_at.setdefault(learner.name, self.world.sim.now - seconds)
        self.step_seconds[learner.name] += seconds  # type: ignore[assignment]
        self.stepped_at[learner.name] = self.world.sim.now

    def handed_over(self, learner: LearnerProcess, key: Key, offer: Any) -> None:
        self.offers += 1

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            self.rounds += 1
            self.merged += len(entry.participants)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        assert shard.shard is not None
        for effect in effects:
            if isinstance(effect, MergeOffers):
                each = shard.shard.state.rounds.open[effect.slice]
                assert each.closed_at is not None
                self.open_seconds.append(each.closed_at - each.opened_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One cell. `busy`: the share of the time in which the least busy learner trained."""

    busy: float
    tokens: Mapping[str, float]
    rounds: int
    open_ticks: float

    @property
    def kept(self) -> float:
        return self.tokens["merged"] / (1.0 - self.tokens["overlap"])


def played(sync: Sync, link: int, fleet: Fleet, ticks: int, seed: int) -> Found:
    """So many ticks of a learner at usual speed; `link` in percent of the overlap."""
    one = scenario(sync, fleet, ticks, seed)
    last, end = one.run_file.slots[-1], ticks * STEP_SECONDS
    with logs_into(None):
        world = World(one, (Counts,))
        try:
            slow_links(world, fleet, link)
            victim = world.learners[last] if fleet.last_dies else None
            if victim is not None:
                world.sim.at(DIES_AT * end, partial(world.pause, victim, math.inf))
            world.sim.run(end, lambda: False)
            return found(world, victim)
        finally:
            world.close()


def slow_links(world: World, fleet: Fleet, link: int) -> None:
    """A slice's way up, or down, takes half of `link` percent of the overlap."""
    way = link / 100 * world.run_file.sync.overlap * STEP_SECONDS / 2
    for slot in world.run_file.slots:
        seconds = way * (fleet.last_link if slot == world.run_file.slots[-1] else 1.0)
        world.weather.slow[slot] = seconds, seconds


def found(world: World, victim: LearnerProcess | None) -> Found:
    """The victim's work since its last adoptions is lost."""
    (counts,) = world.watchers.watchers
    assert isinstance(counts, Counts)
    if victim is not None:
        trained = victim.training.t_m * len(victim.regions)
        counts.tokens["lost"] = trained - counts.settled[victim.name]
    whole = sum(counts.tokens.values())
    living = [each.name for each in world.learners.values() if each is not victim]
    return Found(
        busy=min(
            counts.step_seconds[name] / (counts.stepped_at[name] - counts.began_at[name])
            for name in living
        ),
        tokens={name: counts.tokens[name] / whole for name in CLASSES},
        rounds=counts.rounds,
        open_ticks=mean(counts.open_seconds) / STEP_SECONDS,
    )


Cells = Mapping[tuple[str, str, int], Found]  # by fleet, arm and link


def main() -> None:
    """Play each fleet with each arm over each link."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--fleet", action="append", choices=FLEETS)
    parser.add_argument("--link", action="append", type=int, help="percent of the overlap")
    parser.add_argument("--fragments", type=int, default=BASE.fragment_count)
    parser.add_argument("--ticks", type=int, default=480)
    parser.add_argument("--seed", type=int, action="append", help="of several, the least kept")
    option(parser)
    given = parser.parse_args()
    cells: dict[tuple[str, str, int], Found] = {}
    for fleet in given.fleet or FLEETS:
        for arm in given.arm or ARMS:
            sync = replace(ARMS[arm], fragments=given.fragments)
            for link in given.link or LINKS:
                seeds = given.seed or (1,)
                them = [played(sync, link, FLEETS[fleet], given.ticks, seed) for seed in seeds]
                cells[fleet, arm, link] = min(them, key=lambda found: found.kept)
    publish(given, [*figures(cells)], about="Virtual time.")


def figures(cells: Cells) -> Iterator[Figure]:
    """A fleet and an arm by its links; where there are several arms, a fleet and a link by them."""
    by_link: dict[str, list[Found]] = {}
    by_arm: dict[str, list[Found]] = {}
    all_of: dict[str, list[Found]] = {}
    for (fleet, arm, link), each in cells.items():
        by_link.setdefault(f"{fleet}; {arm}", []).append(each)
        by_arm.setdefault(f"{fleet}; link {link}%", []).append(each)
        all_of.setdefault(f"all; {arm}", []).append(each)
    several = len(all_of) > 1
    for where, of in (by_arm if several else by_link).items():
        yield Figure(what=f"{where}: kept", values=[each.kept for each in of])
        if not several:
            late = [100 * each.tokens["late"] for each in of]
            yield Figure(what=f"{where}: late", values=late, unit="%")
    for where, of in (by_link | all_of).items():
        counts = [each.rounds for each in of]
        values = [min(counts), max(counts)]
        yield Figure(what=f"{where}: least and most", values=values, unit="rounds")


if __name__ == "__main__":
    main()
