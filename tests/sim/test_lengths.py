"""A job gets another length while it runs; its shards hear of it at different times (rule 27)."""

import dataclasses
from itertools import pairwise

import pytest

from atoll_protos.transfer.codecs import Wire
from sim.checkers.every import ALL
from sim.drawn_claims import Fault
from sim.scenario import Reads, Scenario, draw
from sim.simulate import logs_into, run
from sim.test_many_seeds import ALWAYS
from sim.world import World

LOCK_STEP = (3, 46, 73, 91, 102, 107)
DECOUPLED = (0, 13, 15, 36)
MORE, END, LATER = 12, 33, 1 << 30  # ticks
LOOK_SECONDS = 0.01


def edited(seed: int, lengths: tuple[int, ...], reads: dict[int, Reads]) -> Scenario:
    return dataclasses.replace(draw(seed), faults=(), lengths=lengths, reads=reads)


def ended(scenario: Scenario) -> World:
    """The world after a run that has completed."""
    with logs_into(None):
        world = World(scenario, ALL)
        try:
            assert run(world).result == "Complete"
        finally:
            world.close()
    return world


@pytest.mark.parametrize("told_others", [True, False])
@pytest.mark.parametrize("seed", [*LOCK_STEP, *DECOUPLED])
def test_a_longer_job_goes_on_to_its_new_end_whichever_shard_hears_of_it_first(
    seed: int, told_others: bool
) -> None:
    """The first shard reads it a period before the former end, the others then or never."""
    drawn = draw(seed)
    end, shards = drawn.run_file.steps, drawn.run_file.shards
    assert end is not None
    assert shards > 1
    assert drawn.run_file.sync.lockstep == (seed in LOCK_STEP)
    reads: dict[int, Reads] = {0: ((end - drawn.run_file.sync.period, 1),)}
    if told_others:
        reads |= dict.fromkeys(range(1, shards), ((end - 2, 1),))
    world = ended(edited(seed, (end + MORE,), reads))
    for process in world.shards:
        assert process.shard is not None
        assert process.shard.state.ending.length.ends == (end, end + MORE)
        assert process.shard.state.clock.tick >= end + MORE
    assert all(each.training.t_m >= end for each in world.learners.values())


@pytest.mark.parametrize("seed", [0, 3, 36, 46, 67, 73])
def test_one_that_becomes_longer_in_its_last_moment_ends_all_the_same(seed: int) -> None:
    """Some shards may have ended; the others go on to the new end, or all have."""
    end = draw(seed).run_file.steps
    assert end is not None
    ended(edited(seed, (end + MORE,), {0: ((end, 1),)}))


@pytest.mark.parametrize("beyond", [True, False])
@pytest.mark.parametrize("seed", [*LOCK_STEP, *DECOUPLED])
def test_a_typo_that_is_taken_back_ends_the_job_at_its_length_or_where_it_is(
    seed: int, beyond: bool
) -> None:
    """The registrar alone reads it, ahead of the shorter length or when that is passed."""
    drawn = draw(seed)
    end, period = drawn.run_file.steps, drawn.run_file.sync.period
    assert end is not None
    length, at = (2, period) if beyond else (period + 3, 2)
    world = ended(edited(seed, (100 * end, length), {0: ((1, 1), (at, 2))}))
    for process in world.shards:
        assert process.shard is not None
        assert process.shard.state.ending.length.steps == length
        assert length <= process.shard.state.clock.tick < end


def test_edits_are_drawn_in_all_their_kinds() -> None:
    drawn = [each for each in map(draw, range(ALWAYS)) if each.lengths]
    assert len(drawn) > ALWAYS // 8
    assert any(each.run_file.tokens for each in drawn)
    assert any(each.run_file.sync.lockstep for each in drawn)
    assert any(len(each.reads) < each.run_file.shards for each in drawn)
    comes_back = [
        any(late < early for (_, early), (_, late) in pairwise(read))
        for each in drawn
        for read in each.reads.values()
    ]
    assert any(comes_back)


def test_a_slice_whose_last_round_closed_with_nothing_is_due_again_in_a_longer_job() -> None:
    """All learners die at the end, while another slice's version waits for the store (rule 27)."""
    drawn = draw(0)
    sync = dataclasses.replace(
        drawn.run_file.sync,
        fragments=2,
        period=8,
        overlap=1,
        quorum=1,
        lockstep=False,
        wire_down=Wire.F32,  # what is not rounded needs no last version
    )
    run_file = dataclasses.replace(drawn.run_file, shards=1, steps=END, tokens=None, sync=sync)
    tensor = drawn.layout.tensors[0]
    layout = run_file.layout([dataclasses.replace(tensor, name=f"t{n}") for n in range(2)])
    scenario = dataclasses.replace(
        edited(0, (END + MORE,), {0: ((LATER, 1),)}),
        run_file=run_file,
        layout=layout,
        ranks={},
        faults=(Fault(at=0.0, kind="list", which=0, seconds=0.0),),  # nothing; more is done below
    )
    closed = list[int]()
    with logs_into(None):
        world = World(scenario, ALL)

        def end() -> None:
            world.reached[0] = LATER  # the file with the longer length comes
            world.weather.slice_seconds = scenario.slice_seconds
            for slot in world.run_file.slots:
                world.learners[slot] = world.start_learner(slot, f"{slot}-again", 1.0)
            world.sim.after(1.0, lambda: setattr(world.stores[0], "away", False))

        def look() -> None:
            shard = world.shards[0].shard
            state = None if shard is None else shard.state
            if state is None or state.clock.tick < END - sync.period // 2:
                world.sim.after(LOOK_SECONDS, look)
                return
            if any(each.closed_at is not None for each in state.rounds.open.values()):
                world.stores[0].away = True
                world.weather.slice_seconds = 5.0  # of an offer, longer than its learner lives
            if state.over:
                for each in world.learners.values():
                    each.kill("at the end")
            if state.rounds.finished:
                closed.extend(state.rounds.finished)
                end()
            else:
                world.sim.after(LOOK_SECONDS, look)

        look()
        try:
            assert run(world).result == "Complete"
        finally:
            world.close()
    assert len(closed) == 1
