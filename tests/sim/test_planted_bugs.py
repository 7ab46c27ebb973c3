"""Each checker finds its bug: a simulation without this proof proves nothing."""

import pytest

from sim.checkers.every import ALL
from sim.plants import PLANTS, Plant
from sim.simulate import simulate
from sim.test_many_seeds import SEEDS
from sim.watch import ViolationError, Watcher


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.rule}: {plant.id}")
def test_a_planted_bug_is_found_by_the_checker_of_its_rule(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant.plant(monkeypatch)
    checkers = tuple(checker for checker in ALL if checker.rule == plant.rule)
    found = any(finds(checkers, seed) for seed in (plant.seed, *range(SEEDS)))
    assert found, f"{[each.__name__ for each in checkers]} find it in none of {SEEDS} seeds"


def finds(checkers: tuple[type[Watcher], ...], seed: int) -> bool:
    """Whether one of these checkers ends the seed; another end says nothing."""
    try:
        simulate(seed, checkers)
    except ViolationError:
        return True
    except Exception:
        pass
    return False


def test_every_checker_has_a_planted_bug() -> None:
    assert {checker.rule for checker in ALL} == {plant.rule for plant in PLANTS}
