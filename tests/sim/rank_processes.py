"""The processes of a learner of several ranks: its head, which has a transport, and the others."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll_worker.errors import LearnerError
from atoll_worker.link.messages import Boundary, Message, Start
from atoll_worker.ranks.control import HEAD
from sim.clock import Process
from sim.learner_process import LearnerProcess
from sim.rank import POLL_SECONDS, Part, Rank
from sim.rank_group import RankGroup
from sim.symbols import Key, Theta, Value, Work
from sim.training_process import data_state_at

if TYPE_CHECKING:
    from sim.world import World


class HeadProcess(LearnerProcess):
    """Rank 0 and its transport process. Its training process is `rank`."""

    def __init__(self, world: "World", slot: str, uid: str, instance: str) -> None:
        super().__init__(world, slot, uid, instance)
        self.group = RankGroup(world, instance)
        self.rank = HeadRank(self.group, self)
        self.followers = [
            FollowerProcess(self, number) for number in range(1, world.scenario.ranks[slot])
        ]

    def start(self) -> None:
        """The transport begins once all ranks are there."""
        self._training = asyncio.get_running_loop().create_task(self.rank.train())
        self.group.enter(self.rank)

    def enter(self) -> None:
        super().start()

    def receive(self, command: Any) -> None:
        """It waits for the boundary at which it is drawn."""
        self.training.inbox.append(command)
        self.rank.link.came.set()

    def died(self) -> None:
        """The other ranks may notice as well."""
        super().died()
        self.group.ended(self.rank, in_order=self.exit_code == 0)
        self.world.watchers.tell("rank_ended", self.rank)

    @property
    def is_whole(self) -> bool:
        return self.group.is_whole


class FollowerProcess(Process):
    """Another rank, on the same machine or not."""

    def __init__(self, head: HeadProcess, number: int) -> None:
        super().__init__(head.sim, f"{head.instance}/{number}")
        self.head, self.world = head, head.world
        self.rank = FollowerRank(head.group, number, self, head)

    def start(self) -> None:
        self._training = asyncio.get_running_loop().create_task(self.rank.train())
        self.rank.group.enter(self.rank)

    def died(self) -> None:
        """The other ranks may notice."""
        self.rank.group.ended(self.rank, in_order=self.rank.exit_code == 0)
        self.world.watchers.tell("rank_ended", self.rank)


class HeadLink:
    """The head's link to its transport, as control.Commands."""

    def __init__(self, learner: HeadProcess) -> None:
        self.learner = learner
        self.closed = False  # both processes die together here
        self.came = asyncio.Event()

    def receive(self) -> list[Message]:
        """What has come since it was asked last."""
        inbox, self.learner.training.inbox = self.learner.training.inbox, []
        self.came.clear()
        return inbox


class HeadRank(Rank):
    """Keeps the memory of its process (`Training`, the regions), at which the checkers look."""

    def __init__(self, group: RankGroup, learner: HeadProcess) -> None:
        super().__init__(group, HEAD, learner, learner.slot)
        self.learner = learner
        self.link = HeadLink(learner)
        self.control.link = self.link

    def step_seconds(self) -> float:
        """As of a learner of one process."""
        learner = self.learner
        seconds = self.world.scenario.step_seconds[self.slot] * learner.slowness
        seconds = seconds * learner.rng.uniform(0.8, 1.25) + learner.hiccup_seconds
        learner.hiccup_seconds = 0.0
        return seconds

    def enter(self) -> None:
        self.learner.enter()

    def begin(self) -> None:
        training = self.learner.training
        training.start, training.begun, training.cursor = self.state.start, True, self.counts.cursor

    def tokens_and_cursor(self) -> tuple[int, int]:
        cursor = self.counts.cursor + 1
        return self.counts.given(
            self.script_tokens(), cursor, data_state_at(self.slot, cursor), is_head=True
        )

    def script_tokens(self) -> int:
        return self.world.scenario.tokens_per_step

    def step_made(self) -> None:
        training, counts = self.learner.training, self.counts
        training.t_m, training.tokens = counts.own_steps, counts.tokens
        training.cursor = counts.cursor
        self.world.watchers.tell("stepped", self.learner)

    async def command_comes(self) -> None:
        """Look again after POLL_SECONDS."""
        timer = self.learner.loop.call_later(POLL_SECONDS, self.link.came.set)
        await self.link.came.wait()
        timer.cancel()

    def commands(self) -> list[Message]:
        found = super().commands()
        for command in found:
            self.world.watchers.tell("commanded", self.learner, command)
            if isinstance(command, Start):
                self.learner.training.start = command
        return found

    def value_of(self, key: Key) -> Value | None:
        return self.learner.placed[key][1]

    def taken(self, key: Key, value: Value) -> None:
        """A value was adopted."""
        learner, (publish, _) = self.learner, self.learner.placed[key]
        number = publish.version.version.number
        learner.training.bases[key] = self.bases[key]
        learner.sim.note(learner.name, f"adopts {key[0]}/{key[1]} v{number}")
        self.world.watchers.tell("adopted", learner, key, publish, value)

    def given(self, key: Key, parts: dict[int, Part]) -> None:
        """The capture region has the slice of all ranks."""
        self.world.watchers.tell("captured", self, key, parts)
        base, since = self.bases[key]
        steps = self.counts.own_steps
        work = None
        if steps > since:
            work = Work(self.slot, self.learner.incarnation, key, since + 1, steps)
        self.learner.regions[key].theta = Theta(base, work)
        self.learner.regions[key].counter += 2

    def report(self, boundary: Boundary) -> None:
        self.learner.say_boundary(boundary)

    def leave(self) -> None:
        """The loop is at its end."""
        self.learner.training.finished = True
        self.learner.sim.note(self.learner.name, "is finished")
        if self.world.scenario.leaves_when_finished:
            self.exit_code = 0
            self.learner.leave("finished")

    def end(self, error: LearnerError) -> None:
        """The process ends, and all ranks are started again."""
        if self.learner.alive and self.exit_code is None:
            self.exit_code = error.exit_code
            self.learner.fail(error.exit_code, str(error))


class FollowerRank(Rank):
    """It has no transport, and counts for nothing."""

    def __init__(self, group: RankGroup, number: int, process: Process, head: HeadProcess) -> None:
        super().__init__(group, number, process, head.slot)
        self.head = head

    def step_seconds(self) -> float:
        seconds = self.world.scenario.step_seconds[self.slot] * self.head.slowness
        return seconds * self.rng.uniform(0.8, 1.25)

    def tokens_and_cursor(self) -> tuple[int, int]:
        """What its script gives is not looked at."""
        return self.counts.given(10_000, 7, None, is_head=False)

    def leave(self) -> None:
        if self.world.scenario.leaves_when_finished:
            self.exit_code = 0
            self.process.after(0.0, partial(self.process.kill, "left"))

    def end(self, error: LearnerError) -> None:
        """The head ends as well, by this one's end."""
        if self.process.alive and self.exit_code is None:
            self.exit_code = error.exit_code
            why = f"exit {error.exit_code}: {error}"
            self.process.after(0.0, partial(self.process.kill, why))
