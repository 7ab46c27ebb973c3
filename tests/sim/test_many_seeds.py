"""The production rules under drawn faults: every checker over every seed, then Final."""

import pytest

from sim.scenario import draw
from sim.simulate import simulate

SEEDS, CHUNK = 352, 22


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_rule_holds_and_the_run_reaches_final(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        lost = draw(seed).loses_a_store
        assert outcome.result == "Complete" or (outcome.result == "Failed" and lost)


def test_most_of_the_drawn_world_is_used() -> None:
    scenarios = [draw(seed) for seed in range(SEEDS)]
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert len(kinds) == 15
    assert {scenario.run_file.shards for scenario in scenarios} == {1, 2}
    assert sum(scenario.run_file.sync.lockstep for scenario in scenarios) > SEEDS // 8
