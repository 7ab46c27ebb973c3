"""A learner with lanes on several hosts: a head and its lane processes, with a real shard.

What is merged is all hosts' or nobody's: every version here has the digest that it has in a job
whose learner is on one host with one lane, also after a loss.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.supervision.ports import free_ports
from atoll_protos.exits import ExitCode
from atoll_protos.transfer.codecs import Wire
from wire.hosts_side import Host, Key, PlayedLearner, commits, lane_bytes, played, run_file
from wire.late_control import relay
from wire.raw_peer import SECONDS_MAX, ShardUnderTest, shard, shard_command

HOSTS, LANES = 3, 2
WIRE = Wire.INT8
SILENCE_SECONDS = 15.0
HOLD_SECONDS = 0.4  # far longer than the end of a Bulk stream takes to the shard

Result = tuple[list[tuple[int, int, str]], list[bytes]]


@contextmanager
def job(
    folder: Path, wire: Wire = WIRE, overlap: int = 1, **fields: Any
) -> Iterator[PlayedLearner]:
    """A shard, and a learner of several hosts that has not begun."""
    folder.mkdir(exist_ok=True)
    run = run_file(wire, overlap)
    with (
        shard(folder, run_file=run) as served,
        played(
            **{"hosts": HOSTS, "lanes": LANES, **fields},
            run=run,
            endpoint=served.endpoint,
            folder=folder,
        ) as learner,
    ):
        yield learner
        if learner.hosts > 1 and learner.finished:
            bytes_are_shared(learner, served)


def finished(learner: PlayedLearner) -> Result:
    """Train to the end, and leave in order: all versions, and the model with which it ends."""
    learner.begin()
    return to_the_end(learner)


def to_the_end(learner: PlayedLearner) -> Result:
    learner.train()
    assert learner.finished, learner.failed
    assert learner.leave() == [0] * learner.hosts
    return commits(learner.folder), learner.values()


def bytes_are_shared(learner: PlayedLearner, served: ShardUnderTest) -> None:
    """Each process has moved its share, and all together what the shard has counted."""
    moved = [lane_bytes(owner) for owner in learner.owners]
    said = served.status
    totals = sum(sent for sent, _ in moved), sum(received for _, received in moved)
    assert totals == (said.bytes_received, said.bytes_sent)
    for way, total in enumerate(totals):
        shares = [each[way] / total for each in moved]
        sys.stderr.write(f"\nshares of {total} bytes: {[f'{share:.4f}' for share in shares]}\n")
        assert all(abs(share * learner.hosts - 1) < 0.02 for share in shares), shares


@pytest.fixture(scope="module")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The job as it is with a learner on one host with one lane."""
    return alone(tmp_path_factory.mktemp("one"), WIRE)


def alone(folder: Path, wire: Wire, overlap: int = 1) -> Result:
    with job(folder, wire, overlap, hosts=1, lanes=1) as learner:
        found = finished(learner)
    assert len(found[0]) > 2
    return found


def test_versions_do_not_depend_on_the_hosts_of_a_learner_rule_32(
    tmp_path: Path, one_host: Result
) -> None:
    with job(tmp_path) as learner:
        assert finished(learner) == one_host


@pytest.mark.long
@pytest.mark.parametrize("wire", [wire for wire in Wire if wire is not WIRE])
def test_versions_do_not_depend_on_the_hosts_of_a_learner_on_any_wire_rule_32(
    tmp_path: Path, wire: Wire
) -> None:
    with job(tmp_path / "several", wire) as learner:
        assert finished(learner) == alone(tmp_path / "one", wire)


# ------------------------------------------------------------ captures and boundaries


def test_a_capture_that_one_host_has_lost_is_lost_for_all_and_made_again_rule_33(
    tmp_path: Path,
) -> None:
    """Without overlap step() waits, so that the next capture is of the same step."""
    lost: list[Key] = []

    def overwrite(learner: PlayedLearner, key: Key) -> None:
        """The last host is quick: it captures again before its part is formed."""
        if key not in lost:
            lost.append(key)
            learner.owners[-1].memory.turn(*key)

    with job(tmp_path / "several", overlap=0, on_capture=overwrite) as learner:
        assert finished(learner) == alone(tmp_path / "one", WIRE, overlap=0)
    assert len(lost) == 2


def test_an_offer_waits_for_the_host_whose_boundary_is_late(
    tmp_path: Path, one_host: Result
) -> None:
    waited: list[int] = []

    def late(learner: PlayedLearner, key: Key) -> None:
        learner.owners[-1].silent = True

    def at_last(learner: PlayedLearner) -> None:
        last = learner.owners[-1]
        if last.silent:
            waited.append(learner.steps)
            last.silent = False
            last.report()

    with job(tmp_path, on_capture=late, on_idle=at_last, hosts=2) as learner:
        assert finished(learner) == one_host
    assert waited  # nothing came before it had reported


# ------------------------------------------------------------ losses


def lost_in_training(learner: PlayedLearner, host: int, sign: signal.Signals) -> None:
    """A signal to one host's process once something is merged: the learner ends with 75."""
    learner.begin()
    learner.train(lambda: bool(commits(learner.folder)))
    learner.owners[host].process.send_signal(sign)
    learner.train(lambda: False)
    assert learner.failed is not None
    assert learner.failed.exit_code == ExitCode.TRY_AGAIN


def others_end(learner: PlayedLearner, *lost: int) -> None:
    """The other lane processes end by themselves; the head's transport stays for the last words."""
    for number, owner in enumerate(learner.owners):
        if number and number not in lost:
            assert owner.process.wait(SECONDS_MAX) == ExitCode.TRY_AGAIN
    assert learner.head.process.poll() is None


def nothing_is_merged_in_part(learner: PlayedLearner, one_host: Result) -> None:
    merged = commits(learner.folder)
    assert merged
    assert merged == one_host[0][: len(merged)]


@pytest.mark.parametrize(
    ("host", "sign", "reason"),
    [
        (1, signal.SIGKILL, "the lane process of lanes 2 .. 3 has ended"),
        (2, signal.SIGSTOP, f"lanes 4 .. 5 has said nothing for {SILENCE_SECONDS:g} s"),
    ],
)
def test_a_lane_process_that_is_lost_ends_the_learner_rule_30(
    host: int, sign: signal.Signals, reason: str, tmp_path: Path, one_host: Result
) -> None:
    with job(tmp_path, silence_seconds=SILENCE_SECONDS) as learner:
        lost_in_training(learner, host, sign)
        assert learner.failed is not None
        assert reason in learner.failed.reason
        others_end(learner, host)
        nothing_is_merged_in_part(learner, one_host)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_lane_processes_that_have_lost_their_head_end_rule_30(
    tmp_path: Path, sign: signal.Signals
) -> None:
    with job(tmp_path, silence_seconds=SILENCE_SECONDS) as learner:
        learner.begin()
        learner.train(lambda: learner.started)
        learner.head.process.send_signal(sign)
        for owner in learner.owners[1:]:
            assert owner.process.wait(SECONDS_MAX) == ExitCode.TRY_AGAIN


def test_a_process_with_another_secret_is_turned_away_and_the_right_one_still_comes(
    tmp_path: Path,
) -> None:
    with job(tmp_path, hosts=2) as learner:
        learner.begin(others=False)
        stranger = learner.start_host(1, secret="another")
        assert stranger.process.wait(SECONDS_MAX) == ExitCode.TRY_AGAIN
        assert "it has another secret" in turned_away(learner.head)
        learner.owners.remove(stranger)
        stranger.link.close()
        assert not learner.head.link.received  # it has dialled nobody
        learner.start_host(1)
        learner.train(lambda: learner.started)
        assert learner.started


def turned_away(head: Host) -> str:
    return str([line["reason"] for line in head.lines() if "turned away" in line["event"]])


# ------------------------------------------------------------ sessions


def test_all_lanes_of_a_session_end_with_it_and_the_next_one_goes_on_rule_34(
    tmp_path: Path, one_host: Result
) -> None:
    """The shard is killed, and started again with what it has stored."""
    port, health, metrics = free_ports(3)
    run, endpoint = run_file(WIRE, overlap=1), f"127.0.0.1:{port}"
    ports = ("--health-port", str(health), "--metrics-port", str(metrics))
    command = shard_command(tmp_path, endpoint, *ports, run_file=run)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    serving = subprocess.Popen(command, env=environment)
    try:
        with played(run=run, endpoint=endpoint, folder=tmp_path, hosts=2, lanes=2) as learner:
            learner.begin()
            learner.train(lambda: bool(commits(tmp_path)))
            serving.kill()
            serving.wait(SECONDS_MAX)
            serving = subprocess.Popen(command, env=environment)
            assert to_the_end(learner) == one_host
            for owner in learner.owners:
                closed = [line for line in owner.lines() if line["event"] == "lanes closed"]
                assert len(closed) == 2, closed
    finally:
        serving.kill()
        serving.wait(SECONDS_MAX)


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_learner_whose_leave_is_slower_than_its_bulk_streams_has_left_rule_24(
    tmp_path: Path, hosts: int
) -> None:
    """Its control stream and its lanes are on connections of their own."""
    run = run_file(WIRE, overlap=1)
    with (
        shard(tmp_path, run_file=run) as served,
        relay(served.endpoint) as way,
        played(
            run=run, endpoint=way.endpoint, folder=tmp_path, hosts=hosts, lanes=LANES
        ) as learner,
    ):
        learner.begin()
        learner.train(lambda: bool(commits(tmp_path)))
        assert len(way.connections) == 1 + hosts * LANES
        way.hold_seconds = HOLD_SECONDS
        assert learner.leave() == [0] * hosts
        assert [slot.state for slot in served.status.slots] == [pb.SLOT_LEFT]
