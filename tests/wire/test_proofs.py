"""Incarnations at a shard beside the registrar: what the registrar gave, and nothing else (5)."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import PROTOCOL
from wire.raw_peer import RUN_FILE, ShardUnderTest, peer, shard

TWO = dataclasses.replace(RUN_FILE, shards=2)


async def answer(served: ShardUnderTest, slot: str, instance: str, **fields: Any) -> pb.ToLearner:
    """What a shard answers a Join, once; the session ends with it."""
    join = pb.Join(
        protocol=PROTOCOL,
        run_hash=TWO.hash,
        layout_digest="of a model",
        slot=slot,
        uid=instance,
        instance=instance,
        **fields,
    )
    async with peer(served.endpoint, slot) as one:
        one.call = one.stub.Session()
        await one.call.write(pb.ToShard(join=join))
        return await one.next()


def test_who_names_another_slots_incarnation_does_not_lock_it_also_without_the_registrar(
    tmp_path: Path,
) -> None:
    folders = tmp_path / "0", tmp_path / "1"
    for folder in folders:
        folder.mkdir()

    async def joins(registrar: ShardUnderTest, other: ShardUnderTest) -> None:
        right = (await answer(registrar, "here-0", "right")).welcome
        liar = (await answer(registrar, "here-1", "liar")).welcome
        assert right.proof
        for false in ("", liar.proof, right.proof):
            refused = await answer(
                other, "here-0", "liar", run=liar.run, incarnation=9, proof=false
            )
            assert (refused.end.code, refused.end.retry) == (pb.NOT_READY, True), refused
        registrar.process.kill()
        registrar.process.wait()
        for slot, instance, given in (("here-0", "right", right), ("here-1", "liar", liar)):
            number, proof = given.incarnation, given.proof
            welcomed = await answer(
                other, slot, instance, run=given.run, incarnation=number, proof=proof
            )
            assert welcomed.welcome.incarnation == number, welcomed

    with shard(folders[0], run_file=TWO) as registrar:
        more = ("--shard", "1", "--endpoints", f"{registrar.endpoint},")
        with shard(folders[1], *more, run_file=TWO) as other:
            asyncio.run(joins(registrar, other))
