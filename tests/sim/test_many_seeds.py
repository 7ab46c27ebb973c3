"""The production programs under drawn faults: every checker over every seed, then Final.

`pytest` alone runs the first seeds, which see every kind of fault. `pytest -m seeds` runs the
others, and `.ci/run` runs all.
"""

import pytest

from sim.scenario import draw
from sim.simulate import simulate

SEEDS, CHUNK = 320, 16
ALWAYS = 64  # seeds of the default run


def check(seeds: range) -> None:
    for seed in seeds:
        outcome = simulate(seed)
        lost = draw(seed).loses_a_store
        assert outcome.result == "Complete" or (outcome.result == "Failed" and lost)


@pytest.mark.parametrize("first", range(0, ALWAYS, CHUNK))
def test_every_rule_holds_and_the_run_reaches_final(first: int) -> None:
    check(range(first, first + CHUNK))


@pytest.mark.seeds
@pytest.mark.parametrize("first", range(ALWAYS, SEEDS, CHUNK))
def test_every_rule_holds_in_more_seeds(first: int) -> None:
    check(range(first, first + CHUNK))


@pytest.mark.parametrize("count", [ALWAYS, SEEDS])
def test_most_of_the_drawn_world_is_used(count: int) -> None:
    scenarios = [draw(seed) for seed in range(count)]
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert len(kinds) == 33
    effects = {fault.effect for scenario in scenarios for fault in scenario.faults}
    assert len(effects) > count // 16
    assert sum(bool(scenario.slow) for scenario in scenarios) >= count // 16
    assert sum(bool(scenario.ranks) for scenario in scenarios) > count // 10
    assert {1, 2, 4} <= {scenario.run_file.shards for scenario in scenarios}
    assert max(len(scenario.run_file.slots) for scenario in scenarios) >= 7
    assert any(scenario.run_file.tokens for scenario in scenarios)
    assert sum(scenario.run_file.sync.lockstep for scenario in scenarios) > count // 8
