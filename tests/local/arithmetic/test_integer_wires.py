"""int2 up and int4 down through the whole program: every learner ends with the shards' bits.

The model has a norm with running statistics and a constant: both travel in f32 on these wires. So
does the last version of every slice, so that the model that people get is not rounded by the wire.
One learner has several connections to each shard, and its slices come in parts.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from atoll_protos.job.layout import Layout, build_layout
from atoll_protos.transfer.codecs import Wire, encoding_of
from atoll_worker.model.parameters import travelling
from atoll_worker.model.tensors import byte_view
from local.arithmetic.integer_wires_script import FRAGMENTS, PERIOD, Model
from local.command import commits, manifest, run_atoll, tapes

SHARDS, STEPS = 2, 80
SLOTS = ("one-0", "two-0")
LANES = {"name": "ATOLL_LANES", "value": "3"}  # of one of the two learners


def digests(state: dict[str, Tensor], layout: Layout) -> dict[tuple[int, int], str]:
    """(shard, slice) -> sha256 of its last version, which is f32; of slices of f32 tensors."""
    found = {}
    for owned in layout.slices:
        sha256 = hashlib.sha256()
        for piece in owned.pieces:
            name = layout.tensors[piece.tensor].name
            sha256.update(byte_view(state[name].flatten()[piece.start : piece.stop].float()))
        if all(layout.tensors[piece.tensor].dtype == "float32" for piece in owned.pieces):
            found[owned.shard, owned.fragment] = sha256.hexdigest()
    return found


def last_of(committed: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """(shard, slice) -> digest of its newest version."""
    newest = sorted(committed, key=lambda each: each["version"])
    return {(each["shard"], each["slice"]): each["digest"] for each in newest}


def test_learners_on_integer_wires_end_with_the_f32_values_that_the_shards_have_computed(
    tmp_path: Path,
) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    text = manifest(
        Path(__file__).with_name("integer_wires_script.py"),
        regions=["one", {"name": "two", "podOverrides": {"env": [LANES]}}],
        shards=SHARDS,
        steps=STEPS,
        sync={
            **{"fragments": FRAGMENTS, "period": PERIOD, "overlap": 2, "quorum": 2},
            "wire": {"up": "int2", "down": "int4"},
            "outer": {"learningRate": "0.7", "momentum": "0.5"},
        },
    )
    job.write_text(text)
    run_atoll(job, out)

    for log in (out / "logs").glob("shard-*.log"):
        assert '"lanes": 3' in log.read_text()

    specs = [place.spec for place in travelling(Model(seed=0))]
    layout = build_layout(specs, FRAGMENTS, SHARDS)
    committed = commits(out)
    assert len(committed) >= SHARDS * FRAGMENTS * (STEPS // PERIOD - 3)
    expected = last_of(committed)
    models = [load_file(next(out.rglob(f"{slot}.safetensors"))) for slot in SLOTS]
    for model in models:
        found = digests(model, layout)
        assert len(found) >= 2, "most slices have no bf16 tensor"
        assert found == {key: expected[key] for key in found}

    exported = load_file(out / "export" / "model.safetensors")
    constant = Model(seed=0).frequencies
    assert not torch.equal(constant, constant.bfloat16().float())
    for model in (*models, exported):
        assert torch.equal(model["frequencies"], constant)
    variance = exported["norm.running_var"]
    for name in ("norm.running_var", "hidden.weight", "embedding.weight"):
        assert not torch.equal(exported[name], exported[name].bfloat16().float()), name
    assert float(variance.min()) > 0
    assert not torch.equal(variance, torch.ones_like(variance))
    travelling_names = {tensor.name for tensor in layout.tensors}
    for name, tensor in exported.items():
        same = [torch.equal(model[name], tensor) for model in models]
        # a counter of batches does not travel: it is that of the learner that gave it first
        assert all(same) if name in travelling_names else any(same), name
    start = Model(seed=0).state_dict()
    moved = max((tensor - start[name]).abs().max() for name, tensor in exported.items())
    assert moved > 0.01

    assert bytes_down(out) < 0.75 * whole_values(layout, committed)


def bytes_down(out: Path) -> int:
    """What all shards have sent to learners, frames included."""
    newest: dict[int, int] = {}
    for shard, line in enumerate_tapes(out):
        newest[shard] = max(newest.get(shard, 0), line["bytes_down"])
    return sum(newest.values())


def enumerate_tapes(out: Path) -> list[tuple[int, dict[str, Any]]]:
    """Lines with the number of their shard; those before the first commit belong to it too."""
    shard, found = 0, []
    for line in tapes(out):
        shard = line.get("shard", shard)
        found.append((shard, line))
    return found


def whole_values(layout: Layout, committed: list[dict[str, Any]]) -> int:
    """What it would take to send every version whole."""
    forms = {(each.shard, each.fragment): each.form for each in layout.slices}
    encoding = encoding_of(Wire.BF16)
    sizes = (forms[each["shard"], each["slice"]].byte_count(encoding) for each in committed)
    return len(SLOTS) * sum(sizes)
