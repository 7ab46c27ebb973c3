"""The layout: a partition of the model that every process derives alike."""

import random
import re
import subprocess
import sys
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import (
    AVERAGE,
    TENSORS_MAX,
    Layout,
    TensorSpec,
    build_layout,
    fragments_that_fit,
    from_model,
)


def tensor(name: str, *shape: int, merge: str = "rda") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype="float32", merge=merge)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[TensorSpec], int, int]:
    """A model, and as many fragments and shards as it has tensors for."""
    names = draw(st.lists(st.text(min_size=1), min_size=1, max_size=12, unique=True))
    shapes = st.lists(st.integers(1, 40), max_size=3)
    kinds = st.sampled_from(["rda", "mean", "average"])
    model = [tensor(name, *draw(shapes), merge=draw(kinds)) for name in names]
    fragments = draw(st.integers(1, len(model)))
    return model, fragments, draw(st.integers(1, len(model) // fragments))


def gpt(layers: int, width: int, vocabulary: int) -> list[TensorSpec]:
    """A GPT's tensors with tied embeddings."""
    tensors = [tensor("wte", vocabulary, width, merge="mean"), tensor("wpe", 1024, width)]
    for layer in range(layers):
        for name, shape in {
            "attention": (3 * width, width), "projection": (width, width),
            "up": (4 * width, width), "down": (width, 4 * width),
            "norm1": (width,), "norm2": (width,), "bias": (4 * width,),
        }.items():  # fmt: skip
            tensors.append(tensor(f"h.{layer}.{name}", *shape))
    return tensors


GPT2 = gpt(layers=12, width=768, vocabulary=50257)


def fragment_sizes(layout: Layout) -> list[int]:
    return [
        sum(layout.slice(shard, fragment).element_count for shard in range(layout.shards))
        for fragment in range(layout.fragments)
    ]


def shard_sizes(layout: Layout) -> list[int]:
    return [
        sum(owned.element_count for owned in layout.shard_slices(shard))
        for shard in range(layout.shards)
    ]


@given(cases(), st.randoms(use_true_random=False))
def test_a_layout_covers_every_element_once_whatever_the_order_of_the_tensors(
    case: tuple[list[TensorSpec], int, int], order: random.Random
) -> None:
    model, fragments, shards = case
    layout = build_layout(model, fragments, shards)
    shuffled = list(model)
    order.shuffle(shuffled)
    assert build_layout(shuffled, fragments, shards) == layout
    assert build_layout(shuffled, fragments, shards).digest == layout.digest

    covered: dict[int, list[tuple[int, int]]] = {}
    for owned in layout.slices:
        assert layout.slice(owned.shard, owned.fragment) is owned
        assert owned in layout.shard_slices(owned.shard)
        offset = 0
        for piece in owned.pieces:
            assert piece.offset == offset, "pieces lie one after the other"
            offset += piece.element_count
            covered.setdefault(piece.tensor, []).append((piece.start, piece.stop))
            spec = layout.tensors[piece.tensor]
            assert piece.start % spec.row_elements == piece.stop % spec.row_elements == 0
        averaged = [layout.tensors[piece.tensor].merge == AVERAGE for piece in owned.pieces]
        assert averaged == sorted(averaged, reverse=True), "averaged buffers come first"
        counts = [piece.element_count for piece in owned.pieces]
        assert owned.form.exact == sum(
            n for n, first in zip(counts, averaged, strict=True) if first
        )
        assert owned.element_count == offset > 0
        assert len({piece.tensor for piece in owned.pieces}) == len(owned.pieces)
    assert sorted(covered) == list(range(len(model)))
    for number, runs in covered.items():
        stops = [stop for _, stop in sorted(runs)]
        assert [start for start, _ in sorted(runs)] == [0, *stops[:-1]]
        assert stops[-1] == layout.tensors[number].element_count


@given(cases())
def test_a_layout_survives_the_wire(case: tuple[list[TensorSpec], int, int]) -> None:
    model, fragments, shards = case
    layout = build_layout(model, fragments, shards)
    sent = pb.Model.FromString(layout.to_model().SerializeToString())
    assert from_model(sent, partial(build_layout, fragments=fragments, shards=shards)) == layout


def test_a_whole_tensor_is_one_piece_unless_it_has_rows_and_a_plain_mean() -> None:
    model = [tensor("rda", 64, 64), tensor("vector", 4096, merge="mean"), tensor("scalar")]
    pieces = [piece for owned in build_layout(model, 3, 1).slices for piece in owned.pieces]
    assert sorted((p.tensor, p.start, p.stop) for p in pieces) == [
        (0, 0, 4096), (1, 0, 1), (2, 0, 4096),
    ]  # fmt: skip


@pytest.mark.parametrize(("fragments", "shards"), [(24, 1), (24, 2), (24, 4), (12, 2), (24, 8)])
def test_fragments_and_shards_of_a_gpt_are_within_a_tenth_of_the_mean(
    fragments: int, shards: int
) -> None:
    layout = build_layout(GPT2, fragments, shards)
    total = sum(spec.element_count for spec in layout.tensors)
    assert max(fragment_sizes(layout)) <= 1.1 * total / fragments
    assert max(shard_sizes(layout)) <= 1.1 * total / shards
    runs = sum(len(owned.pieces) for owned in layout.slices)  # one of a tensor that was cut
    assert runs <= len(GPT2) + fragments * shards


@pytest.mark.parametrize(("fragments", "shards"), [(24, 8), (10_000, 1), (1_000, 10)])
def test_ten_thousand_tensors_are_laid_out_in_a_moment(fragments: int, shards: int) -> None:
    numbers = random.Random(7)
    model = [tensor(f"t{i}", numbers.randint(1, 999), numbers.randint(1, 999)) for i in range(9990)]
    model += [tensor(f"e{i}", 5000, 64, merge="mean") for i in range(10)]
    start = time.process_time()
    assert build_layout(model, fragments, shards).digest
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("names", "fragments", "words"),
    [
        (
            "ab",
            2,
            "sync.fragments: 2 fragments on 2 shards need 4 parts, the model has 2; "
            "use auto, which takes as many as fit, or fewer fragments or syncer.shards",
        ),
        *(
            ("a", n, "syncer.shards: 2 shards need 2 parts, the model has 1; use fewer syncer.sha")
            for n in (1, 2)
        ),
        ("", 1, "syncer.shards: 2 shards need 2 parts, the model has 0"),
        ("aa", 1, "model: two tensors have one name"),
    ],
)
def test_tables_that_cannot_be_laid_out_name_the_setting_and_the_remedy(
    names: str, fragments: int, words: str
) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(words)}"):
        build_layout([tensor(name, 8) for name in names], fragments, 2)


@given(cases(), st.integers(1, 40))
def test_the_number_that_fits_is_the_largest_that_a_layout_can_have(
    case: tuple[list[TensorSpec], int, int], most: int
) -> None:
    model, _, shards = case
    found = fragments_that_fit(model, shards, most)
    assert found == fragments_that_fit(list(reversed(model)), shards, most)
    assert 1 <= found <= most
    assert build_layout(model, found, shards).fragments == found
    for larger in range(found + 1, most + 1):
        with pytest.raises(SpecError, match=r"sync\.fragments"):
            build_layout(model, larger, shards)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"merge": "max"}, "tensor w: merge 'max'; use one of rda, mean, average"),
        ({"dtype": "int64"}, "tensor w: dtype int64 is unknown; use float32, bfloat16, float16"),
        ({"shape": (3, 0)}, "tensor w: has no elements; leave it out of the model"),
        ({"shape": (-3, -2)}, "tensor w: has no elements; leave it out of the model"),
    ],
)
def test_a_tensor_that_cannot_travel_is_refused(changed: dict[str, object], text: str) -> None:
    with pytest.raises(SpecError) as raised:
        TensorSpec(**{"name": "w", "shape": (2,), "dtype": "float32", "merge": "rda", **changed})  # type: ignore[arg-type]
    assert str(raised.value) == text


def test_a_received_table_that_is_too_long_or_whose_digest_differs_is_refused() -> None:
    lay_out = partial(build_layout, fragments=2, shards=1)
    sent = build_layout([tensor("a", 2), tensor("b", 3)], 2, 1).to_model()
    sent.tensors[0].shape[0] = 5
    with pytest.raises(SpecError, match="the layout digest differs"):
        from_model(sent, lay_out)
    with pytest.raises(SpecError, match="use at most 100000 tensors"):
        from_model(pb.Model(tensors=[pb.Tensor()] * (TENSORS_MAX + 1)), lay_out)


def test_the_digest_covers_all_that_must_be_equal() -> None:
    model = [tensor("a", 4, 4), tensor("b", 4), tensor("c", 2, 2), tensor("d", 1)]
    others = [
        build_layout(model, 2, 2),
        build_layout(model, 4, 1),
        build_layout(model, 1, 4),
        build_layout([tensor("a", 16), *model[1:]], 2, 2),
        build_layout([tensor("a", 4, 4, merge="mean"), *model[1:]], 2, 2),
        build_layout([tensor("z", 4, 4), *model[1:]], 2, 2),
    ]
    assert len({layout.digest for layout in others}) == len(others)


def test_the_digest_is_the_same_on_every_machine_and_for_ever() -> None:
    """A changed literal means that two releases lay one model out in two ways."""
    assert (
        build_layout(GPT2, 24, 2).digest
        == "1d51ddfea57c70751acea659f5c21e80446d3bb3ad6d4f5d12828b4bf9e8c167"
    )


def test_run_file_and_layout_need_no_torch() -> None:
    """The operator's image has none."""
    code = (
        "import sys, atoll_protos.job.run_file, atoll_protos.job.layout, "
        "atoll_protos.transfer.frames, atoll_protos.network.channels, "
        "atoll_protos.logs, atoll_protos.allocator; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
