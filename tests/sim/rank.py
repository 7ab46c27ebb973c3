"""One rank of a learner: the user's loop as learner.py goes through it, in virtual time.

Production's are: `Control` (which commands at which boundary), `JobState` (their order), `Counts`
(what is counted), `Peers` (who is lost). Where real ranks wait in a call, a rank here awaits.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from atoll_worker.errors import LearnerError
from atoll_worker.link.messages import Boundary, Message
from atoll_worker.model.tickets import Done
from atoll_worker.ranks.control import Control
from atoll_worker.ranks.lifeline import Peers, lost_error
from atoll_worker.training.boundary import BoundaryWork, Counts, JobState
from sim.clock import Process
from sim.rank_group import CollectiveError, RankGroup, Word
from sim.symbols import Key, Value

if TYPE_CHECKING:
    from sim.world import World

POLL_SECONDS = 0.2
BACKWARD_SHARE = 0.9  # of a step
HOOK_SHARE = 0.8  # of the steps: the optimizer calls the hook


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds of a slice: the base that it took, after which of its steps, and now."""

    base: str  # digest
    since: int
    steps: int


class Rank:
    """See the module. Its process is another one for each rank."""

    def __init__(self, group: RankGroup, number: int, process: Process, slot: str) -> None:
        layout = group.world.layout
        slices = {(each.shard, each.fragment): each for each in layout.slices}
        self.state = JobState(specs=layout.tensors, slices=slices)
        group.ranks.append(self)
        self.group, self.number, self.process, self.slot = group, number, process, slot
        self.world: World = group.world
        self.rng = group.sim.random(f"rank {number} of {group.name}")
        self.control = Control(begin=partial(group.begin_word, self), rank=number)
        self.counts = Counts()
        heard = dict.fromkeys(group.others(number), group.sim.now)
        self.peers = Peers(silence_seconds_max=group.silence_seconds_max, heard=heard)
        self.bases: dict[Key, tuple[Value, int]] = {}  # and own steps at adoption
        self.in_line: list[Callable[[], Awaitable[None]]] = []  # collectives of a boundary
        self.judged = False
        self.exit_code: int | None = None  # of an end by itself
        self.refused_with: int | None = None  # the job's Fail, as this rank has heard it

    # ------------------------------------------------------------ what differs between ranks

    @abstractmethod
    def step_seconds(self) -> float:
        """Of the next step."""

    @abstractmethod
    def tokens_and_cursor(self) -> tuple[int, int]:
        """What a step counts."""

    @abstractmethod
    def leave(self) -> None:
        """The loop is at its end."""

    @abstractmethod
    def end(self, error: LearnerError) -> None:
        """The process ends with the error's exit code."""

    # ------------------------------------------------------------ what the head alone does

    def enter(self) -> None:
        """All ranks are there: start the transport."""

    def begin(self) -> None:
        """Training begins."""

    def step_made(self) -> None:
        """One more step is counted."""

    async def command_comes(self) -> None:
        """Wait until a command may have come; the others wait for the head's word."""

    def value_of(self, key: Key) -> Value | None:
        return None

    def taken(self, key: Key, value: Value) -> None:
        """A value was adopted."""

    def given(self, key: Key, parts: dict[int, Part]) -> None:
        """What all ranks hold of a slice was captured."""

    def give(self, *, changed: bool) -> None:
        """Put what the export needs into the memory."""

    def report(self, boundary: Boundary) -> None:
        """Tell the transport of a boundary when all its work is over."""

    # ------------------------------------------------------------ the loop

    async def train(self) -> None:
        """`with Learner(model) as learner: while not learner.finished: ...`."""
        try:
            await self.group.together(self, "enter", None)
            self.enter()
            await self.wait_until(lambda: self.state.start is not None)
            assert self.state.start is not None
            self.counts.cursor = self.state.start.cursor
            self.begin()
            while not self.state.finished:
                await self.step()
            self.leave()
        except LearnerError as error:
            self.refused_with = error.exit_code
            self.end(error)
        except CollectiveError as error:
            self.end(lost_error(self.peers.lost or str(error)))
        except Exception as error:
            self.world.sim.fails(error)

    async def step(self) -> None:
        """Backward, whose collectives all ranks make together; the optimizer; `learner.step()`."""
        seconds, begun = self.step_seconds(), self.world.sim.now
        await asyncio.sleep(seconds * BACKWARD_SHARE)
        await self.group.together(self, ("gradients", self.counts.own_steps), None)
        if self.rng.random() < HOOK_SHARE:
            self.control.draw()
        await asyncio.sleep(seconds * (1.0 - BACKWARD_SHARE))
        await self.hear()
        tokens, cursor = self.tokens_and_cursor()
        seconds = self.world.sim.now - begun
        self.counts.count(tokens, cursor)
        self.state.proceed = False
        self.step_made()
        self.world.watchers.tell("rank_stepped", self)
        work = await self.apply_commands()
        self.control.count(self.counts.tokens, self.counts.cursor)
        self.report(self.counts.boundary(work, self.counts.state(work), tokens, seconds))
        if self.world.run_file.sync.lockstep:
            begun = self.world.sim.now
            await self.wait_until(lambda: self.state.proceed or self.state.finished)
            self.counts.blocked_seconds = self.world.sim.now - begun

    async def hear(self) -> None:
        """What the head has counted is what this rank has counted, too."""
        if isinstance(said := self.control.counts, Word):
            await said.arrived
        if (counted := self.control.counted()) is not None:
            self.counts.heard(*counted)
        if self.counts.own_steps:
            self.world.watchers.tell("rank_counted", self)

    async def wait_until(self, over: Callable[[], bool]) -> None:
        while not over():
            await self.command_comes()
            if work := await self.apply_commands():
                self.report(self.counts.boundary(work, self.counts.state(work)))

    async def apply_commands(self) -> BoundaryWork:
        """Those of this boundary, and their collectives in the same order."""
        self.control.draw()
        drawn = self.control.drawn
        assert isinstance(drawn, Word)
        await drawn.arrived
        commands = self.commands()
        self.world.watchers.tell("rank_obeys", self, commands)
        self.in_line.clear()
        work = self.state.apply(commands, self)
        for each in self.in_line:
            await each()
        return work

    def commands(self) -> list[Message]:
        return list(self.control.commands())

    # ------------------------------------------------------------ commands

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Put it in line: the head deals its value to all ranks."""
        work.assigned[key] = None
        work.tickets.append(Done())
        again = self.state.finished  # the final value once more

        async def deal() -> None:
            said = await self.group.together(self, ("adopt", key), self.value_of(key))
            value = said.get(0)
            if value is not None:
                self.bases[key] = value, self.counts.own_steps
                if not again:
                    self.taken(key, value)

        self.in_line.append(deal)

    def capture(self, key: Key) -> Done:
        """Put it in line: every rank gives what it holds."""

        async def gather() -> None:
            self.given(key, await self.group.together(self, ("capture", key), self.part(key)))

        self.in_line.append(gather)
        return Done()

    def part(self, key: Key) -> Part:
        """What this rank holds of a slice now."""
        base, since = self.bases[key]
        return Part(base.digest, since, self.counts.own_steps)
