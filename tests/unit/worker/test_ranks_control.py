"""All ranks carry out the head's commands at the same boundary and in its order (rule 31)."""

import multiprocessing
import pickle
import random
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from atoll_worker.link.messages import Adopt, Capture, Finished, Message, Start, Tick
from atoll_worker.ranks.control import Control
from atoll_worker.ranks.group import WORD_BYTES, Broadcast

RANKS = 3
BOUNDARIES = 150
SECONDS_MAX = 240.0


@dataclass
class FakeLink:
    """The head's link: some commands have come whenever it is asked."""

    random: random.Random
    given: deque[list[Message]] = field(default_factory=deque)
    closed: bool = False

    def receive(self) -> list[Message]:
        found = [self.command() for _ in range(self.random.choice((0, 0, 1, 2, 40)))]
        self.given.append(found)
        return found

    def command(self) -> Message:
        number = self.random.randrange(1 << 40)
        size = self.random.choice((0, 10, WORD_BYTES, 300_000))
        state = self.random.randbytes(size) or None
        return self.random.choice(
            (
                Tick(tick=number),
                Adopt(shard=1, fragment=2, number=number, blend=0.25),
                Capture(slices=((0, number), (1, 2))),
                Start(incarnation=1, cursor=number, tick=3, data_state=state),
                Finished(again=((0, 1),)),
            )
        )


def be(rank: int, folder: Path) -> None:
    """One rank. Whether its optimizer calls the hook is its own chance."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    group = dist.group.WORLD
    assert group is not None
    chance, control = random.Random(rank), Control(begin=partial(Broadcast, group), rank=rank)
    link = FakeLink(random.Random(7))
    if rank == 0:
        control.link = link
    heard: list[Any] = []
    for boundary in range(BOUNDARIES):
        for _ in range(chance.choice((0, 1, 1, 2))):
            control.draw()
        link.closed = boundary == BOUNDARIES - 1  # seen at the last boundary, unless drawn before
        if link.closed:
            control.commands()
        heard.append((control.commands(), control.closed))
        control.count(1000 * (rank + 1) + boundary, boundary + rank)
        if chance.random() < 0.5:  # a script that asks for its cursor
            counted = control.counted()
            heard.append(counted if rank else (1000 + boundary, boundary))
        else:
            heard.append((1000 + boundary, boundary))
    (folder / f"{rank}").write_bytes(pickle.dumps((heard, list(link.given))))
    dist.barrier()
    dist.destroy_process_group()


def test_every_rank_obeys_commands_in_their_order_at_one_boundary(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    processes = [forks.Process(target=be, args=(n, tmp_path), daemon=True) for n in range(RANKS)]
    for each in processes:
        each.start()
    deadline = time.monotonic() + SECONDS_MAX
    for each in processes:
        each.join(max(0.0, deadline - time.monotonic()))
        each.kill()
    files = [tmp_path / f"{rank}" for rank in range(RANKS)]
    assert all(path.exists() for path in files), "the ranks wait for each other"
    (head, given), *others = [pickle.loads(path.read_bytes()) for path in files]
    assert all(heard == head for heard, _ in others)
    assert len(head) == 2 * BOUNDARIES
    obeyed = [list(commands) for commands, _ in head[::2]]
    assert obeyed[:-1] == given[: BOUNDARIES - 1], "some are lost, or in another order"
    assert obeyed[-1] == given[BOUNDARIES]
    assert sum(map(len, obeyed)) > BOUNDARIES
    assert [closed for _, closed in head[::2]] == [False] * (BOUNDARIES - 1) + [True]


def test_the_head_leaves_when_its_last_counts_are_sent() -> None:
    sent: list[bytes | None] = []

    def begin(said: bytes | None) -> Any:
        return SimpleNamespace(heard=lambda: sent.append(said))

    control = Control(begin=begin, rank=0)
    control.leave()  # it has said nothing yet
    control.count(100, 7)
    assert not sent
    control.leave()
    assert len(sent) == 1
