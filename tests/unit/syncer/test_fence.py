"""The fence of the log (rules 19, 20), searched: all interleavings of three processes of one shard.

A small model of storage/journal: a log of three positions, processes that
read, create, look, take snapshots and delete, each request by itself, so that a process can sleep
for ever between any two of them. Wrong is one thing alone: two appends that their processes believe
(after the create, and the look where there is one) on histories that differ. What the real journal
does of it stands in test_journal, test_snapshots and test_damaged_log.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

POSITIONS, PROCESSES, SNAPSHOTS_MAX = 3, 3, 3

Chain = tuple[int, ...]  # the numbers of the entries that a process takes for the log


class Written(NamedTuple):
    """An entry: its number, which no other has, and that of the one before; 0: none is there."""

    number: int = 0
    previous: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `doing` is the request that comes next."""

    chain: Chain = ()
    doing: tuple[object, ...] = ()
    owner: bool = False  # an append of its own was believed
    dead: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """The store, the processes, and the longest history that was believed."""

    entries: tuple[Written, ...] = (Written(),) * POSITIONS
    snapshots: tuple[tuple[int, Chain], ...] = ()
    processes: tuple[Process, ...] = (Process(),) * PROCESSES
    fresh: int = 1
    believed: Chain = ()
    split: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """What of it is there: deletion below snapshots, the look after a create, the chain."""

    deletes: bool
    looks: bool
    chained: bool

    def next(self, world: World) -> Iterator[World]:
        for index, process in enumerate(world.processes):
            if not process.dead:
                for after, changed in self.steps(world, process):
                    processes = list(changed.processes)
                    processes[index] = after
                    yield replace(changed, processes=tuple(processes))

    def steps(self, world: World, process: Process) -> Iterator[tuple[Process, World]]:
        match process.doing:
            case ():
                yield from self.begins(world, process)
            case ("read",):
                yield self.reads(world, process), world
            case ("look", int(number)):
                yield self.believes(world, process, number)
            case ("delete", position, *others):
                entries = list(world.entries)
                entries[int(str(position)) - 1] = Written()
                doing = ("delete", *others) if others else ()
                yield replace(process, doing=doing), replace(world, entries=tuple(entries))

    def begins(self, world: World, process: Process) -> Iterator[tuple[Process, World]]:
        position, newest = len(process.chain), max((p for p, _ in world.snapshots), default=0)
        last = process.chain[-1] if process.chain else 0
        if newest > position and not process.owner:
            yield Process(chain=dict(world.snapshots)[newest]), world
        if position < POSITIONS:
            if not process.owner:
                yield replace(process, doing=("read",)), world
            if world.entries[position].number:
                yield replace(process, dead=True), world  # the name is taken
            else:
                entries = list(world.entries)
                entries[position] = Written(world.fresh, last)
                created = replace(world, entries=tuple(entries), fresh=world.fresh + 1)
                yield replace(process, doing=("look", world.fresh)), created
        known = dict(world.snapshots)
        if process.owner and position not in known and len(known) < SNAPSHOTS_MAX:
            taken = tuple(sorted([*world.snapshots, (position, process.chain)]))
            yield process, replace(world, snapshots=taken)
        if self.deletes and len(world.snapshots) > 1:
            older = sorted(p for p, _ in world.snapshots)[-2]
            left = [p for p in range(1, older + 1) if world.entries[p - 1].number]
            if left:
                yield replace(process, doing=("delete", *left)), world

    def reads(self, world: World, process: Process) -> Process:
        position, newest = len(process.chain), max((p for p, _ in world.snapshots), default=0)
        found, last = world.entries[position], process.chain[-1] if process.chain else 0
        if not found.number:
            return replace(process, doing=())
        if self.chained and found.previous != last:
            if newest > position:
                return Process(chain=dict(world.snapshots)[newest])
            return replace(process, dead=True)
        return replace(process, chain=(*process.chain, found.number), doing=())

    def believes(self, world: World, process: Process, number: int) -> tuple[Process, World]:
        newest = max((p for p, _ in world.snapshots), default=0)
        if self.looks and newest > len(process.chain):
            return replace(process, dead=True), world
        chain = (*process.chain, number)
        split = any(one != other for one, other in zip(chain, world.believed, strict=False))
        believed = max(chain, world.believed, key=len)
        after = Process(chain=chain, owner=True)
        return after, replace(world, believed=believed, split=world.split or split)


def splits(fence: Fence) -> bool:
    """Whether any of all states is one in which two histories were believed."""
    seen, waiting = {World()}, deque([World()])
    while waiting:
        for world in fence.next(waiting.popleft()):
            if world.split:
                return True
            if world not in seen:
                seen.add(world)
                waiting.append(world)
    return False


def test_without_deletion_a_create_is_all_of_an_append() -> None:
    """An object store: no look is needed."""
    assert not splits(Fence(deletes=False, looks=False, chained=False))


def test_with_deletion_a_create_alone_or_a_look_without_the_chain_is_not_enough() -> None:
    assert splits(Fence(deletes=True, looks=False, chained=True))
    assert splits(Fence(deletes=True, looks=True, chained=False))


def test_with_deletion_the_look_and_the_chain_keep_one_history() -> None:
    """A file system."""
    assert not splits(Fence(deletes=True, looks=True, chained=True))
