"""The companion over a real wire: in parts, through a restart of the registrar, to an export."""

import asyncio
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.companion import METADATA, TENSOR, ExportTable, part_bytes, part_count
from atoll_protos.transfer.frames import Kind, encode_frame, transfer_frames
from atoll_syncer.edges.exporting import ExportError, ShardAddresses, take
from wire.raw_peer import RUN_FILE, SECONDS_MAX, SEED, Peer, peer, shard, until

KEPT = {f"{TENSOR}frozen": torch.arange(5 << 20, dtype=torch.float32)}  # 20 MiB: two parts
TABLE = ExportTable(
    keys={"a.weight": "a", "tied.weight": "a", "b.weight": "b"}, absent={"x": "is odd"}
)


def companion() -> bytes:
    return safetensors.torch.save(KEPT, {METADATA: TABLE.to_json()})


def part(data: bytes, number: int) -> list[bytes]:
    """One part, as frames."""
    start = sum(part_bytes(len(data), before) for before in range(number))
    payload = data[start : start + part_bytes(len(data), number)]
    head = pb.Companion(part=number, companion_bytes=len(data))
    transfer = pb.Transfer(companion=head, byte_count=len(payload))
    return list(transfer_frames(10 + number, transfer, payload))


async def seeded(one: Peer) -> None:
    """Join as a learner that has a companion, and give version 0."""
    answer = await one.join(has_companion=True, frozen_digest="frozen")
    if answer.welcome.needs_model:
        await one.call.write(pb.ToShard(model=one.layout.to_model()))
    await one.until("send_seed")
    for fragment in range(one.layout.fragments):
        await one.send(one.frames(fragment))
    assert not (await one.until("send_companion")).changed


def test_a_companion_that_a_restart_cuts_off_is_asked_for_again_and_reaches_an_export(
    tmp_path: Path,
) -> None:
    data = companion()
    assert part_count(len(data)) == 2

    async def first(endpoint: str) -> None:
        async with peer(endpoint, "here-0") as one:
            await seeded(one)
            with pytest.raises(ExportError, match="nowhere:1"):
                await take(RUN_FILE, ShardAddresses(("nowhere:1",)), tmp_path / "none")
            await one.send(part(data, 0))
            await until(lambda: stored(tmp_path) == one.layout.fragments + 1)

    async def second(endpoint: str) -> None:
        async with peer(endpoint, "here-0") as one:
            await one.join(has_companion=True, frozen_digest="frozen")
            assert not (await one.until("send_companion")).changed
            for number in (0, 1):
                await one.send(part(data, number))
            await until(lambda: '"companion"' in (tmp_path / "tape.jsonl").read_text())
            assert await take(RUN_FILE, ShardAddresses((endpoint,)), tmp_path / "model") >= 0
            async with peer(endpoint, "here-1") as other:
                answer = await other.join(frozen_digest="another")
                assert answer.end.code == pb.OTHER_FROZEN
                assert "frozen" in answer.end.reason

    with shard(tmp_path) as process:
        asyncio.run(asyncio.wait_for(first(process.endpoint), SECONDS_MAX))
    with shard(tmp_path) as process:
        asyncio.run(asyncio.wait_for(second(process.endpoint), SECONDS_MAX))
    found = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert found.keys() == {*TABLE.keys, "frozen"}
    assert torch.equal(found["frozen"], KEPT[f"{TENSOR}frozen"])
    assert torch.equal(found["tied.weight"], torch.full((64, 32), SEED))
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["absent"] == {"x": "is odd"}
    left = [each.name for each in tmp_path.iterdir() if ".tmp" in each.name or each.name == "none"]
    assert left == []


@pytest.mark.parametrize("byte_count", [(1 << 40) + 1, 7])
def test_a_part_of_another_size_than_the_first_head_says_ends_the_session(
    tmp_path: Path, byte_count: int
) -> None:
    async def run(endpoint: str) -> pb.End:
        async with peer(endpoint, "here-0") as one:
            await seeded(one)
            head = pb.Companion(part=0, companion_bytes=len(companion()))
            transfer = pb.Transfer(companion=head, byte_count=byte_count)
            await one.send([encode_frame(Kind.HEAD, 1, 0, transfer.SerializeToString())])
            end: pb.End = await one.until("end")
            return end

    with shard(tmp_path) as process:
        end = asyncio.run(asyncio.wait_for(run(process.endpoint), SECONDS_MAX))
    assert end.code == pb.BAD_TRANSFER
    assert "part 0 of a companion has" in end.reason


def stored(folder: Path) -> int:
    """How many objects the store has."""
    return len(list((folder / "store" / "objects").iterdir()))
