"""bench.science: its queue, its arithmetic, and whether production gets its settings."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from atoll_protos.job.run_file import Merge, Quorum
from atoll_protos.transfer.codecs import Wire
from bench.science import queue, report
from bench.science.__main__ import made
from bench.science.engine import train
from bench.science.experiments import SCALES, experiments
from bench.science.report import estimate, paired
from bench.science.setting import Setting

TESTS = Path(__file__).parents[1]
SMALL = SCALES["small"]
ALL = experiments(SMALL)
TINY = Setting(seed=1, steps=16, learners=2, batch=1, sync={"fragments": 2, "period": 8})


def of(letter: str, cell: str, arm: str) -> Setting:
    return ALL[letter].runs(SMALL)[cell, arm, 0]


# ------------------------------------------------------------ the queue


def test_a_queue_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = [Setting(seed=seed, steps=1) for seed in range(3)]
    (tmp_path / "runs").mkdir()
    queue.make(tmp_path, settings[1], lambda setting: {"loss": float(setting.seed)})
    assert queue.missing(tmp_path, settings) == [settings[0], settings[2]]
    assert queue.result(tmp_path, settings[1]) == {"loss": 1.0}


# ------------------------------------------------------------ arithmetic


def test_a_paired_difference_has_the_error_bar_of_its_differences() -> None:
    """Seeds differ by tens, arms by 1, 2 and 3: mean 2, deviation 1, and t = 4.303 for two."""
    base = {0: 10.0, 1: 50.0, 2: 90.0, 3: 7.0}
    found = paired({0: 11.0, 1: 52.0, 2: 93.0, 4: 1.0}, base)
    assert found is not None
    assert (found.mean, found.count) == (2.0, 3)
    assert found.half_width == pytest.approx(4.303 / sqrt(3))
    assert estimate([11.0, 52.0, 93.0]).half_width == pytest.approx(4.303 * 41 / sqrt(3))
    assert estimate([1.0]).half_width is None
    assert paired({4: 1.0}, base) is None


def test_figures_are_of_the_runs_that_are_there(tmp_path: Path) -> None:
    experiment = ALL["c"]
    runs = experiment.runs(replace(SMALL, seeds=2))
    lost = ("M = 4", "RDA", 1)
    (tmp_path / "runs").mkdir()
    for key, setting in runs.items():
        if key != lost:
            queue.make(tmp_path, setting, lambda each: {"loss": 2.0 + each.seed, "busy": 0.5})
    results = {"c": made(tmp_path, runs)}
    figures = {each.what: each.values for each in report.figures({"c": experiment}, results)}
    assert figures["(c) M = 4, Mean: loss"] == [2.5, pytest.approx(6.353)]
    assert figures["(c) M = 4, RDA: loss"] == [2.0], "of one run there is no ±"
    assert figures["(c) M = 4, RDA: minus the first arm"] == [0.0]
    assert figures["(c) M = 4, RDA: busy"] == [50.0]


# ------------------------------------------------------------ production has the settings


@pytest.mark.parametrize("letter", ALL)
@pytest.mark.parametrize("scale", SCALES)
def test_production_accepts_every_arm(letter: str, scale: str) -> None:
    size = replace(SCALES[scale], seeds=1)
    for setting in experiments(size)[letter].runs(size).values():
        if setting.sync is not None:
            assert len(setting.job().slots) == setting.learners


def test_an_arm_is_what_its_name_says() -> None:
    link = "link fills the overlap"
    assert not of("b", link, "K = 1").job().sync.grace
    free, waits = (of("b", link, name).job() for name in ("K = 1, grace", "K = M, lock-step"))
    assert waits.sync == replace(free.sync, lockstep=True, quorum=Quorum.ALL, grace=False)
    assert of("c", "M = 8", "Mean").job().sync.merge is Merge.MEAN
    assert of("c", "M = 8", "RDA").job().sync.merge is Merge.RADIAL_DIRECTIONAL
    assert of("e", "M = 4", "int4").job().sync.wire_up is Wire.INT4
    assert of("f", "P = 8", "balanced").job().sync.fragments == 8
    assert of("g", "10 merges", "0.7/0.5").job().sync.outer_momentum == 0.5
    assert of("a", "33k, M = 2", "DiLoCo").job().sync.quorum is Quorum.ALL
    assert of("a", "33k, M = 2", "Streaming").job().sync.wire_up is Wire.INT4
    assert of("i", "M = 4", "none").job().tokens == of("i", "M = 4", "each once").job().tokens


def test_one_learner_whose_merges_change_nothing_trains_as_if_alone() -> None:
    """Rate 1 without momentum takes its values as they are: capture, merge and adoption are true.

    All that lies between is production's, and the inner rates are the same.
    """
    outer = {"learningRate": "1", "momentum": "0"}
    alone = replace(TINY, learners=1, steps=24)
    merged = replace(alone, sync={"preset": "DiLoCo", "period": 8, "outer": outer})
    found = train(merged)
    assert found["commits"] == 3
    assert found["loss"] == pytest.approx(train(replace(alone, sync=None))["loss"], abs=1e-4)


@pytest.mark.parametrize("preset", ["DiLoCo", "StreamingDiLoCo"])
def test_in_lock_step_speeds_and_links_change_no_bit_of_the_model_rule_15(preset: str) -> None:
    """With a warm-up: the inner rate follows a learner's position, not the tick that it hears."""
    even = replace(TINY, sync={"preset": preset, "period": 8})
    uneven = replace(even, paces=(1.0, 1.4), spread=0.17, way=1.6)
    found = train(uneven)
    assert found["loss"] == train(even)["loss"]
    assert found["offers_merged"] == 1.0
