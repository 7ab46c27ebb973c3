"""The data states of a learner's ranks as the one data state that the job keeps, and back.

Each rank has a data loader of its own, with a place of its own. Where a slice is captured, what the
ranks have given for that step comes to the head, which offers it as one (rules 28 and 35).

    what was given                          what the job keeps      who gets it
    by no rank                              nothing
    the same by all, or by the head alone   those bytes             every rank, of any learner
    else                                    MARK, numbers, and      each rank its own, if there are
                                            each different one      as many ranks, else nobody

Equal states, known by their digests, are sent and kept once.
"""

import struct
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist
import xxhash

from atoll_protos.errors import SpecError
from atoll_protos.names import DATA_STATE_BYTES_MAX

HEAD: Final = 0
MARK: Final = bytes.fromhex("ae88652888c3b842a52fc8777a4e76df")  # drawn by lot
FRAME: Final = struct.Struct("<II")  # number of ranks, number of different states
NONE: Final = -1  # in place of a state's number, or of its length
DIGEST: Final = struct.Struct("<qq")


def joined(numbers: Sequence[int], states: Sequence[bytes]) -> bytes | None:
    """What is kept of the ranks' states; `numbers[rank]` is that of its state, or NONE."""
    if not states:
        return None
    if _is_one(numbers, len(states)):
        return states[0]
    lengths = struct.pack(f"<{len(states)}I", *map(len, states))
    of_ranks = struct.pack(f"<{len(numbers)}i", *numbers)
    return MARK + FRAME.pack(len(numbers), len(states)) + of_ranks + lengths + b"".join(states)


def share(kept: bytes | None, rank: int, size: int) -> tuple[bytes | None, str]:
    """The state of one rank of a learner of `size`, and why it has none though there is one."""
    if kept is None or not kept.startswith(MARK):
        return kept, ""
    ranks, count = FRAME.unpack_from(kept, len(MARK))
    if ranks != size:
        return None, (
            f"the slot's data state was given by {ranks} ranks and this learner has {size}, so"
            " learner.data_state is None: find the place in the data by learner.cursor"
        )
    at = len(MARK) + FRAME.size
    numbers = struct.unpack_from(f"<{ranks}i", kept, at)
    at += 4 * ranks
    lengths = struct.unpack_from(f"<{count}I", kept, at)
    at += 4 * count
    number = numbers[rank]
    if number == NONE:
        return None, ""
    start = at + sum(lengths[:number])
    return kept[start : start + lengths[number]], ""


def gather(control: dist.ProcessGroup | None, mine: bytes | None) -> bytes | None:
    """What is kept of all ranks' states, on the head. Collective; SpecError on all for too much."""
    rank = dist.get_rank(control)
    said = _all(control, mine)
    firsts: dict[tuple[int, ...], int] = {}  # the lowest rank that has given it, by what it said
    numbers = [NONE if each[0] == NONE else firsts.setdefault(each, len(firsts)) for each in said]
    givers = [numbers.index(number) for number in range(len(firsts))]
    lengths = [said[giver][0] for giver in givers]
    _check(numbers, lengths)
    found = []
    for giver, length in zip(givers, lengths, strict=True):
        if giver == HEAD == rank:
            assert mine is not None
            found.append(mine)
        elif length == 0:
            found.append(b"")
        elif rank == HEAD:
            room = torch.empty(length, dtype=torch.uint8)
            dist.recv(room, group=control, group_src=giver)
            found.append(room.numpy().tobytes())
        elif giver == rank:
            assert mine is not None
            state = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
            dist.send(state, group=control, group_dst=HEAD)
    return joined(numbers, found) if rank == HEAD else None


def _all(control: dist.ProcessGroup | None, mine: bytes | None) -> list[tuple[int, ...]]:
    """(length, digest) of every rank's."""
    words = (NONE, 0, 0)
    if mine is not None:
        words = (len(mine), *DIGEST.unpack(xxhash.xxh3_128_digest(mine)))
    heard = [torch.empty(3, dtype=torch.int64) for _ in range(dist.get_world_size(control))]
    dist.all_gather(heard, torch.tensor(words), group=control)
    return [tuple(each.tolist()) for each in heard]


def _check(numbers: Sequence[int], lengths: Sequence[int]) -> None:
    around = len(MARK) + FRAME.size + 4 * (len(numbers) + len(lengths))
    total = sum(lengths) + (0 if _is_one(numbers, len(lengths)) else around)
    if total > DATA_STATE_BYTES_MAX:
        raise SpecError(
            "state",
            f"the states of {len(numbers)} ranks have {total} bytes together",
            f"keep at most {DATA_STATE_BYTES_MAX}: where the data goes on, not the data; ranks that"
            " read the same data count once if they give the same bytes",
        )


def _is_one(numbers: Sequence[int], count: int) -> bool:
    return count == 0 or (count == 1 and numbers[HEAD] != NONE)
