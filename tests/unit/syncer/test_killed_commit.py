"""A shard's process is killed in the middle of commits; nothing committed is lost or changed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Entry, Participant, Seeded, TermBegun, from_document
from atoll_syncer.model.round import momentum
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.store import FileStore, Store
from atoll_syncer.storage.versions import Collector
from unit.syncer.log_side import a_commit, a_participant, a_seed
from unit.syncer.replay import Replay
from unit.syncer.values_side import restore

TESTS = Path(__file__).parents[2]

TICKS = 1000
SYNC = Sync(fragments=2, wire_up=Wire.INT8, wire_down=Wire.INT8)
LAYOUT = build_layout(
    [
        TensorSpec(name="embedding", shape=(500, 40), dtype="float32", merge="mean"),
        TensorSpec(name="weight", shape=(300, 100), dtype="float32", merge="rda"),
    ],
    fragments=2,
    shards=1,
)
SLOTS = ("a-0", "b-0", "b-1")


def offer(values: TensorValues, fragment: int, base: int, slot: str) -> Arrived:
    """The offer that this slot makes on this base, whichever process asks."""
    generator = np.random.default_rng(base * 100 + fragment * 10 + SLOTS.index(slot))
    count = LAYOUT.slice(0, fragment).element_count
    delta = generator.standard_normal(count, F32) * F32.type(0.01)
    head = pb.Transfer(offer=pb.Offer(slice=fragment, base=base), encoding=pb.INT8)
    return values.examine(head, bytearray(arrays.encode(delta, pb.INT8)))


def seed(values: TensorValues, fragment: int) -> Arrived:
    head = pb.Transfer(seed=pb.Seed(slice=fragment), encoding=pb.F32)
    count = LAYOUT.slice(0, fragment).element_count
    return values.examine(head, bytearray(np.linspace(-1, 1, count, dtype=F32)))


def serve(folder: Path) -> None:
    """What a shard's process does, without sessions: take over, seed or restore, commit."""
    store = FileStore(folder)
    store.open()
    journal = Journal(store, time.time)
    history = journal.read()
    values = TensorValues.allocate(LAYOUT, 0, SYNC)
    append(journal, history, TermBegun(epoch=history.epoch + 1, pod="p", instance="i"))
    assert restore(values, history, store) == {}
    collector = Collector(store)
    collector.note(history.live_objects())
    collector.sweep(history.live_objects(), history.epoch)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not history.heads:
        begin(values, store, journal, history)
    while True:
        commit(values, store, journal, history)
        collector.note(history.live_objects())
        collector.remove()
        sys.stdout.write("committed\n")
        sys.stdout.flush()


def commit(values: TensorValues, store: Store, journal: Journal, history: History) -> None:
    """The next version: each slot's offer on the newest one of the slice whose turn it is."""
    fragment = history.commits % LAYOUT.fragments
    base = history.heads[fragment].number
    participants = tuple(participant(slot, base) for slot in SLOTS)
    for p in participants:
        name = Stage(p.slot, p.incarnation, fragment, p.capture)
        values.stage(name, offer(values, fragment, base, p.slot))
    merges = history.heads[fragment].merges
    mu = momentum(SYNC, merges, TICKS)
    making = values.begin_merge(MergeOffers(fragment, participants, mu), "run", history.epoch)
    making.compute()
    outcome = making.write(store)
    entry = a_commit(
        outcome.number,
        outcome.slice,
        epoch=history.epoch,
        digest=outcome.digest,
        object=outcome.object,
        participants=participants,
        momentum=mu,
        merges=merges + 1,
    )
    append(journal, history, entry)
    values.committed(fragment)


def append(journal: Journal, history: History, entry: Entry) -> None:
    journal.append(entry)
    history.apply(entry)


def begin(values: TensorValues, store: Store, journal: Journal, history: History) -> None:
    """Version 0."""
    for fragment in range(LAYOUT.fragments):
        values.keep(1, fragment, seed(values, fragment))
    outcomes = []
    for making in values.begin_seed(StoreSeed(1), "run", history.epoch):
        making.compute()
        outcomes.append(making.write(store))
    seeded = a_seed(
        tuple(outcome.digest for outcome in outcomes),
        tuple(outcome.object for outcome in outcomes),
        tensors=(),
        layout_digest=LAYOUT.digest,
        epoch=history.epoch,
    )
    append(journal, history, seeded)
    for fragment in range(LAYOUT.fragments):
        values.committed(fragment)


def participant(slot: str, base: int) -> Participant:
    weight = 2500.0 + len(slot) * SLOTS.index(slot)
    return a_participant(slot, 4, base=base, steps=4, tokens=100, cursor=base, weight=weight)


def test_a_killed_shard_goes_on_from_its_last_commit_to_the_bit(tmp_path: Path) -> None:
    """Promise 2; rules 19, 20, 29: the log replayed elsewhere gives the restored bits."""
    dice = random.Random(11)
    command = [sys.executable, "-m", "unit.syncer.test_killed_commit", str(tmp_path)]
    with subprocess.Popen(
        command, text=True, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shards:
        assert shards.stdin is not None
        assert shards.stdout is not None
        for _ in range(5):
            shards.stdin.write("start\n")
            shards.stdin.flush()
            pid = int(shards.stdout.readline())
            assert shards.stdout.readline() == "ready\n"
            for _ in range(dice.randint(2, 5)):
                assert shards.stdout.readline() == "committed\n"
            time.sleep(dice.uniform(0.0, 0.05))  # where the kill falls is the test
            os.kill(pid, signal.SIGKILL)
            while (line := shards.stdout.readline()) != "killed\n":
                assert line == "committed\n"
        shards.stdin.close()
    assert shards.returncode == 0
    store = FileStore(tmp_path)
    documents = [json.loads(store.read(name)) for name in store.names("log/")]
    log = [from_document(record) for each in documents for record in each["records"]]
    history = History.of(log)
    assert history.epoch == 5
    assert history.commits >= 10
    restored = TensorValues.allocate(LAYOUT, 0, SYNC)
    assert restore(restored, history, store) == {}

    replay = Replay(LAYOUT, 0, SYNC)
    digests = replay.seed(seed(replay.values, fragment) for fragment in range(LAYOUT.fragments))
    assert [entry.digests for entry in log if isinstance(entry, Seeded)] == [tuple(digests)]
    for entry in log:
        if isinstance(entry, Committed):
            replay.commit(entry, lambda f, p: offer(replay.values, f, p.base, p.slot))
    for fragment in range(LAYOUT.fragments):
        used = [e.momentum for e in log if isinstance(e, Committed) and e.slice == fragment]
        assert used == [momentum(SYNC, merges, TICKS) for merges in range(len(used))]
        ours, theirs = restored.slices[fragment], replay.values.slices[fragment]
        assert np.array_equal(ours.master, theirs.master)
        assert np.array_equal(ours.momentum, theirs.momentum)

    Collector(store).sweep(history.live_objects(), history.epoch + 1)
    assert set(store.names("objects/")) == history.live_objects()


def start_shards(folder: Path) -> None:
    """A shard for each line of standard input, as a fork of this process: libraries load once."""
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            sys.stdout.write(f"{os.getpid()}\n")
            serve(folder)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        sys.stdout.write("killed\n")
        sys.stdout.flush()


if __name__ == "__main__":
    start_shards(Path(sys.argv[1]))
