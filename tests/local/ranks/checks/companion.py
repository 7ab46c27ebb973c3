"""Checks of the companion of a model that is cut over ranks: it is that of one process."""

import json
import tempfile
from collections.abc import Sequence
from typing import IO, Any

import torch
import torch.distributed as dist
from safetensors.torch import load
from torch import nn
from torch.distributed.fsdp import fully_shard

from atoll_protos.job.companion import TENSOR
from atoll_worker.model.companion import companion_of, lend
from atoll_worker.model.naming import cleaner
from atoll_worker.model.parameters import travelling, travelling_of
from atoll_worker.ranks.whole_tensors import reading
from local.ranks import models


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


def check_the_companion_of_an_adapter_that_only_some_stages_have() -> None:
    """A stage without one is of the base, at the head and elsewhere: the export is the adapter."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - slow, and only this check's

    for adapted in (0, 2):
        model = nn.ModuleDict({f"stage{dist.get_rank()}": models.seeded(lambda: models.Wide(5))})
        model.requires_grad_(False)
        if dist.get_rank() == adapted:
            config = LoraConfig(r=2, target_modules=["up"])
            model = get_peft_model(model, config)
        places = travelling_of([model])
        assert bool(places) == (dist.get_rank() == adapted)
        with reading(None, [model], cleaner) as reader:
            if reader.is_head:
                made = companion_of([model], places, (), reader)
                assert list(made.files) == ["adapter_config.json"]
                assert not made.digests
            else:
                lend([model], places, reader)
        with reading(None, [model], cleaner) as reader, tempfile.TemporaryFile() as file:
            if not reader.is_head:
                lend([model], places, reader)
                continue
            made.write(file.fileno(), 0, changed=False, reader=reader)
            found = tensors_in(file)
        assert found["table"]["stem"] == "adapter_model"
        assert sorted(found["table"]["keys"]) == [
            f"base_model.model.stage{adapted}.up.lora_{each}.weight" for each in "AB"
        ]


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
