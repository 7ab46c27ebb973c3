"""The processes of one learner, as its training process sees them: what all of them do together.

Each process of torch.distributed that enters a Learner is a *rank* of it. The first one is the
head, which has the transport. `Group` joins the two sides of what the ranks say to each other:
what to do and when (control.py), and the values of slices (exchange.py).

A rank that has lost another one gets an error of torch from its next collective, or none at all
where it waits for a rank that is only stopped (lifeline.py). Here it becomes a LearnerError (75):
all ranks start again, and are the learner's next incarnation (rule 30).
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
from atoll_protos.codecs import Packed
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.layout import Slice, TensorSpec
from atoll_protos.parts import Share
from atoll_worker.errors import LearnerError
from atoll_worker.link.messages import Message
from atoll_worker.link.socket import Link
from atoll_worker.ranks import boxes, exchange, reading, states
from atoll_worker.ranks.control import HEAD, Control
from atoll_worker.ranks.exchange import Exchange, Pairs
from atoll_worker.ranks.lifeline import Lifeline, open_lifeline
from atoll_worker.ranks.owners import host_of, owners_of, share_of
from atoll_worker.ranks.peers import BEAT_SECONDS, left_words, lost_error
from atoll_worker.ranks.reading import Reader
from atoll_worker.ranks.together import together
from atoll_worker.ranks.words import Broadcast

WAIT_SECONDS_MAX: Final = 600.0  # of one collective of ours, as NCCL waits by default
ENTRY_HINT_SECONDS: Final = 15.0

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
    exchange: Exchange | None = None

    @property
    def is_head(self) -> bool:
        """Whether this is the rank that has the transport."""
        return self.rank == HEAD

    @property
    def closed(self) -> bool:
        """Whether the head's transport process is gone, as all ranks know it."""
        return self.control.closed

    @property
    def owners(self) -> tuple[int, ...]:
        """The ranks that own parts of the values, in their order; the head is the first.

        Where ranks do not reach the head by a stream of ours, it is the only one.
        """
        return owners_of(self.hosts, self.lanes) if self.lifeline.streams else (HEAD,)

    @property
    def share(self) -> Share | None:
        """What this rank owns of each slice; None if nothing."""
        return share_of(self.rank, self.owners, self.lanes)

    def agree(self, make: Callable[[], Made]) -> Made:
        """What `make` makes here. A SpecError of any rank is raised on every one."""
        made: list[Made] = []
        with self.guarded():
            together(self.words, lambda: made.append(make()))
        return made[0]

    def told(self, value: Made) -> list[Made]:
        """What every rank says, by rank."""
        with self.guarded():
            return together(self.words, lambda: value)

    def same(self, what: str, value: object) -> None:
        """Refuse ranks that were started for different things. Raises SpecError on every rank."""
        for rank, each in enumerate(said := self.told(value)):
            if each != said[HEAD]:
                raise SpecError(
                    "Learner",
                    f"rank {rank} has {what} {each}, rank {HEAD} has {said[HEAD]}",
                    "start all ranks of a learner with the same arguments and environment",
                )

    def open(
        self, models: Sequence[nn.Module], places: Sequence[boxes.Placed], lanes: int
    ) -> tuple[TensorSpec, ...]:
        """The tensors of the learner, which is all that its ranks hold together.

        `lanes` are the connections of each host to a shard. Raises SpecError on every rank for what
        cannot be put together.
        """
        self.lanes = lanes
        with self.guarded():
            self.exchange = exchange.open_exchange(
                models, places, group=self.values, control=self.words, owners=self.owners
            )
        return self.exchange.table.specs

    @property
    def is_first_that_trains(self) -> bool:
        """Whether this rank looks at what steps do: the head does, unless it trains nothing."""
        return self._exchange.table.first_that_trains == self.rank

    @property
    def device(self) -> torch.device:
        """Where the values are that this rank owns, also if it holds nothing that travels."""
        return self._exchange.device

    def follow(self, link: Link) -> None:
        """What the head draws its commands from."""
        self.control.link = link

    def draw(self) -> None:
        """The optimizer begins to step: the head draws the commands of the coming boundary."""
        with self.stepping():
            self.control.draw()

    def commands(self) -> Sequence[Message]:
        """What all ranks carry out at this boundary, in this order."""
        with self.stepping():
            return self.control.commands()

    def count(self, tokens: int, cursor: int) -> None:
        """The head says what it has counted."""
        with self.stepping():
            self.control.count(tokens, cursor)

    def counted(self) -> tuple[int, int] | None:
        """(tokens, cursor) as the head has counted them; None if that is known already."""
        with self.stepping():
            return self.control.counted()

    def gather(self, owned: Slice) -> Tensor | None:
        """What is owned of the values of a slice, f32 [elements], on an owner; None on others."""
        with self.stepping():
            return self._exchange.gather(owned)

    def empty(self, owned: Slice) -> Tensor:
        """Room for what is owned of the values of a slice, on an owner."""
        values = self._exchange.empty(owned)
        assert values is not None, "this rank owns nothing"
        return values

    def deal(self, owned: Slice, values: Tensor | None) -> tuple[Pairs, list[bool]]:
        """Give every rank what it holds of the owners' values of a slice.

        Pairs of (a view of what is held here, the values for it), and for each pair whether it is
        of a buffer that is averaged.
        """
        with self.stepping():
            return self._exchange.deal(owned, values)

    def state(self, mine: bytes | None) -> bytes | None:
        """What the job keeps of the data states of all ranks, on the head; None on the others.

        Raises SpecError on every rank if that is too much.
        """
        with self.guarded():
            return states.gather(self.words, mine)

    @contextlib.contextmanager
    def reading(
        self, models: Sequence[nn.Module], cleaner: Callable[[nn.Module], Callable[[str], str]]
    ) -> Iterator[Reader]:
        """All agree what there is; then the head reads whole tensors, and the others serve."""
        with self.guarded(), reading.reading(self.words, models, cleaner) as reader:
            yield reader

    def written(self) -> None:
        """What `deal` has given is in the model, or in line."""
        self._exchange.written()

    def flat(self, values: Tensor, region: Packed[Tensor]) -> Pairs:
        """What is owned of a slice's values beside the parts of a region of the shared memory."""
        return exchange.flat_pairs(values, region)

    def leave(self, *, in_order: bool, early: bool = False, told: bool = False) -> None:
        """This rank leaves; if it does not do so in order, the others end as well.

        `early`: its loop has ended before the job is final, and the others may train on. `told`: it
        was told to end, and so the others say that their learner was.
        """
        if in_order:
            with contextlib.suppress(RuntimeError):  # a rank that is lost asks for nothing
                self.control.leave()
        self.lifeline.close(in_order=in_order, early=early, told=told)

    def loss(self, error: BaseException) -> LearnerError | None:
        """What an error of the user's code is if another rank was lost; None if none was.

        Collectives of the user's own fail as well when a rank has ended. Where one has left early,
        a note at the error says so.
        """
        if not isinstance(error, RuntimeError) or isinstance(error, NOT_OF_A_LOSS):
            return None
        lost = self.lifeline.words(LOOK_SECONDS)
        if not lost and (left := left_words(self.lifeline.left)):
            error.add_note(left)
        return lost_error(lost, told=self.lifeline.told_to_end) if lost else None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Errors of our collectives as a LearnerError that names who is lost, if that is known."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, NOT_OF_A_LOSS):
                raise
            lost = self.lifeline.words(LOOK_SECONDS)
            if not lost and self.lifeline.left:
                raise  # a mistake of the script; `loss` says whose
            lost = f"{lost or 'another rank of this learner is lost'} ({first_line(error)})"
            raise lost_error(lost, told=self.lifeline.told_to_end) from error

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
    def _exchange(self) -> Exchange:
        assert self.exchange is not None, "not open"
        return self.exchange


def open_group(
    group: dist.ProcessGroup | None = None, *, cut: Callable[[], bool] = lambda: False
) -> Group | None:
    """The ranks of this learner, once all of them are here; None of a learner of one process.

    `group` are its processes, by default all of torch.distributed. A model that is `cut` (of
    DTensors) is moved by a Group also where there is but one rank. Collective. Raises SpecError if
    this process is none of the group, and LearnerError (75) if the others do not come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise SpecError(
            "group",
            f"has no rank for this process, rank {dist.get_rank()} of all",
            "give each process the group of its own learner",
        )
    if size == 1 and not cut():
        return None
    ranks = list(range(size)) if group is None else dist.get_process_group_ranks(group)
    hint = threading.Timer(ENTRY_HINT_SECONDS, _say_who_is_waited_for, (rank, size))
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
    """Of what an error says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _say_who_is_waited_for(rank: int, size: int) -> None:
    log.warning(
        "waiting for the other ranks to enter the Learner: each rank of torch.distributed does, "
        "with the same lines; or give the processes of one learner as group=",
        rank=rank,
        ranks=size,
    )
