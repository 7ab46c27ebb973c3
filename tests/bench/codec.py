"""Codecs, checksum and frames over an addition, in the same run.

In tests/: python -m bench.codec
"""

import argparse
import os
from collections.abc import Callable
from functools import partial

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402
import xxhash  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_protos.transfer import arrays, codecs  # noqa: E402
from atoll_protos.transfer.arrays import BF16, F32, Array  # noqa: E402
from atoll_protos.transfer.codecs import Form, Wire, encoding_of  # noqa: E402
from atoll_protos.transfer.frames import Assembler, transfer_frames  # noqa: E402
from bench.table import interleaved, show  # noqa: E402


def through_frames(payload: bytearray) -> None:
    """Cut a payload into frames and assemble them again: three copies and two checksums."""
    head = pb.Transfer(seed=pb.Seed(), encoding=pb.BF16, byte_count=len(payload))
    assembler = Assembler(lambda head: head.byte_count)
    arrived = [assembler.feed(frame) for frame in transfer_frames(1, head, payload)]
    assert arrived[-1] is not None


def offered(base: arrays.Base, theta: Array, encoding: pb.Encoding) -> memoryview:
    """An offer as a transport process makes it."""
    return arrays.pack(arrays.difference(base, theta), encoding, base.form)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=26_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    count: int = arguments.elements
    values = np.random.default_rng(0).standard_normal(count, F32)
    other, out = values.copy(), np.empty_like(values)
    cases: dict[str, Callable[[], object]] = {"add": lambda: np.add(other, values, out=other)}
    traffic = {"add": 12 * count}

    def case(name: str, function: Callable[[], object], byte_count: int) -> None:
        cases[name], traffic[name] = function, byte_count

    base = arrays.packed(arrays.byte_view(values.astype(BF16)), pb.BF16, Form(0, count))
    for wire in Wire:
        encoding = encoding_of(wire)
        data = arrays.encode(values, encoding)
        moves = 4 * count + len(data)
        case(f"{wire} encode", partial(arrays.encode, values, encoding), moves)
        case(f"{wire} decode", partial(arrays.decode, data, encoding, out), moves)
        case(f"{wire} offer", partial(offered, base, values, encoding), moves + 2 * count)
        case(f"{wire} next base", partial(arrays.moved, base, data, encoding), moves)
    sent = bytearray(arrays.encode(values, pb.BF16))
    case("xxh3_64", partial(xxhash.xxh3_64_intdigest, sent), len(sent))
    case("sha256", partial(codecs.digest, sent), len(sent))
    case("frames and back", partial(through_frames, sent), 8 * len(sent))
    seconds = interleaved(cases, arguments.rounds)
    bandwidth = traffic["add"] / seconds["add"]
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
