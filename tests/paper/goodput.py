"""The published goodput with Atoll's own rules: `python -m paper.goodput`, in tests/.

Production's shard and learners run in virtual time (`sim`), without faults of their own. Only the
chips inside of each learner are a model (`paper.chips`): they say how many tokens a step has, and
how long the training process stands after it. Nothing else of a learner stands meanwhile: its
transport answers, and the shard's rules decide who is called, awaited and merged. With `--atoll`
the learner's processes end instead and are started again, as Atoll's are (rule 30).

What is counted, from the moment at which all train:
- *trained*: the tokens that the shard has counted (rule 35), of what all chips would have trained;
- *merged*: the same without what came too late for a merge or was lost with a process (rule 13);
- *uptime*: the share of the time in which at least one learner computes.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from atoll_protos.job.run_file import GraceLimit, Region, Sync
from bench.results import Figure, option, publish
from paper.chips import ATOLL, FITTED, Chips, Machines, expected
from paper.published import CHIPS, GOODPUT
from sim.learner_process import LearnerProcess
from sim.scenario import Scenario, draw
from sim.simulate import logs_into
from sim.watch import Watcher
from sim.world import World

QUIET: Final = 0  # a seed without faults
TOKENS: Final = 1_000_000  # of a step of all chips of a learner
BEGIN_SECONDS: Final = 120.0  # until all train, and rounds go on evenly
FRAGMENTS: Final = 4  # P; 24 are published
SYNC: Final = Sync(
    fragments=FRAGMENTS, period=24, overlap=2, quorum=1, grace_limit=GraceLimit.OVERLAP
)


class ChipsLearner(LearnerProcess):
    """A learner whose training process computes on chips that fail."""

    world: "ChipsWorld"

    def begin_step(self) -> None:
        """Compute a step, after what its learner stands for; or it is started again for that."""
        machine, now = self.world.machine(self.slot), self.sim.now
        stands = machine.stands_seconds
        if machine.ends_at is not None and now > BEGIN_SECONDS:
            machine.held_up_seconds += now - max(machine.ends_at, BEGIN_SECONDS)
        machine.ends_at = now + stands
        if stands and self.world.restarts:
            machine.stands_seconds = 0.0
            self.after(0.0, partial(self._start_again, stands))
        else:
            super().begin_step()

    def next_step(self) -> tuple[int, float]:
        machine, seconds = self.world.machine(self.slot), self.world.machines.step_seconds
        stands, begins = machine.stands_seconds, self.sim.now + machine.stands_seconds
        share, then_stands = (float(each[0]) for each in machine.chips.step())
        machine.stands_seconds, machine.ends_at = then_stands, begins + seconds
        self.world.computes.append((begins, begins + seconds))
        return round(TOKENS * share), stands + seconds

    def _start_again(self, after_seconds: float) -> None:
        self.kill("its processes are started again")
        world, slot = self.world, self.slot
        world.learners[slot] = world.start_learner(slot, self.uid, after_seconds)


@dataclass(slots=True, kw_only=True)
class Machine:
    """The chips of one slot, and what becomes of their time."""

    chips: Chips
    stands_seconds: float = 0.0  # before the next step
    ends_at: float | None = None  # when its learner is to go on
    held_up_seconds: float = 0.0  # for which it has waited after that


class ChipsWorld(World):
    """A job whose learners have chips; `restarts`: for each stand the learner's process ends."""

    learner_kind = ChipsLearner

    def __init__(
        self, scenario: Scenario, machines: Machines, chips_each: float, *, restarts: bool
    ) -> None:
        self.machines, self.chips_each, self.restarts = machines, chips_each, restarts
        self.of_slot: dict[str, Machine] = {}
        self.computes: list[tuple[float, float]] = []  # from and to, of each step
        super().__init__(scenario, (Fates,))

    def machine(self, slot: str) -> Machine:
        """Made when it is first asked for."""
        if slot not in self.of_slot:
            rng = np.random.default_rng(self.sim.random(f"chips {slot}").randrange(1 << 32))
            self.of_slot[slot] = Machine(chips=Chips(self.machines, self.chips_each, 1, rng))
        return self.of_slot[slot]

    @property
    def computed(self) -> int:
        """Tokens that the learners' processes have computed."""
        return sum(each.training.tokens for each in self.all_learners)

    @property
    def counted(self) -> int:
        """The same, as the shard has counted them."""
        (process,) = self.shards
        assert process.shard is not None
        return process.shard.state.sessions.counted

    def up_share(self, begin: float, end: float) -> float:
        """Of that time, in which a learner computes."""
        up, reached = 0.0, begin
        for since, until in sorted(self.computes):
            if min(until, end) > reached:
                up += min(until, end) - max(since, reached)
                reached = until
        return up / (end - begin)


class Fates(Watcher):
    """Sums what became of the tokens of adopted slices (rule 13)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.tokens = {"merged": 0, "overlap": 0, "late": 0}

    def recorded(self, learner: LearnerProcess, fields: dict[str, Any]) -> None:
        if self.world.sim.now > BEGIN_SECONDS:
            for each in fields.get("adopted", ()):
                for fate in self.tokens:
                    self.tokens[fate] += each[fate]

    @property
    def kept(self) -> float:
        """Tokens that are in a merge, or between its capture and its adoption: as a mean slice."""
        return (self.tokens["merged"] + self.tokens["overlap"]) / FRAGMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Shares of what all chips could do, or of the time, 0 to 1."""

    computed: float
    trained: float
    merged: float
    uptime: float
    held_up: float  # of the learners' time: they neither compute nor stand for their chips

    def in_the_long_run(self, machines: Machines, chips_each: float) -> float:
        """What such chips come to, less the time for which the learners were held up.

        In an hour a few learners have some hundred losses: what they train is off by some points.
        """
        return expected(machines, chips_each).trained * (1 - self.held_up)


def scenario(learners: int, machines: Machines, sync: Sync) -> Scenario:
    """A job on one shard, whose link takes a fifth of a step for a slice."""
    drawn = draw(QUIET)
    job = replace(
        drawn.run_file,
        regions=(Region(name="a", learners=learners),),
        shards=1,
        steps=10**9,
        tokens=None,
        sync=sync,
        checkpoint=None,
    )
    table = [replace(drawn.layout.tensors[0], name=f"t{n}") for n in range(FRAGMENTS)]
    return replace(
        drawn,
        run_file=job,
        layout=job.layout(table),
        step_seconds=dict.fromkeys(job.slots, machines.step_seconds),
        tokens_per_step=TOKENS,
        disk_seconds=0.05,
        merge_seconds=0.1,
        examine_seconds=0.02,
        read_seconds=0.05,
        delay_seconds=0.05,
        slice_seconds=machines.step_seconds / 5,
        object_store=False,
        snapshot_entries=1000,
        observer=False,
        fresh=True,
        ranks={},
        lanes_share=0.0,
    )


def play(
    machines: Machines,
    chips: float,
    learners: int,
    *,
    seconds: float,
    sync: Sync = SYNC,
    restarts: bool = False,
) -> Played:
    """A job of so many chips in all, for so long in virtual time."""
    with logs_into(None):
        job, each = scenario(learners, machines, sync), chips / learners
        world = ChipsWorld(job, machines, each, restarts=restarts)
        try:
            world.sim.run(BEGIN_SECONDS, lambda: False)
            computed, counted = world.computed, world.counted
            world.sim.run(BEGIN_SECONDS + seconds, lambda: False)
            whole = TOKENS * learners * seconds / machines.step_seconds
            (fates,) = world.watchers.watchers
            assert isinstance(fates, Fates)
            held_up = sum(each.held_up_seconds for each in world.of_slot.values())
            return Played(
                computed=(world.computed - computed) / whole,
                trained=(world.counted - counted) / whole,
                merged=fates.kept / whole,
                uptime=world.up_share(BEGIN_SECONDS, BEGIN_SECONDS + seconds),
                held_up=held_up / learners / seconds,
            )
        finally:
            world.close()


def main(words: Sequence[str] | None = None) -> None:
    """Print each cell: published, trained, merged, uptime."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of virtual time, each cell")
    parser.add_argument("--learners", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--chips", type=int, nargs="*", default=CHIPS)
    parser.add_argument("--all", action="store_true", help="a quorum of all learners")
    parser.add_argument("--atoll", action="store_true", help="Atoll's own recovery times")
    option(parser)
    given = parser.parse_args(words)
    figures = []
    machines = ATOLL if given.atoll else FITTED
    for learners in given.learners:
        shares: list[float] = []
        for chips in given.chips:
            played = play(
                machines,
                chips,
                learners,
                seconds=60 * given.minutes,
                sync=replace(SYNC, quorum=learners if given.all else 1),
                restarts=given.atoll,
            )
            ours = played.in_the_long_run(machines, chips / learners)
            sys.stdout.write(
                f"M = {learners}, {chips:,} chips: "
                f"published {GOODPUT[learners][CHIPS.index(chips)]}, ours {ours:.1%}; in this time "
                f"trained {played.trained:.1%}, merged {played.merged:.1%}, "
                f"held up {played.held_up:.1%}, uptime {played.uptime:.2%}\n"
            )
            sys.stdout.flush()
            shares += [100 * played.trained, 100 * played.merged]
        figures.append(Figure(what=f"M = {learners}: trained, merged, by chips", values=shares))
    publish(given, figures, about="In per cent, for 150k to 2.4M chips; virtual time.")


if __name__ == "__main__":
    main()
