"""The processes of one learner, as its training process sees them: what all of them do together.

A rank that has lost another one gets an error of torch from its next collective, or none at all
where the other is only stopped (lifeline.py). Here it becomes a LearnerError (75): all ranks start
again, and are the learner's next incarnation (rule 30).
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import structlog
import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll_protos import environment as variables
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Slice, TensorSpec
from atoll_protos.transfer.division import Share
from atoll_worker.errors import LearnerError
from atoll_worker.link.messages import Message
from atoll_worker.ranks import boxes, data_states, redistribution, whole_tensors
from atoll_worker.ranks.broadcasts import Broadcast
from atoll_worker.ranks.control import HEAD, Control
from atoll_worker.ranks.lifeline import Lifeline, open_lifeline
from atoll_worker.ranks.owners import host_of, owners_of, share_of
from atoll_worker.ranks.peers import BEAT_SECONDS, left_words, lost_error
from atoll_worker.ranks.redistribution import Pairs, Redistribution
from atoll_worker.ranks.together import together
from atoll_worker.ranks.whole_tensors import Reader

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
    hosts: tuple[int, ...] = (0,)  # of each rank, as it says itself
    lanes: int = 1  # connections of each host to a shard
    exchange: Redistribution | None = None

    @property
    def is_head(self) -> bool:
        return self.rank == HEAD

    @property
    def closed(self) -> bool:
        return self.control.closed

    @property
    def owners(self) -> tuple[int, ...]:
        """In their order. Where ranks do not reach the head by a stream of ours, the head alone."""
        return owners_of(self.hosts, self.lanes) if self.lifeline.streams else (HEAD,)

    @property
    def share(self) -> Share | None:
        return share_of(self.rank, self.owners, self.lanes)

    def agree(self, make: Callable[[], Made]) -> Made:
        """What `make` makes here. A SpecError of any rank is raised on every one."""
        made: list[Made] = []
        with self.guarded():
            together(self.words, lambda: made.append(make()))
        return made[0]

    def told(self, value: Made) -> list[Made]:
        """What each rank says, on all of them."""
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
        self, models: Sequence[nn.Module], places: Sequence[boxes.TravellingTensor], lanes: int
    ) -> tuple[TensorSpec, ...]:
        """All the tensors that the ranks hold. SpecError on every rank if they do not fit."""
        self.lanes = lanes
        with self.guarded():
            self.exchange = redistribution.open_exchange(
                models, places, group=self.values, control=self.words, owners=self.owners
            )
        return self.exchange.table.specs

    @property
    def is_first_that_trains(self) -> bool:
        return self._exchange.table.first_that_trains == self.rank

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
        """Room for what is owned of the values of a slice, on an owner."""
        values = self._exchange.empty(owned)
        assert values is not None, "this rank owns nothing"
        return values

    def deal(self, owned: Slice, values: Tensor | None) -> tuple[Pairs, list[bool]]:
        with self.stepping():
            return self._exchange.deal(owned, values)

    def state(self, mine: bytes | None) -> bytes | None:
        with self.guarded():
            return data_states.gather(self.words, mine)

    @contextlib.contextmanager
    def reading(
        self, models: Sequence[nn.Module], cleaner: Callable[[nn.Module], Callable[[str], str]]
    ) -> Iterator[Reader]:
        with self.guarded(), whole_tensors.reading(self.words, models, cleaner) as reader:
            yield reader

    def written(self) -> None:
        self._exchange.written()

    def leave(self, *, in_order: bool, early: bool = False, told: bool = False) -> None:
        """If it leaves out of order, the others end too. `early`: before the end of the job."""
        if in_order:
            with contextlib.suppress(RuntimeError):  # a rank that is lost asks for nothing
                self.control.leave()
        self.lifeline.close(in_order=in_order, early=early, told=told)

    def loss(self, error: BaseException) -> LearnerError | None:
        """What an error of the user's code is if another rank was lost; None if none was.

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
    """The ranks of this learner, once all of them are here; None of a learner of one process.

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
        silence, host = silence_seconds(os.environ), host_of(os.environ)
        hosts = together(control, lambda: host)
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
        hosts=tuple(hosts),
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
