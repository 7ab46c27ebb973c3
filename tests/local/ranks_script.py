"""Four ranks that move the values of models between them, and compare every bit.

    python ranks_script.py FOLDER

The ranks are forks of this process, so that torch is imported once. One line of FOLDER/RANK.jsonl
says of every check how it went on that rank: its name, and a traceback or nothing.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from safetensors.torch import load
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from atoll_protos.companion import TENSOR
from atoll_protos.errors import SpecError
from atoll_protos.layout import AVERAGE, Layout, Slice, build_layout
from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_protos.parts import part_edges
from atoll_worker.ranks.boxes import check_module, reshard, sharded_modules
from atoll_worker.ranks.exchange import Exchange, open_exchange
from atoll_worker.ranks.reading import reading
from atoll_worker.ranks.states import gather, share
from atoll_worker.ranks.together import together
from atoll_worker.training.companion import companion_of, lend
from atoll_worker.training.naming import cleaner
from atoll_worker.training.parameters import Place, travelling, travelling_of
from atoll_worker.training.staging import DirectStaging, assign
from atoll_worker.training.undone import Watch
from atoll_worker.training.unshared import STEPS_BETWEEN, unshared_of
from local import ranks_models as models
from local.forked import to_their_end
from local.ranks_models import Case
from unit.worker.masters import SgdWithMasters

RANKS = 4
SECONDS_MAX = 60.0  # of a collective in which a rank is missing
FRAGMENTS = 3

Full = Mapping[str, Tensor]


def places_of(case: Case) -> list[Place]:
    """All tensors of this rank that travel."""
    assert case.model is not None
    return [place for part in case.parts or (case.model,) for place in travelling(part)]


def full_of(places: list[Place], group: dist.ProcessGroup) -> Full:
    """Every tensor as torch itself puts it together; of buffers that of the lowest rank."""
    mine = {}
    for place in places:
        tensor = place.tensor
        mine[place.spec.name] = (
            tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
        )
    everybody: list[Full] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everybody, mine, group=group)
    return {name: full for said in reversed(everybody) for name, full in said.items()}


def flat(full: Full, layout: Layout, owned: Slice) -> Tensor:
    """The values of a slice in canonical order, f32."""
    pieces = [
        full[layout.tensors[each.tensor].name].flatten()[each.start : each.stop].float()
        for each in owned.pieces
    ]
    return torch.cat(pieces)


def part_of(values: Tensor, owned: Slice, exchange: Exchange) -> Tensor | None:
    """What this rank owns of them."""
    if exchange.rank not in exchange.owners:
        return None
    edges = list(pairwise(part_edges(owned.form, len(exchange.owners))))
    start, stop = edges[exchange.owners.index(exchange.rank)]
    return values[start:stop]


def check_both_ways(case: Case, owners: tuple[int, ...], blend: float = 0.0) -> None:
    """Captured and adopted values are those of full_tensor, on every rank."""
    group = models.group_of(case.ranks)
    if case.model is None:
        return
    places = places_of(case)
    exchange = open_exchange(
        case.parts or (case.model,), places, group=group, control=group, owners=owners
    )
    layout = build_layout(exchange.table.specs, FRAGMENTS, 1)
    before = full_of(places, group)
    after = {}
    for tensor in layout.tensors:
        torch.manual_seed(len(tensor.name))
        value = before[tensor.name]
        after[tensor.name] = torch.randn(tensor.shape)
        assert sorted(before) == [each.name for each in layout.tensors]
        assert tuple(value.shape) == tensor.shape
    for owned in layout.slices:
        found = exchange.gather(owned)
        want = part_of(flat(before, layout, owned), owned, exchange)
        assert (found is None) == (want is None)
        assert found is None or want is None or torch.equal(found, want), owned
    for owned in layout.slices:
        values = part_of(flat(after, layout, owned), owned, exchange)
        pairs, averaged = exchange.deal(owned, values)
        assert len(pairs) == len(averaged)
        assert any(averaged) <= bool(owned.form.exact)
        assign(pairs, blend)
        exchange.written()
    now = full_of(places, group)
    for name, value in now.items():
        wanted = before[name].clone()
        assign([(wanted, after[name])], blend)
        assert torch.equal(value, wanted), name
    for place in places:  # floating buffers are equal on every rank from now on
        if place.spec.merge == AVERAGE and not blend:
            assert torch.equal(place.tensor, now[place.spec.name]), place.spec.name
    for owned in layout.slices:
        found = exchange.gather(owned)
        want = part_of(flat(now, layout, owned), owned, exchange)
        assert found is None or want is None or torch.equal(found, want), owned


def head_only(make: Callable[[], Case]) -> Callable[[], None]:
    """A check of what the head alone gets and gives."""
    return lambda: check_both_ways(make(), (0,))


def check_what_is_written_after_an_evaluation() -> None:
    """Parameters that a forward has left whole are shards again, and the next forward sees them."""
    case = models.fully_sharded(2)
    group = models.group_of(case.ranks)
    if case.model is None:
        return
    assert case.inputs is not None
    model, inputs = case.model.eval(), case.inputs
    with torch.no_grad():
        model(inputs)
    left_whole = [name for name, each in model.named_parameters() if not isinstance(each, DTensor)]
    assert "scale" in left_whole
    reshard(sharded_modules([model]))
    places = places_of(case)
    exchange = open_exchange([model], places, group=group, control=group)
    layout = build_layout(exchange.table.specs, 1, 1)
    (owned,) = layout.slices
    with torch.no_grad():
        model(inputs)
    pairs, _ = exchange.deal(owned, exchange.gather(owned))
    with torch.no_grad():
        model(inputs)
    pairs, _ = exchange.deal(owned, _zeros(exchange, owned))
    assign(pairs, 0.0)
    with torch.no_grad():
        assert not model(inputs).any()


def check_companion(parts: Sequence[nn.Module]) -> None:
    """It has the bytes of the same model in one process, first and after training."""
    whole = models.seeded(models.Exported)
    places = travelling_of(parts)
    with tempfile.TemporaryFile() as ours, tempfile.TemporaryFile() as wanted:
        with reading(None, parts, cleaner) as reader:
            if reader.is_head:
                mine = companion_of(parts, places, (), reader)
            else:
                lend(parts, places, reader)
        with reading(None, parts, cleaner) as reader:
            if reader.is_head:
                mine.write(ours.fileno(), 0, changed=False, reader=reader)
                alone = companion_of([whole], travelling(whole))
                alone.write(wanted.fileno(), 0, changed=False)
                assert mine.frozen_digest == alone.frozen_digest
                assert not mine.warning
                assert tensors_in(ours) == tensors_in(wanted)
            else:
                lend(parts, places, reader)
        change([whole])
        change(parts)
        with reading(None, parts, cleaner) as reader:
            if reader.is_head:
                count = mine.write(ours.fileno(), 0, changed=True, reader=reader)
                ours.truncate(count)
                wanted.truncate(alone.write(wanted.fileno(), 0, changed=True))
                assert tensors_in(ours) == tensors_in(wanted)
                assert f"{TENSOR}base.weight" in tensors_in(ours)
            else:
                lend(parts, places, reader)


def tensors_in(file: IO[bytes]) -> dict[str, Any]:
    """All that a companion says; the order of its tensors does not matter."""
    file.seek(0)
    data = file.read()
    count = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + count])
    (table,) = found.pop("__metadata__").values()
    tensors = {name: each.tolist() for name, each in load(data).items()}
    return {"table": json.loads(table), **tensors}


def change(parts: Sequence[nn.Module]) -> None:
    """What training may change of what does not travel."""
    for part in parts:
        for name, buffer in part.named_buffers():
            if name == "mixed.norm.num_batches_tracked":
                buffer.add_(3)
        for name, parameter in part.named_parameters():
            if name == "base.weight":
                with torch.no_grad():
                    parameter.mul_(2)


def check_the_companion_of_a_model_that_is_cut() -> None:
    """FSDP2 on all ranks."""
    case = models.fully_sharded(4, models.Exported)
    assert case.model is not None
    check_companion([case.model])


def check_the_companion_of_a_pipeline() -> None:
    """The head has but one stage, and the other one is cut over ranks that the head is not of."""
    stages = (("tied",), ("mixed", "base"))
    meshes = models.mesh((0, 1)), models.mesh((2, 3))
    stage = dist.get_rank() // 2
    whole = models.seeded(models.Exported)
    parts = [nn.ModuleDict({name: getattr(whole, name)}) for name in stages[stage]]
    for name in stages[stage]:
        fully_shard(getattr(whole, name), mesh=meshes[stage])
    check_companion(parts)


def check_one_rank_that_has_cut_a_tensor() -> None:
    """All ranks say so, before the head reads."""
    over = models.mesh((0, 1, 2, 3))
    model = nn.Linear(4, 4).requires_grad_(False)
    cut = distribute_tensor(model.weight.data, over, [Shard(0)])
    if dist.get_rank() == 1:
        model.weight = nn.Parameter(cut, requires_grad=False)

    def read() -> None:
        with reading(None, [model], cleaner) as reader:
            lend([model], (), reader)
            raise AssertionError("the ranks do not agree")

    error = refused(read)
    assert (error.field, "ranks 0 and 1" in error.problem) == ("model.weight", True)


def _zeros(exchange: Exchange, owned: Slice) -> Tensor | None:
    values = exchange.empty(owned)
    return None if values is None else values.zero_()


def refused(make: Callable[[], object]) -> SpecError:
    """The error that this rank gets."""
    try:
        make()
    except SpecError as error:
        return error
    raise AssertionError("it was not refused")


def check_ranks_that_disagree() -> None:
    """A plain tensor that is larger on one rank."""
    model = nn.Linear(3, 4 if dist.get_rank() == 2 else 3)
    error = refused(lambda: open_exchange([model], travelling(model), group=None, control=None))
    assert error.field == "model.bias"
    assert "shape: (3,) on rank 0, (4,) on 2" in error.problem


def check_a_partial_sum() -> None:
    """It is refused on every rank, though only two have it."""
    over = models.mesh((0, 1))
    model = nn.Linear(3, 3)
    if dist.get_rank() < 2:
        partial = DTensor.from_local(torch.ones(3), over, [Partial()], run_check=False)
        model.bias = nn.Parameter(partial)
    error = refused(lambda: open_exchange([model], travelling(model), group=None, control=None))
    assert error.field == "model.bias"
    assert error.problem.startswith("rank 0: is a partial sum (P(sum)"), error


def check_a_shard_that_has_no_box() -> None:
    """Its local tensor is larger than the placement says."""
    over = models.mesh((0, 1, 2, 3))
    model = nn.Linear(3, 3)
    model.bias = nn.Parameter(models.misplaced(over))
    error = refused(lambda: open_exchange([model], travelling(model), group=None, control=None))
    assert (error.field, "has a shard of shape (2,)" in error.problem) == ("model.bias", True)


def check_one_name_twice() -> None:
    """Two stages of a pipeline on one rank whose names were not kept."""
    parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
    places = [place for part in parts for place in travelling(part)]
    error = refused(lambda: open_exchange(parts, places, group=None, control=None))
    assert error.field == "model.bias"
    assert error.problem == "two tensors of this rank have this name"


def check_flat_parameters() -> None:
    """FSDP1, by the name of its module."""
    model = nn.Sequential(nn.Linear(2, 2))
    cpu = torch.device("cpu")
    model[0] = FullyShardedDataParallel(model[0], use_orig_params=True, device_id=cpu)
    error = refused(lambda: check_module(model))
    assert error.field == "model.0"
    assert "FSDP1" in error.problem
    fully_shard(sound := nn.Sequential(nn.Linear(2, 2)), mesh=models.mesh((0, 1, 2, 3)))
    check_module(sound)


def check_what_is_said_together() -> None:
    """Values come by rank; one refusal is everybody's, and says whose it is."""
    assert together(None, dist.get_rank) == [0, 1, 2, 3]

    def only_two() -> None:
        if dist.get_rank() >= 2:
            raise SpecError("tensor", f"is odd on {dist.get_rank()}", "mend it")

    error = refused(lambda: together(None, only_two))
    assert str(error) == "tensor: rank 2: is odd on 2; mend it"

    def all_alike() -> None:
        raise SpecError("tensor", "is odd", "mend it")

    assert str(refused(lambda: together(None, all_alike))) == "tensor: is odd; mend it"


def check_what_steps_undo() -> None:
    """Of a model that is cut the head finds masters as well, and accuses nobody else."""
    over = models.mesh((0, 1, 2, 3))
    for kind, accused in ((torch.optim.AdamW, False), (SgdWithMasters, True)):
        model = models.seeded(lambda: nn.Linear(64, 16, bias=False))
        fully_shard(model, mesh=over)
        optimizer = kind(model.parameters(), lr=1e-3)
        places = travelling(model)
        exchange = open_exchange([model], places, group=None, control=None)
        (owned,) = build_layout(exchange.table.specs, 1, 1).slices
        watch = Watch(staging=DirectStaging())
        watch.begin()
        error = ""
        for round_number in range(8):
            values = exchange.gather(owned)
            if values is not None:
                values += torch.randn(values.shape, generator=models.drawn(round_number)) / 20
            pairs, averaged = exchange.deal(owned, values)
            sample = watch.before(pairs, averaged)
            assign(pairs, 0.0)
            assert sample is not None or watch.over
            if sample:
                watch.after(sample)
            for _ in range(2):
                model(torch.ones(2, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                try:
                    assert not watch.judge()
                except SpecError as refusal:
                    error = refusal.problem
        watch.end()
        assert bool(error) == accused, (kind, error)
        assert not accused or error.startswith("SgdWithMasters keeps copies"), error


def check_what_is_unfrozen_later() -> None:
    """It is named where FSDP2 has the parameters in its hands, and nothing else is."""
    over = models.mesh((0, 1, 2, 3))
    model = models.seeded(models.Mixed)
    fully_shard(model.up, mesh=over)
    fully_shard(model, mesh=over)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    looks = unshared_of([model], travelling(model), [optimizer])
    looks.steps = STEPS_BETWEEN - 1
    with torch.no_grad():
        model(torch.arange(8))
    assert not isinstance(model.scale, DTensor)  # it is whole now
    assert looks.step_made() == ""
    reshard(sharded_modules([model]))
    model.frozen.requires_grad_(True)
    looks.steps = STEPS_BETWEEN - 1
    assert "only, neither merged nor exported: frozen.weight, frozen.bias;" in looks.step_made()


def check_states() -> None:
    """Every rank gets its own back; together they are at most 1 MiB; equal ones count once."""
    rank, most = dist.get_rank(), DATA_STATE_BYTES_MAX
    of_ranks: list[tuple[bytes | None, ...]] = [
        (None, None, None, None),
        (b"one", None, None, None),
        (b"one", b"one", b"two", b"two"),
        (None, b"", b"three", b"four"),
        (b"x" * most,) * RANKS,
    ]
    for given in of_ranks:
        kept = gather(None, given[rank])
        assert rank == 0 or kept is None
        everybody: list[bytes | None] = [kept]
        dist.broadcast_object_list(everybody, 0)
        alone = set(given[1:]) <= {None, given[0]}
        assert share(everybody[0], rank, RANKS) == (given[0 if alone else rank], "")
    large = bytes([rank % 2]) * (most // 2)
    error = refused(lambda: gather(None, large))
    assert error.field == "state"
    assert error.problem.startswith("the states of 4 ranks have")


def bfloat16() -> models.Mixed:
    """Matrices in bf16, norms in f32."""
    return models.Mixed(torch.bfloat16)


CHECKS: Mapping[str, Callable[[], None]] = {
    "DDP on 2 ranks": head_only(lambda: models.replicated(2)),
    "DDP on 4 ranks, owners 0 and 2": lambda: check_both_ways(models.replicated(4), (0, 2)),
    "FSDP2 on 2 ranks": head_only(lambda: models.fully_sharded(2)),
    "FSDP2 on 3 ranks": head_only(lambda: models.fully_sharded(3)),
    "FSDP2 on 4 ranks": head_only(lambda: models.fully_sharded(4)),
    "FSDP2 on 4 ranks, owners 3, 0 and 1": lambda: check_both_ways(
        models.fully_sharded(4), (3, 0, 1)
    ),
    "FSDP2 on 3 ranks, blended": lambda: check_both_ways(models.fully_sharded(3), (0,), 0.5),
    "FSDP2 in bf16": head_only(lambda: models.fully_sharded(2, bfloat16)),
    "FSDP2 of a tied embedding": head_only(lambda: models.fully_sharded(2, models.Tied)),
    "FSDP2 by columns": head_only(models.sharded_by_columns),
    "HSDP on 2 x 2 ranks": head_only(models.hybrid),
    "HSDP on 2 x 2 ranks, owners 0 and 2": lambda: check_both_ways(models.hybrid(), (0, 2)),
    "TP on 2 ranks": head_only(lambda: models.tensor_parallel(8)),
    "TP on 2 ranks, uneven": head_only(lambda: models.tensor_parallel(7)),
    "FSDP2 x TP on 2 x 2 ranks": head_only(lambda: models.sharded_and_tensor_parallel(8)),
    "FSDP2 x TP on 2 x 2 ranks, uneven": head_only(lambda: models.sharded_and_tensor_parallel(6)),
    "two stages of FSDP2, one in two parts": head_only(models.pipeline),
    "two stages, owners 1 and 3": lambda: check_both_ways(models.pipeline(), (1, 3)),
    "experts, each whole": head_only(lambda: models.expert_parallel(0)),
    "experts, by their rows": head_only(lambda: models.expert_parallel(1)),
    "experts, by their columns": head_only(lambda: models.expert_parallel(2)),
    "after an evaluation": check_what_is_written_after_an_evaluation,
    "the companion of a model that is cut": check_the_companion_of_a_model_that_is_cut,
    "the companion of a pipeline": check_the_companion_of_a_pipeline,
    "one rank that has cut a tensor is refused": check_one_rank_that_has_cut_a_tensor,
    "ranks that disagree are refused": check_ranks_that_disagree,
    "a partial sum is refused": check_a_partial_sum,
    "a shard without a box is refused": check_a_shard_that_has_no_box,
    "one name twice is refused": check_one_name_twice,
    "flat parameters are refused": check_flat_parameters,
    "masters that undo adoptions are found": check_what_steps_undo,
    "what is unfrozen later is named": check_what_is_unfrozen_later,
    "data states of ranks": check_states,
    "what is said together": check_what_is_said_together,
}


def be(rank: int, folder: Path) -> None:
    """All checks, one after another."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=SECONDS_MAX),
    )
    with (folder / f"{rank}.jsonl").open("w") as report:
        for name, check in CHECKS.items():
            trouble = ""
            try:
                check()
            except Exception:
                trouble = traceback.format_exc()
            report.write(json.dumps([name, trouble]) + "\n")
            report.flush()
            dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> int:
    """All ranks, to their end; 0 if all have ended well."""
    torch.set_num_threads(1)
    return to_their_end(RANKS, be, folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
