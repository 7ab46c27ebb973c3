"""The experiments: which runs each has. docs/replication.md has what was published about each.

An experiment compares *arms* within each *cell*, with the same seeds: model and data of a learner
are alike in all arms of a cell. The first arm is the one that the others are compared with.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from atoll_protos.transfer.codecs import Wire
from bench.science.setting import SIZES, TIME, TOKENS, Away, Setting

Change: TypeAlias = Callable[[Setting], Setting]

P4: Final = {"fragments": 4, "period": 16, "overlap": 2}
AUTO: Final = {"learningRate": "0.7", "momentum": "auto"}
GLOBAL_BATCH: Final = 16  # windows of a step of all learners, where only their number differs
DATA_PARALLEL: Final = "data-parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large all experiments are."""

    steps: int  # of a run, where the experiment does not say more
    seeds: int
    sizes: Sequence[str]  # the first one for all, all of them where the size is the question
    merges: Sequence[int]  # of each fragment, where they are the question
    context: int = 32  # bytes of a window, of all sizes


SCALES: Final[Mapping[str, Scale]] = {
    "small": Scale(steps=160, seeds=3, sizes=("33k", "0.1M", "1M"), merges=(10, 25, 75)),
    "medium": Scale(steps=640, seeds=5, sizes=("33k", "0.1M", "1M"), merges=(75, 200, 1000)),
    "large": Scale(
        steps=4800,
        seeds=5,
        sizes=("1M", "0.1M", "3M", "10M"),
        merges=(75, 200, 400, 1000),
        context=64,
    ),
    "gpu": Scale(steps=4800, seeds=3, sizes=("120M", "10M", "1M"), merges=(200, 1000), context=512),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """`cells` and `arms` change the settings that `common` has."""

    title: str
    common: Change
    cells: Mapping[str, Change]
    arms: Mapping[str, Change]

    def narrowed(self, cells: Collection[str], arms: Collection[str]) -> "Experiment":
        """With these of its cells and arms only; with all where none is named."""
        return replace(
            self,
            cells={name: each for name, each in self.cells.items() if name in cells or not cells},
            arms={name: each for name, each in self.arms.items() if name in arms or not arms},
        )

    def runs(self, scale: Scale) -> dict[tuple[str, str, int], Setting]:
        """By cell, arm and seed; seeds come first, so that a queue cut short has whole pairs."""
        found = {}
        for seed in range(scale.seeds):
            begin = Setting(
                seed=seed,
                steps=scale.steps,
                sync=P4,
                size=scale.sizes[0],
                context=scale.context,
            )
            for cell, in_cell in self.cells.items():
                for arm, of_arm in self.arms.items():
                    found[cell, arm, seed] = of_arm(in_cell(self.common(begin)))
        return found


def same(setting: Setting) -> Setting:
    return setting


def change(**fields: Any) -> Change:
    """Other settings."""
    return lambda setting: replace(setting, **fields)


def sync(**fields: Any) -> Change:
    """Other settings of a manifest's `sync`."""
    return lambda setting: replace(setting, sync={**(setting.sync or {}), **fields})


def both(*changes: Change) -> Change:
    """One after the other."""

    def changed(setting: Setting) -> Setting:
        for each in changes:
            setting = each(setting)
        return setting

    return changed


def divided(learners: int) -> Change:
    """So many learners, who divide one batch."""
    return change(learners=learners, batch=GLOBAL_BATCH // learners)


def sized(size: str, times: float = 1.0) -> Change:
    """A model of that size, at so many times its rate."""
    return change(size=size, rate=SIZES[size].rate * times)


def outer(rate: str, momentum: str) -> Change:
    return sync(outer={"learningRate": rate, "momentum": momentum})


def preset(name: str, **fields: Any) -> Change:
    """A published system, with a momentum for runs of few merges."""
    given = {"preset": name, "period": P4["period"], "outer": AUTO, **fields}
    return change(sync=given)


def merges(count: int) -> Change:
    """Of each fragment."""
    period = 16 if count <= 25 else 8
    return both(sync(period=period), change(steps=count * period))


def scavenged(more: int) -> Change:
    """So many learners more, in the middle half of what four alone need."""

    def changed(setting: Setting) -> Setting:
        begins, ends = setting.steps / 4, setting.steps * 3 / 4
        later = range(setting.learners, setting.learners + more)
        away = [Away(learner=n, ends=begins) for n in later]
        away += [Away(learner=n, begins=ends, killed=False) for n in later]
        return replace(
            setting, learners=setting.learners + more, planned=setting.learners, away=tuple(away)
        )

    return changed


def failures(each: int) -> Change:
    """Each learner's machine is lost so many times, and is back after five steps."""

    def changed(setting: Setting) -> Setting:
        rng, away = random.Random(f"{setting.seed}/failures"), []
        for learner in range(setting.learners):
            part = (setting.steps - 10) / each
            for number in range(each):
                at = 5 + part * number + rng.uniform(0.0, part - 6)
                away.append(Away(learner=learner, begins=at, ends=at + 5))
        return replace(setting, away=tuple(away))

    return changed


def dies(setting: Setting) -> Setting:
    """Lose the last learner for good after a quarter of the time."""
    return replace(setting, away=(Away(learner=setting.learners - 1, begins=setting.steps / 4),))


SLOWER: Final = (1.0,) * 4 + (1.18,) * 4  # four of eight learners
FOUR_LEARNERS: Final = change(learners=4)
NO_SYNC: Final = change(sync=None)
LOCK_STEP: Final = sync(  # all else as in the other arms
    preset="StreamingDiLoCo",
    merge="RadialDirectional",
    adopt={"mode": "Overwrite"},
    outer=AUTO,
    wire={"up": "bf16", "down": "bf16"},
)


def experiments(scale: Scale) -> dict[str, Experiment]:
    """By letter."""
    count = {f"M = {n}": divided(n) for n in (2, 4, 8)}
    return {
        "a": Experiment(
            title="Systems, at equal tokens",
            common=same,
            cells={
                f"{size}, {name}": both(sized(size), each)
                for size in scale.sizes
                for name, each in count.items()
            },
            arms={
                DATA_PARALLEL: NO_SYNC,
                "DiLoCo": preset("DiLoCo"),
                "Streaming": preset("StreamingDiLoCo", fragments=4, overlap=2),
                "Decoupled": same,
            },
        ),
        "b": Experiment(
            title="Who is waited for, at equal time",
            common=change(learners=8, ends=TIME, paces=SLOWER, spread=0.17, batch=4),
            cells={"link fills the overlap": change(way=0.9), "fast link": change(way=0.1)},
            arms={
                "K = 1, grace": same,
                "K = 1": sync(grace={"enabled": False}),
                "K = M": sync(quorum=8),
                "K = M, lock-step": LOCK_STEP,
            },
        ),
        "c": Experiment(
            title="Radial-directional averaging against the mean",
            common=same,
            cells=count,
            arms={"Mean": sync(merge="Mean"), "RDA": same},
        ),
        "d": Experiment(
            title="More learners for the middle of a run, at equal tokens",
            common=both(FOUR_LEARNERS, change(ends=TOKENS), outer("0.7", "0.5")),
            cells={"M = 4": same},
            arms={
                "none": same,
                **{f"+{25 * n}%": scavenged(n) for n in (1, 2, 4, 12)},
            },
        ),
        "e": Experiment(
            title="Codecs, up and down",
            common=FOUR_LEARNERS,
            cells={"M = 4": same},
            arms={
                "bf16": same,
                **{
                    wire.value: sync(wire={"up": wire.value, "down": down(wire)})
                    for wire in Wire
                    if wire is not Wire.BF16
                },
                **{f"{up} up": sync(wire={"up": up, "down": "bf16"}) for up in ("int4", "int2")},
            },
        ),
        "f": Experiment(
            title="How the model is cut into fragments",
            common=FOUR_LEARNERS,
            cells={f"P = {n}": sync(fragments=n) for n in (4, 8)},
            arms={
                "balanced": same,
                "layers": change(model="layers"),
                "tensors in turn": change(model="tensors in turn"),
            },
        ),
        "g": Experiment(
            title="Outer settings, by the number of merges of a fragment",
            common=change(learners=3, batch=8),
            cells={f"{n} merges": merges(n) for n in scale.merges},
            arms={
                "0.7/0.9": outer("0.7", "0.9"),
                "0.7/0.5": outer("0.7", "0.5"),
                "auto": same,
                "auto, R/8": change(model="R/8"),
                "auto, length in tokens": change(ends=TOKENS),
                DATA_PARALLEL: NO_SYNC,
            },
        ),
        "h": Experiment(
            title="Muon inside of the learners",
            common=FOUR_LEARNERS,
            cells={
                "AdamW 6e-3": change(rate=6e-3),
                "Muon 0.02, AdamW 3e-3": change(muon_rate=0.02),
            },
            arms={DATA_PARALLEL: NO_SYNC, "RDA": same, "Mean": sync(merge="Mean")},
        ),
        "i": Experiment(
            title="Learners that are lost and come again, at equal tokens",
            common=both(FOUR_LEARNERS, change(ends=TOKENS), outer("0.7", "0.5")),
            cells={"M = 4": same},
            arms={
                "none": same,
                "each once": failures(1),
                "each four times": failures(4),
            },
        ),
        "j": Experiment(
            title="The peak rate of AdamW inside, by size",
            common=FOUR_LEARNERS,
            cells={
                f"{size}, rate {SIZES[size].rate * times:g}": sized(size, times)
                for size in scale.sizes
                for times in (0.5, 1.0, 2.0)
            },
            arms={DATA_PARALLEL: NO_SYNC, "Decoupled": same},
        ),
        "k": Experiment(
            title="How long a round may wait where the link is full, at equal time",
            common=both(
                change(learners=8, ends=TIME, spread=0.17, batch=8, way=1.3),
                sync(fragments=8, period=24),
            ),
            cells={
                "equal": same,
                "18% apart": change(paces=SLOWER),
                "one 3 x slower": change(paces=(1.0,) * 7 + (3.0,)),
                "one dies": dies,
                "18% apart, one link 2 x slower": change(paces=SLOWER, last_way=2.0),
            },
            arms={"limit Overlap": sync(grace={"limit": "Overlap"}), "K = 1": same},
        ),
    }


def down(wire: Wire) -> str:
    """Versions have at least 4 bits a value."""
    return Wire.INT4.value if wire.value == "int2" else wire.value
