"""A learner and a shard that wake after their replacement: they are refused for good."""

import signal
from pathlib import Path

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from wire.fixtures import SECONDS_MAX, first_commit, peer, shard
from wire.fixtures import until as holds


async def refused(endpoint: str, zombie: pb.Welcome) -> None:
    async with peer(endpoint, "here-0") as again:
        answer = await again.join(instance="here-0", incarnation=zombie.incarnation,
                                  proof=zombie.proof, run=zombie.run)  # fmt: skip
        assert answer.end.code == pb.SUPERSEDED
        assert not answer.end.retry
        assert "here-0" in answer.end.reason


async def test_a_learner_that_was_replaced_is_refused_for_good_rule_5(tmp_path: Path) -> None:
    with shard(tmp_path) as served:
        async with peer(served.endpoint, "here-0") as first:
            await first_commit(served, first)
            zombie = first.welcome
        async with peer(served.endpoint, "here-0") as second:
            answer = await second.join(instance="replacement")
            assert answer.welcome.incarnation == zombie.incarnation + 1
            await refused(served.endpoint, zombie)
            await holds(lambda: served.status.refused_zombies >= 1)
    with shard(tmp_path) as served:
        await refused(served.endpoint, zombie)
        async with peer(served.endpoint, "here-0") as second:
            answer = await second.join(instance="replacement", run=zombie.run, incarnation=2)
            assert answer.HasField("welcome"), answer


def test_a_shard_that_slept_while_another_took_over_is_superseded_rule_20(tmp_path: Path) -> None:
    with shard(tmp_path) as slept:
        slept.process.send_signal(signal.SIGSTOP)
        with shard(tmp_path) as served:
            slept.process.send_signal(signal.SIGCONT)
            assert slept.process.wait(SECONDS_MAX) == ExitCode.SUPERSEDED
            assert served.status.epoch == 2
