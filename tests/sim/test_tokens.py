"""A job whose length is in tokens is stopped half-way, as a whole, and goes on (rule 35)."""

from dataclasses import replace

import pytest

from sim.checkers.kept import LengthChecker, TokensChecker
from sim.scenario import Scenario, draw
from sim.simulate import logs_into, run
from sim.world import World

IN_TOKENS = (24, 72, 136, 256)  # of one to three learners and shards


def trained(scenario: Scenario, *, stopped: bool) -> int:
    """Tokens that the job trains; if it is stopped, all its processes are killed half-way."""
    with logs_into(None):
        world = World(scenario, (LengthChecker, TokensChecker))

        def so_far() -> int:
            return sum(each.training.tokens for each in world.all_learners)

        def stop() -> None:
            assert scenario.run_file.tokens is not None
            if so_far() < scenario.run_file.tokens // 2:
                world.sim.after(0.1, stop)
                return
            for shard in world.shards:
                shard.kill("the run is stopped")
                world.shards[shard.number] = world.start_shard(shard.number, shard.pod)
            for slot, learner in world.learners.items():
                learner.kill("the run is stopped")
                world.learners[slot] = world.start_learner(slot, f"{slot}-again", 1.0)

        if stopped:
            world.sim.after(0.1, stop)
        try:
            assert run(world).result == "Complete"
            return so_far()
        finally:
            world.close()


@pytest.mark.parametrize("seed", IN_TOKENS)
def test_a_job_that_is_stopped_and_goes_on_trains_at_most_a_round_more(seed: int) -> None:
    """It trained half of its length more, since the shards had forgotten what was trained.

    What no commit has is lost with the processes: on a slow disk that is more than a round.
    """
    scenario = replace(draw(seed), disk_seconds=0.01, faults=())
    learners, period = len(scenario.run_file.slots), scenario.run_file.sync.period
    round_tokens = period * learners * scenario.tokens_per_step
    more = trained(scenario, stopped=True) - trained(scenario, stopped=False)
    assert more <= round_tokens
