"""The processes of one learner, as its training process sees them: what all of them do together.

A rank that has lost another one gets an error of torch from its next collective, or none at all
where the other is only stopped (lifeline.py). Here it becomes a LearnerError (75): all ranks start
again, and are the learner's next incarnation (rule 30).

Each rank has a data loader of its own, with a place of its own. Where a slice is captured, what the
ranks have given for that step comes to the head, which offers it as one (rules 28 and 35).

    what was given                          what the job keeps      who gets it
    by no rank                              nothing
    the same by all, or by the head alone   those bytes             every rank, of any learner
    else                                    MARK, numbers, and      each rank its own, if there are
                                            each different one      as many ranks, else nobody

Equal states, known by their digests, are sent and kept once.
"""

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import structlog
import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn

from atoll_protos import environment as variables
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Slice, TensorSpec
from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_worker.errors import LearnerError
from atoll_worker.link.messages import Message
from atoll_worker.ranks import redistribution
from atoll_worker.ranks.control import HEAD, Control
from atoll_worker.ranks.lifeline import (
    BEAT_SECONDS,
    Lifeline,
    left_words,
    lost_error,
    open_lifeline,
)
from atoll_worker.ranks.redistribution import Pairs, Redistribution, together

MARK: Final = bytes.fromhex("ae88652888c3b842a52fc8777a4e76df")  # drawn by lot
FRAME: Final = struct.Struct("<II")  # number of ranks, number of different states
NONE: Final = -1  # in place of a state's number, or of its length
DIGEST: Final = struct.Struct("<qq")


def join_states(numbers: Sequence[int], states: Sequence[bytes]) -> bytes | None:
    """Return what is kept of the ranks' states; `numbers[rank]` is that of its state, or NONE."""
    if not states:
        return None
    if _is_one(numbers, len(states)):
        return states[0]
    lengths = struct.pack(f"<{len(states)}I", *map(len, states))
    of_ranks = struct.pack(f"<{len(numbers)}i", *numbers)
    return MARK + FRAME.pack(len(numbers), len(states)) + of_ranks + lengths + b"".join(states)


def share(kept: bytes | None, rank: int, size: int) -> tuple[bytes | None, str]:
    """Return one rank's state in a learner of `size`, and why it has none of those kept."""
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


def gather_states(control: dist.ProcessGroup | None, mine: bytes | None) -> bytes | None:
    """Return what is kept of all states, on the head. Collective; SpecError for too much."""
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
    return join_states(numbers, found) if rank == HEAD else None


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


WAIT_SECONDS_MAX: Final = 600.0  # of one collective of ours, as NCCL waits by default
ENTRY_HINT_SECONDS: Final = 15.0
ENTRY: Final = (
    "waiting for the other ranks to enter the Learner: each rank of torch.distributed does, with "
    "the same lines; or give the processes of one learner as group="
)
LOOK_SECONDS: Final = 2.0  # from an error to the end of the other rank's stream
NOT_OF_A_LOSS: Final = (LearnerError, torch.OutOfMemoryError)

Made = TypeVar("Made")
log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Group:
    """The ranks of one learner. All of them call each method, in the same order."""

    rank: int
    size: int
    values: dist.ProcessGroup | None  # the user's; None is the default group
    words: dist.ProcessGroup  # of gloo, for the words of the head and what else is no value
    control: Control
    lifeline: Lifeline
    exchange: Redistribution | None = None

    @property
    def is_head(self) -> bool:
        return self.rank == HEAD

    @property
    def closed(self) -> bool:
        return self.control.closed

    def agree(self, make: Callable[[], Made]) -> Made:
        """Return what `make` makes here. A SpecError of any rank is raised on every one."""
        made: list[Made] = []
        with self.guarded():
            together(self.words, lambda: made.append(make()))
        return made[0]

    def told(self, value: Made) -> list[Made]:
        """Return what each rank says, on all of them."""
        with self.guarded():
            return together(self.words, lambda: value)

    def same(self, what: str, value: object) -> None:
        """Refuse ranks that were started for different things. Raises SpecError on every rank."""
        for rank, each in enumerate(said := self.told(value)):
            if each != said[HEAD]:
                problem = f"rank {rank} has {what} {each}, rank {HEAD} has {said[HEAD]}"
                remedy = "start all ranks of a learner with the same arguments and environment"
                raise SpecError("Learner", problem, remedy)

    def open(
        self, models: Sequence[nn.Module], places: Sequence[redistribution.TravellingTensor]
    ) -> tuple[TensorSpec, ...]:
        """All the tensors that the ranks hold. SpecError on every rank if they do not fit."""
        with self.guarded():
            self.exchange = redistribution.open_exchange(
                models, places, group=self.values, control=self.words
            )
        return self.exchange.table.specs

    @property
    def device(self) -> torch.device:
        return self._exchange.device

    def draw(self) -> None:
        with self.stepping():
            self.control.draw()

    def commands(self) -> Sequence[Message]:
        with self.stepping():
            return self.control.commands()

    def count(self, tokens: int, cursor: int) -> None:
        with self.stepping():
            self.control.count(tokens, cursor)

    def counted(self) -> tuple[int, int] | None:
        with self.stepping():
            return self.control.counted()

    def gather(self, owned: Slice) -> Tensor | None:
        with self.stepping():
            return self._exchange.gather(owned)

    def empty(self, owned: Slice) -> Tensor:
        """Room for what is owned of the values of a slice, on the head."""
        values = self._exchange.empty(owned)
        assert values is not None, "this rank owns nothing"
        return values

    def deal(self, owned: Slice, values: Tensor | None) -> Pairs:
        with self.stepping():
            return self._exchange.deal(owned, values)

    def state(self, mine: bytes | None) -> bytes | None:
        with self.guarded():
            return gather_states(self.words, mine)

    def frozen(
        self,
        models: Sequence[nn.Module],
        digest: Callable[
            [Sequence[nn.Module], Callable[[Callable[[], Any]], list[Any]], int], Made
        ],
    ) -> Made:
        """Return what `digest` makes of the models of all ranks. Collective."""
        with self.guarded():
            return digest(models, partial(together, self.words), self.rank)

    def written(self) -> None:
        self._exchange.written()

    def leave(self, *, in_order: bool, early: bool = False, told: bool = False) -> None:
        """If it leaves out of order, the others end too. `early`: before the end of the job."""
        if in_order:
            with contextlib.suppress(RuntimeError):  # a rank that is lost asks for nothing
                self.control.leave()
        self.lifeline.close(in_order=in_order, early=early, told=told)

    def loss(self, error: BaseException) -> LearnerError | None:
        """Return what an error of the user's code is if another rank was lost; None if none was.

        Their collectives fail as well when a rank has ended; of one that left early a note tells.
        """
        if not isinstance(error, RuntimeError) or isinstance(error, NOT_OF_A_LOSS):
            return None
        lost = self.lifeline.words(LOOK_SECONDS)
        if not lost and (left := left_words(self.lifeline.peers.left)):
            error.add_note(left)
        return lost_error(lost, told=self.lifeline.peers.told) if lost else None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Errors of our collectives as a LearnerError that names who is lost, if that is known."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, NOT_OF_A_LOSS):
                raise
            lost = self.lifeline.words(LOOK_SECONDS)
            if not lost and self.lifeline.peers.left:
                raise  # a mistake of the script; `loss` says whose
            lost = f"{lost or 'another rank of this learner is lost'} ({first_line(error)})"
            raise lost_error(lost, told=self.lifeline.peers.told) from error

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """`guarded`, where only ranks that do not call step() can be waited for for long."""
        self.lifeline.waits_since = time.monotonic()
        try:
            with self.guarded():
                yield
        finally:
            self.lifeline.waits_since = None

    @property
    def _exchange(self) -> Redistribution:
        assert self.exchange is not None, "not open"
        return self.exchange


def open_group(
    group: dist.ProcessGroup | None = None, *, cut: Callable[[], bool] = lambda: False
) -> Group | None:
    """Return this learner's ranks, once all of them are here; None for a single process.

    A model that is `cut` (of DTensors) has a Group also of one rank. Collective. Raises SpecError
    if this process is none of the group, LearnerError (75) if the others do not come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        problem = f"has no rank for this process, rank {dist.get_rank()} of all"
        raise SpecError("group", problem, "give each process the group of its own learner")
    if size == 1 and not cut():
        return None
    ranks = list(range(size)) if group is None else dist.get_process_group_ranks(group)
    hint = threading.Timer(ENTRY_HINT_SECONDS, log.warning, [ENTRY], {"rank": rank, "ranks": size})
    hint.daemon = True
    hint.start()
    try:
        control = dist.new_group(
            ranks,
            backend="gloo",
            timeout=timedelta(seconds=WAIT_SECONDS_MAX),
            use_local_synchronization=True,
        )
        assert isinstance(control, dist.ProcessGroup), "this process is one of the ranks"
        silence = silence_seconds(os.environ)
        lifeline = open_lifeline(rank, lambda value: together(control, lambda: value), silence)
    except (RuntimeError, OSError) as error:
        lost = f"a rank of this learner has not entered it ({first_line(error)})"
        raise lost_error(lost) from error
    finally:
        hint.cancel()
    return Group(
        rank=rank,
        size=size,
        values=group,
        words=control,
        control=Control(begin=partial(Broadcast, control), rank=rank),
        lifeline=lifeline,
    )


def silence_seconds(environment: Mapping[str, str]) -> float:
    """How long a rank may say nothing. Raises SpecError if that is no number above 0."""
    given = variables.value(environment, Env.RANKS_SILENCE_SECONDS)
    try:
        found = float(given)
    except ValueError:
        found = 0.0
    if not BEAT_SECONDS < found < float("inf"):
        remedy = f"give a number of seconds above {BEAT_SECONDS:g}"
        raise SpecError(Env.RANKS_SILENCE_SECONDS, f"is {given!r}", remedy)
    return found


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


WORD_BYTES: Final = 4096


LENGTH: Final = struct.Struct("=Q")


class Broadcast:
    """Some bytes of the head, on their way to all ranks of a group. See control.Word."""

    def __init__(self, group: dist.ProcessGroup, said: bytes | None) -> None:
        self.group, self.said = group, said
        self.first = torch.zeros(WORD_BYTES, dtype=torch.uint8)
        self.rest: Tensor | None = None
        if said is not None:
            _write(self.first, LENGTH.pack(len(said)) + said[: WORD_BYTES - LENGTH.size])
        self.works = [_broadcast(group, self.first)]
        if said is not None and (rest := said[WORD_BYTES - LENGTH.size :]):
            self.rest = torch.empty(len(rest), dtype=torch.uint8)
            _write(self.rest, rest)
            self.works.append(_broadcast(group, self.rest))

    def heard(self) -> bytes:
        for work in self.works:
            work.wait()
        if self.said is not None:
            return self.said
        word = bytes(self.first.numpy())
        (length,) = LENGTH.unpack_from(word)
        said = word[LENGTH.size : LENGTH.size + length]
        if len(said) < length:
            rest = torch.empty(length - len(said), dtype=torch.uint8)
            _broadcast(self.group, rest).wait()
            said += bytes(rest.numpy())
        return said


def _broadcast(group: dist.ProcessGroup, buffer: Tensor) -> dist.Work:
    work = dist.broadcast(buffer, group=group, group_src=HEAD, async_op=True)
    assert work is not None
    return work


def _write(buffer: Tensor, data: bytes) -> None:
    buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
