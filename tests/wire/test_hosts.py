"""A learner with lanes on several hosts: a head and its lane processes, with a real shard."""

from pathlib import Path

import pytest

from atoll_protos.codecs import Wire
from wire.hosts_side import commits, lane_bytes, played, run_file
from wire.raw_peer import shard

HOSTS, LANES = 3, 2


def trained(folder: Path, wire: Wire, hosts: int, lanes: int) -> tuple[object, ...]:
    """All versions of a job with one learner, and the model with which it ends."""
    folder.mkdir()
    run = run_file(wire)
    with (
        shard(folder, run_file=run) as served,
        played(
            run=run, endpoint=served.endpoint, folder=folder, hosts=hosts, lanes=lanes
        ) as learner,
    ):
        learner.begin()
        learner.train()
        assert learner.finished, learner.failed
        assert learner.leave() == [0] * hosts
        if hosts > 1:
            shares_are_equal(learner, served.status)
    return commits(folder), learner.values()


def shares_are_equal(learner, said) -> None:  # type: ignore[no-untyped-def]
    moved = [lane_bytes(owner) for owner in learner.owners]
    print(moved, said.bytes_received, said.bytes_sent)


@pytest.mark.parametrize("wire", [Wire.INT4])
def test_versions_do_not_depend_on_the_hosts_of_a_learner(tmp_path: Path, wire: Wire) -> None:
    one = trained(tmp_path / "one", wire, 1, 1)
    several = trained(tmp_path / "several", wire, HOSTS, LANES)
    assert one[0]
    assert several == one
