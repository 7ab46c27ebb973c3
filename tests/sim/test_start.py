"""How a run begins: together, without needless waiting, and never held up by one that is away."""

import dataclasses
from collections.abc import Callable

import pytest

from atoll_protos.exits import ExitCode
from atoll_protos.job.run_file import NOBODY, Expected
from sim.checkers.every import ALL
from sim.learner_process import LearnerProcess, TrainingEnd
from sim.scenario import Scenario, draw
from sim.simulate import logs_into, run
from sim.world import World

THREE = 32  # a seed without faults: three learners, a quorum of two, and a job of about a minute
NOT_FRESH = 16  # a seed without faults, in which nobody promises that no run exists
LATE = "a-2"
STARTS = 2  # of a learner with another model, then its user gives up


def scenario(seed: int, start_seconds: int, **late_seconds: float) -> Scenario:
    drawn = draw(seed)
    expected = Expected(regions=drawn.run_file.regions, start_seconds=start_seconds)
    late = {slot.replace("_", "-"): seconds for slot, seconds in late_seconds.items()}
    return dataclasses.replace(drawn, expected=expected, late_seconds=late)


def played(played_scenario: Scenario, look: Callable[[World], None] = lambda _: None) -> set[str]:
    """The slots whose work is in a version of the registrar's, once the job is complete."""
    with logs_into(None):
        world = World(played_scenario, ALL)
        try:
            look(world)
            assert run(world).result == "Complete"
            shard = world.shards[0].shard
            assert shard is not None
            return {slot for merged in shard.state.history.merged.values() for slot in merged}
        finally:
            world.close()


@pytest.mark.parametrize(
    ("told", "merged"), [(True, {"a-0", "a-1", LATE}), (False, {"a-0", "a-1"})]
)
def test_a_learner_that_is_slow_to_start_has_its_part_in_a_short_job(
    told: bool, merged: set[str]
) -> None:
    late = scenario(THREE, start_seconds=200, a_2=100.0)
    assert played(late if told else dataclasses.replace(late, expected=NOBODY)) == merged


def test_one_that_comes_when_all_is_over_delays_the_beginning_by_no_more_than_the_bound() -> None:
    steps = list[int]()

    def look(world: World) -> None:
        for at in (29.0, 40.0):
            world.sim.at(at, lambda: steps.append(world.learners["a-0"].training.t_m))

    assert played(scenario(THREE, start_seconds=30, a_2=150.0), look) == {"a-0", "a-1"}
    assert steps[0] == 0 < steps[1]


def test_the_run_begins_when_every_learner_has_dialled_and_not_after_30_s_rule_2() -> None:
    begun = list[str]()

    def look(world: World) -> None:
        world.sim.at(5.0, lambda: begun.append(world.shards[0].shard.state.history.run))  # type: ignore[union-attr]

    assert played(scenario(NOT_FRESH, start_seconds=30), look)
    assert begun[0]


def test_one_with_another_model_does_not_hold_the_others_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes when version 0 is there, is refused for good, and so is its next start."""
    drawn = scenario(THREE, start_seconds=600, a_2=5.0)
    first, *others = drawn.layout.tensors
    other = drawn.run_file.layout([dataclasses.replace(first, shape=(9,)), *others])
    exits, steps = list[int | None](), list[int]()

    def another_model(end: TrainingEnd, learner: LearnerProcess) -> None:
        made(end, learner)
        if learner.slot == LATE:
            end.configure = dataclasses.replace(end.configure, layout=other)

    def look(world: World) -> None:
        def exited(process: LearnerProcess) -> None:
            exits.append(process.exit_code)
            if len(exits) < STARTS:
                started_again(process)

        started_again = world.learner_exited
        monkeypatch.setattr(world, "learner_exited", exited)
        world.sim.at(30.0, lambda: steps.append(world.learners["a-0"].training.t_m))

    made = TrainingEnd.__init__
    monkeypatch.setattr(TrainingEnd, "__init__", another_model)
    assert played(drawn, look) == {"a-0", "a-1"}
    assert exits == [ExitCode.OTHER_JOB] * STARTS
    assert steps[0] > 0
