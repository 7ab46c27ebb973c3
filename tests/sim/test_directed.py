"""Single runs with a fault at a chosen moment: how a shard's process starts and stops."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import TensorSpec
from atoll_protos.job.run_file import Expected, Limit
from atoll_syncer.storage.files import LOG, OBJECTS, StoreUnavailable
from sim import damage
from sim.checkers.every import ALL
from sim.drawn_claims import Fault
from sim.faults import FAULTS, schedule
from sim.memory_store import MemoryStore
from sim.scenario import draw
from sim.shard_process import ShardProcess
from sim.simulate import logs_into, run, simulate
from sim.world import World

QUIET = 0  # a seed without faults, whose job takes some 17 s
DURING = 8.0
LATE = 12.5  # the shard has made versions


@pytest.fixture
def world() -> Iterator[World]:
    with logs_into(None):
        made = World(draw(QUIET), ALL)
        yield made
        made.close()


def events(*faults: Fault) -> list[str]:
    """What happens to learners with ranks and lanes, but for the faults themselves."""
    drawn = draw(QUIET)
    everybody = Expected(regions=drawn.run_file.regions)
    revoked = replace(everybody, limits=(Limit(region=everybody.regions[0].name, generation=1),))
    several = replace(
        drawn,
        ranks={drawn.run_file.slots[0]: 2},
        lanes_share=1.0,
        silence_seconds=3.0,
        certificate_seconds=10.0,
        lists=((0.0, everybody), *((each.at, revoked) for each in faults if each.kind == "list")),
        faults=faults,
    )
    with logs_into(None):
        world = World(several, (), keep_trace=True)
        schedule(world)
        world.sim.run(LATE + 12.0, lambda: False)
        world.close()
    return [line for line in world.sim.lines if " FAULT " not in line]


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    return events()


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_each_kind_makes_a_difference(kind: str, undisturbed: list[str]) -> None:
    at = LATE if kind in {"claim", damage.KIND} else DURING  # there is a version by then
    assert events(Fault(at=at, kind=kind, which=0, seconds=8.0)) != undisturbed


def test_a_store_that_is_away_while_a_shard_restores_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failed = MemoryStore.read, list[str]()

    def read_later(self: MemoryStore, name: str) -> bytearray:
        if name.startswith(OBJECTS) and world.sim.now < DURING + 5.0:
            failed.append(name)
            raise StoreUnavailable(name, "the store is away", "try again")
        return read(self, name)

    def restart() -> None:
        monkeypatch.setattr(MemoryStore, "read", read_later)
        world.shards[0].kill("killed")
        world.shards[0] = world.start_shard(0, world.shards[0].pod)

    world.sim.at(DURING, restart)
    assert run(world).result == "Complete"
    assert failed


def test_a_shard_commits_while_most_of_its_values_are_still_to_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule 45: it does so before the fifth slice of many is read."""
    drawn = draw(QUIET)
    sync = replace(drawn.run_file.sync, fragments=8, period=16)
    run_file = replace(drawn.run_file, shards=1, steps=64, sync=sync)
    tensors = [
        TensorSpec(name=f"t{n}", shape=(60,), dtype="float32", merge="average") for n in range(8)
    ]
    scenario = replace(drawn, run_file=run_file, layout=run_file.layout(tensors))
    with logs_into(None):
        many = World(scenario, ALL)
    heads, opened, read = set[str](), set[str](), MemoryStore.read
    commits, newest = list[int](), list[int]()

    def read_some(self: MemoryStore, name: str) -> bytearray:
        """Only four of the newest versions, until the new process has committed."""
        if name in heads - opened and len(opened) == 4:
            process = many.shards[0].shard
            newest.append(0 if process is None else process.state.history.commits)
            if newest[-1] == commits[0]:
                raise StoreUnavailable(name, "the store is away", "try again")
        opened.update({name} & heads)
        return read(self, name)

    def restart() -> None:
        process = many.shards[0].shard
        assert process is not None
        heads.update(each.object for each in process.state.history.heads.values())
        commits.append(process.state.history.commits)
        many.shards[0].kill("killed")
        many.shards[0] = many.start_shard(0, many.shards[0].pod)

    monkeypatch.setattr(MemoryStore, "read", read_some)
    with logs_into(None):
        many.sim.at(2 * LATE, restart)
        assert run(many).result == "Complete"
        many.close()
    assert commits[0] > 0
    assert len(opened) >= 5
    assert newest[0] == commits[0] < newest[-1]


def test_a_process_that_waits_for_its_turn_ends_when_it_is_told_to(world: World) -> None:
    waiting: list[ShardProcess] = []

    def stop() -> None:
        process = waiting[0]
        assert process.alive
        assert process.shard is None
        process.do(process.stopping.set)

    world.sim.at(DURING, lambda: waiting.append(world.start_shard(0)))
    world.sim.at(DURING + 3.0, stop)
    assert run(world).result == "Complete"
    assert waiting[0].exit_code is ExitCode.TRY_AGAIN


def test_a_shard_that_is_told_to_stop_ends_its_sessions_and_another_goes_on(world: World) -> None:
    first = world.shards[0]
    world.sim.at(DURING, lambda: first.do(first.stopping.set))
    assert run(world).result == "Complete"
    assert first.exit_code is ExitCode.TRY_AGAIN
    assert not first.peers
    assert world.shards[0] is not first


def test_a_commit_whose_process_dies_before_it_writes_a_line_is_on_the_tape(world: World) -> None:
    """Rule 29, from the moment after the entry is there; the next process fills its tape."""
    owed = list[tuple[int, int, int]]()

    def kill(name: str, data: bytes) -> None:
        if owed or world.sim.now < DURING or b'"Committed"' not in data or LOG not in name:
            return
        (entry,) = (each for each in json.loads(data)["records"] if each["kind"] == "Committed")
        owed.append((entry["slice"], entry["number"], entry["epoch"]))
        world.sim.after(0.0, restart)

    def restart() -> None:
        world.shards[0].kill("between entry and line")
        assert owed[0] not in world.tapes[0].lines
        world.shards[0] = world.start_shard(0, world.shards[0].pod, after=1.0)

    world.stores[0].on_create.append(kill)
    assert run(world).result == "Complete"
    assert owed[0] in world.tapes[0].lines


# Other checkers remember what the damaged entry said: its epoch, incarnation, version or objects.
STILL_HOLD = {"11 (progress)", "13 (law)", "21", "22"}


@pytest.mark.parametrize("seed", [0, 56, 88])
@pytest.mark.parametrize("back", range(0, 12, 3))
def test_a_shard_goes_on_after_damage_to_an_entry_of_its_log(seed: int, back: int) -> None:
    """Rule 22: nothing that a learner holds is lost, no tokens either, and commits go on."""
    with logs_into(None):
        checkers = tuple(each for each in ALL if each.rule in STILL_HOLD)
        assert len(checkers) == len(STILL_HOLD)
        world = World(replace(draw(seed), snapshot_entries=1000), checkers)

        def damage() -> None:
            world.shards[0].kill("damage")
            data, names = world.stores[0].data, world.stores[0].names(LOG)
            name = names[-1 - back % len(names)]
            damaged = bytearray(data[name])
            damaged[len(damaged) // 2] ^= 1
            data[name] = bytes(damaged)
            world.shards[0] = world.start_shard(0, world.shards[0].pod, after=1.0)

        world.sim.at(DURING + 2.0, damage)
        assert run(world).result == "Complete"
    world.close()


def test_a_store_holds_no_more_than_a_start_needs() -> None:
    with logs_into(None):
        world = World(replace(draw(QUIET), snapshot_entries=5), ALL)
        assert run(world).result == "Complete"
    for store, process in zip(world.stores, world.shards, strict=True):
        assert process.shard is not None
        history, every = process.shard.state.history, world.scenario.snapshot_entries
        assert set(store.names(OBJECTS)) == history.live_objects()
        assert history.commits > len(history.live_objects())
        assert len(store.names(LOG)) <= 3 * every + 1
    world.close()


def test_a_store_that_deletes_nothing_delays_no_entry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()

    def not_now(self: MemoryStore, name: str) -> None:
        tried.append(name)
        raise StoreUnavailable(name, "cannot be deleted", "try again")

    monkeypatch.setattr(MemoryStore, "delete", not_now)
    assert run(world).result == "Complete"
    assert tried


@pytest.mark.parametrize("seed", [646, 662])
def test_a_jump_of_a_learners_position_does_not_drive_the_tick_in_lock_step(seed: int) -> None:
    """Rule 8: else learners that were cut off jump after each other, to the end of the job."""
    assert simulate(seed).result == "Complete"


@pytest.mark.parametrize("seed", [587, 1097, 1253, 1265, 1523, 1715])
def test_who_is_away_or_dies_while_a_lost_store_is_taken_back_breaks_no_rule(seed: int) -> None:
    """Numbers that nobody names (4), a holder that comes back or leaves, a finished process."""
    assert simulate(seed).result == "Complete"
