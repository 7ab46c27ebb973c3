"""Each checker finds its bug: a simulation without this proof proves nothing."""

import pytest

from sim.checkers.every import ALL
from sim.plants import PLANTS, Plant
from sim.simulate import LivenessError, simulate
from sim.watch import ViolationError

SEEDS_MAX = 200


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_by_the_checker_of_its_rule(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant.plant(monkeypatch)
    checkers = tuple(checker for checker in ALL if checker.rule == plant.rule)
    for seed in range(1, SEEDS_MAX):
        try:
            simulate(seed, checkers)
        except ViolationError as violation:
            assert violation.rule == plant.rule
            return
        except (AssertionError, KeyError, LivenessError):
            continue  # the bug also broke something else first
    pytest.fail(f"{SEEDS_MAX} seeds do not find it")


def test_every_checker_has_a_planted_bug() -> None:
    assert {checker.rule for checker in ALL} == {plant.rule for plant in PLANTS}
