"""Balanced tensor fragmentation (2604.21428; docs/algorithm.md)."""

from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.job.layout import TensorSpec, build_layout


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[TensorSpec], int, int]:
    fragments, shards = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    least = fragments * shards
    sizes = draw(st.lists(st.integers(1, 60), min_size=least, max_size=max(least, 8)))
    mean = [draw(st.booleans()) for _ in sizes]
    model = [
        TensorSpec(
            name=f"t{number}",
            shape=(size, draw(st.integers(1, 3))) if cut else (size,),
            dtype="float32",
            merge="mean" if cut else "rda",
        )
        for number, (size, cut) in enumerate(zip(sizes, mean, strict=True))
    ]
    return model, fragments, shards


def best_peak(sizes: list[int], bins: int, each: int) -> int:
    """Smallest possible largest bin of whole tensors, at least `each` in a bin: by trying all."""
    best = sum(sizes)
    loads, counts = [0] * bins, [0] * bins
    sizes = sorted(sizes, reverse=True)

    def place(index: int) -> None:
        nonlocal best
        if max(loads) >= best or sum(max(0, each - n) for n in counts) > len(sizes) - index:
            return
        if index == len(sizes):
            best = max(loads)
            return
        for number in {(loads[b], counts[b]): b for b in range(bins)}.values():
            loads[number] += sizes[index]
            counts[number] += 1
            place(index + 1)
            loads[number] -= sizes[index]
            counts[number] -= 1

    place(0)
    return best


@given(cases())
def test_the_peak_is_at_most_four_thirds_of_the_best_layout_of_whole_tensors(
    case: tuple[list[TensorSpec], int, int],
) -> None:
    """Largest first into the smallest so far: Graham's bound of 4/3 - 1/(3P)."""
    model, fragments, shards = case
    layout = build_layout(model, fragments, shards)
    peak = max(
        sum(layout.slice(shard, fragment).element_count for shard in range(shards))
        for fragment in range(fragments)
    )
    best = best_peak([tensor.element_count for tensor in model], fragments, shards)
    assert 3 * peak <= 4 * best


def test_a_large_embedding_is_cut_by_rows_instead_of_setting_the_peak() -> None:
    """A large embedding alone can be twice N/P."""
    embedding = TensorSpec(name="e", shape=(1000, 8), dtype="float32", merge="mean")
    others = [
        TensorSpec(name=f"w{i}", shape=(40, 10), dtype="float32", merge="rda") for i in range(20)
    ]
    layout = build_layout([embedding, *others], 8, 1)
    assert max(owned.element_count for owned in layout.slices) <= 1.05 * 16_000 / 8
