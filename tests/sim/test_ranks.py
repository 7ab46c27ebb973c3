"""A learner of several ranks loses one at a chosen moment (rule 30): how it ends and comes back."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from atoll_protos.exits import ExitCode
from sim import rank_group
from sim.checkers.every import ALL
from sim.rank_processes import FollowerProcess, HeadProcess
from sim.scenario import draw
from sim.simulate import logs_into, run
from sim.world import World

QUIET = 40  # a seed without faults, of one learner with two ranks
SLOT = "a-0"
SOME_STEPS = 6
SILENCE_SECONDS = 3.0


@pytest.fixture
def world() -> Iterator[World]:
    with logs_into(None):
        made = World(replace(draw(QUIET), silence_seconds=SILENCE_SECONDS), ALL)
        yield made
        made.close()


def head_of(world: World) -> HeadProcess:
    """Of the newest start of the learner."""
    head = world.learners[SLOT]
    assert isinstance(head, HeadProcess)
    return head


def rank_of(head: HeadProcess, which: str) -> HeadProcess | FollowerProcess:
    return head if which == "head" else head.followers[0]


def after_some_steps(head: HeadProcess, happen: Callable[[], None]) -> None:
    """Let it happen while the learner trains."""

    def look() -> None:
        if head.training.t_m < SOME_STEPS:
            head.sim.after(0.5, look)
        else:
            happen()

    look()


def incarnations(head: HeadProcess) -> set[int]:
    """With which its ranks have begun to train."""
    return {
        each.state.start.incarnation for each in head.group.ranks if each.state.start is not None
    }


@pytest.mark.parametrize("notices", [True, False], ids=["gloo fails", "NCCL waits"])
@pytest.mark.parametrize("how", ["is killed", "is killed with its host", "is frozen"])
@pytest.mark.parametrize("which", ["head", "other rank"])
def test_all_ranks_end_with_75_and_the_learner_comes_back_as_one_next_incarnation(
    world: World, which: str, how: str, notices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_too = 1.0 if how == "is killed with its host" else 0.0
    monkeypatch.setattr(rank_group, "MACHINE_TOO_SHARE", host_too)
    first = head_of(world)
    first.group.resets = notices
    lost = rank_of(first, which)

    def happen() -> None:
        if how == "is frozen":
            world.pause(lost, 3 * SILENCE_SECONDS)
        else:
            lost.kill(how)
            if lost is first:
                world.learner_exited(first)

    after_some_steps(first, happen)
    assert run(world).result == "Complete"
    codes = {each.process.name: each.exit_code for each in first.group.ranks}
    killed = {} if how == "is frozen" else {lost.name: None}
    assert codes == dict.fromkeys(codes, int(ExitCode.TRY_AGAIN)) | killed
    second = head_of(world)
    assert second is not first
    assert [incarnations(first), incarnations(second)] == [{1}, {2}]
    steps = {each.counts.own_steps for each in second.group.ranks}
    assert len(steps) == 1
    assert steps != {0}
    assert all(each.state.finished for each in second.group.ranks)


@pytest.mark.parametrize("which", ["head", "other rank"])
def test_a_rank_that_stands_still_for_less_than_the_limit_delays_a_step_and_no_more(
    world: World, which: str
) -> None:
    first = head_of(world)
    after_some_steps(first, lambda: world.pause(rank_of(first, which), SILENCE_SECONDS / 2))
    assert run(world).result == "Complete"
    assert head_of(world) is first
    assert incarnations(first) == {1}
    assert all(each.state.finished for each in first.group.ranks)


def test_a_rank_that_dies_before_the_others_have_entered_ends_them_all(world: World) -> None:
    first = head_of(world)
    first.followers[0].kill("before it has entered")
    assert run(world).result == "Complete"
    assert first.exit_code == ExitCode.TRY_AGAIN
    assert incarnations(head_of(world)) == {1}, "nobody had joined"
