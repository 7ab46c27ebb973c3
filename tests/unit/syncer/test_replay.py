"""A tape and recorded offers give every commit again (rule 29)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Merge as MergeKind
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import Wire, encoding_of
from atoll_syncer.model.log import Participant, to_document
from atoll_syncer.model.slices import round_master
from atoll_syncer.numbers.arrivals import Arrived, encoded
from atoll_syncer.storage.tape import Tape
from unit.syncer.replay import Replay, ReplayError, from_tape
from unit.syncer.values_side import LAYOUT, SLOTS, WIRES, Bench, bits


def base_of(seed: Arrived, fragment: int) -> arrays.Base:
    """The base on a wire of 16 bits or fewer."""
    values = arrays.from_bytes(seed.values.data, pb.F32)
    base = arrays.empty_packed(pb.BF16, LAYOUT.slice(0, fragment).form)
    round_master(values, base)
    return base


@pytest.mark.parametrize("wire_up", WIRES)
@pytest.mark.parametrize("wire_down", [Wire.BF16, Wire.INT4])
@pytest.mark.parametrize("merge", list(MergeKind))
def test_a_tape_and_recorded_offers_give_every_commit_again(
    tmp_path: Path, wire_up: Wire, wire_down: Wire, merge: MergeKind
) -> None:
    """Rule 29."""
    sync = Sync(fragments=2, wire_up=wire_up, wire_down=wire_down, merge=merge)
    bench = Bench(tmp_path, sync)
    seeds = bench.seed()
    for capture in range(1, 6):
        bench.round(capture % 2, capture)
    for fragment in range(2):
        bench.commit(fragment, [bench.offer(fragment, slot, 9) for slot in SLOTS], last=True)
    bench.entries[-1] = replace(bench.entries[-1], last=False)  # the job has become longer
    bench.round(1, 10)
    replay = Replay(LAYOUT, 0, sync)

    def recorded(fragment: int, p: Participant) -> Arrived:
        head = pb.Transfer(offer=pb.Offer(slice=fragment), encoding=encoding_of(wire_up))
        data = bench.recorded[fragment, p.slot, p.incarnation, p.capture]
        return replay.values.examine(head, bytearray(data))

    assert replay.seed(seeds) == [base_of(seed, n).digest for n, seed in enumerate(seeds)]
    tape = Tape(tmp_path / "syncer" / "0.tape.jsonl", lambda: 0.0)
    tape.open()
    for entry in bench.entries:
        record = {**to_document(entry), "event": "commit", "version": entry.number}
        tape.write("run", {**record, "grace_seconds": 0.1})
    tape.close()
    for line in tape.path.read_text().splitlines():
        replay.commit(from_tape(json.loads(line)), recorded)
    assert bits(replay.values, 0) == bits(bench.values, 0)
    with pytest.raises(ReplayError, match="version"):
        replay.commit(replace(bench.entries[-1], digest="0"), recorded)


def test_a_version_that_was_taken_back_is_recomputed_as_well_rule_22(tmp_path: Path) -> None:
    sync = Sync(fragments=2)
    bench = Bench(tmp_path, sync)
    seeds = bench.seed()
    entry = bench.round(0, 1)
    replay = Replay(LAYOUT, 0, sync)
    replay.seed(seeds)
    base = base_of(seeds[0], 0)
    held = replace(seeds[0], values=encoded(bytearray(base.data), pb.BF16, base.form))
    taken_back = replace(entry, number=2, digest=base.digest, participants=(), recovered=True)
    replay.recover(taken_back, held)
    with pytest.raises(ReplayError, match="version 3"):
        replay.recover(replace(taken_back, number=3, digest="0"), held)
