"""Codecs, checksum and frames over `add_`, and numpy over torch, in the same run.

In tests/: python -m bench.codec
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from itertools import chain

from atoll_protos.allocator import tune

tune()  # before torch is imported: page faults come first

import torch  # noqa: E402
import xxhash  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_protos import arrays, codecs, tensors  # noqa: E402
from atoll_protos.arrays import Array  # noqa: E402
from atoll_protos.codecs import Form, Wire, encoding_of  # noqa: E402
from atoll_protos.frames import Assembler, transfer_frames  # noqa: E402
from bench.table import interleaved, show  # noqa: E402


def through_frames(payload: bytearray) -> None:
    """Cut a payload into frames and assemble them again: three copies and two checksums."""
    head = pb.Transfer(seed=pb.Seed(), encoding=pb.BF16, byte_count=len(payload))
    assembler = Assembler(lambda head: head.byte_count)
    arrived = [assembler.feed(frame) for frame in transfer_frames(1, head, payload)]
    assert arrived[-1] is not None


def offered(base: torch.Tensor, theta: torch.Tensor, encoding: pb.Encoding) -> bytearray:
    """An offer as torch makes it."""
    return tensors.encode(base.float() - theta, encoding)


def offered_by_numpy(base: arrays.Base, theta: Array, encoding: pb.Encoding) -> memoryview:
    """An offer as a transport process makes it."""
    return arrays.pack(arrays.difference(base, theta), encoding, base.form)


def moved(base: torch.Tensor, data: bytearray, encoding: pb.Encoding) -> torch.Tensor:
    """The next base from a difference, as torch makes it."""
    difference = tensors.decode(data, encoding, torch.empty(base.numel()))
    return difference.add_(base.float()).to(base.dtype)


def compare(count: int, rounds: int) -> None:
    """What a transport process computes, with numpy and with torch: a table of ratios."""
    theta, other, moves = torch.randn(count), torch.randn(count), torch.randn(count)
    base = other.bfloat16()
    base_array = arrays.packed(tensors.byte_view(base), pb.BF16, Form(0, count))
    theta_array = arrays.from_bytes(tensors.byte_view(theta), pb.F32)
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
    for wire in Wire:
        encoding = encoding_of(wire)
        data = tensors.encode(moves, encoding)
        pairs[f"{wire} offer"] = (
            partial(offered_by_numpy, base_array, theta_array, encoding),
            partial(offered, base, theta, encoding),
        )
        pairs[f"{wire} next base"] = (
            partial(arrays.moved, base_array, data, encoding),
            partial(moved, base, data, encoding),
        )
    names = [("numpy " + name, "torch " + name) for name in pairs]
    cases = dict(zip(chain(*names), chain(*pairs.values()), strict=True))
    seconds = interleaved(cases, rounds)
    show(
        f"Offers and new bases: {count:,} elements, one thread of {os.cpu_count()}",
        ("case", "numpy ms", "torch ms", "numpy/torch"),
        [
            (name, seconds[one] * 1e3, seconds[two] * 1e3, seconds[one] / seconds[two])
            for name, (one, two) in zip(pairs, names, strict=True)
        ],
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=26_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count: int = arguments.elements
    compare(count, arguments.rounds)
    values, other, out = torch.randn(count), torch.zeros(count), torch.empty(count)
    cases: dict[str, Callable[[], object]] = {"add_": lambda: other.add_(values)}
    traffic = {"add_": 12 * count}

    def case(name: str, function: Callable[[], object], byte_count: int) -> None:
        cases[name], traffic[name] = function, byte_count

    for wire in Wire:
        encoding = encoding_of(wire)
        data = tensors.encode(values, encoding)
        case(f"{wire} encode", partial(tensors.encode, values, encoding), 4 * count + len(data))
        case(f"{wire} decode", partial(tensors.decode, data, encoding, out), 4 * count + len(data))
    data = tensors.encode(values, pb.BF16)
    case("xxh3_64", partial(xxhash.xxh3_64_intdigest, data), len(data))
    case("sha256", partial(codecs.digest, data), len(data))
    case("frames and back", partial(through_frames, data), 8 * len(data))
    seconds = interleaved(cases, arguments.rounds)
    bandwidth = traffic["add_"] / seconds["add_"]
    show(
        f"Codecs: {count:,} elements, one thread of {os.cpu_count()}",
        ("case", "ms", "GB/s", "of add_"),
        [
            (name, s * 1e3, traffic[name] / s / 1e9, traffic[name] / s / bandwidth)
            for name, s in seconds.items()
        ],
    )


if __name__ == "__main__":
    main()
