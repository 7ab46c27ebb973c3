"""One seed from its first event to Final: `python -m sim.simulate SEED` prints its trace.

The simulation runs the production programs in virtual time, under faults that a seed fixes, while
checkers watch. It finds what no unit test looks for: orders of events that no author thought of.

What is production's, unchanged:
- of a shard: `serving.serve_shard` (waiting for its turn, start, stop), `Driver`, `Background`, the
  gRPC service with its sessions, frames and checksums, `RegistrarClient`, `Journal`, `Collector`,
  and all rules;
- of a learner: `Transport`, `ShardClient` with its outbox, and all rules.

What is simulated, each in a module of its own:
- `clock`   the heap of events, and processes that can be killed and paused
- `loop`    asyncio's event loop and threads, one loop for each process
- `rpc`, `channel`  grpc.aio: servers, channels, streams, flow control
- `network` connections that are slow or silent, break, do not come through, or damage values
- `memory_store`  the store of a shard, which can be away or lose its answers
- `symbols`, `shard_values`, `learner_process.SymbolicNumbers`  values that name the work in them
- `payloads` their bytes on the wire, which also say where in the slice they lie
- `training_process`  the user's loop: steps, adoptions, captures
- `rank`, `rank_group`, `rank_processes`  the same on each rank of a learner of several processes,
  and what torch.distributed does between them
- `world`   the job: which process runs where, and who starts one again
- `scenario`, `faults`  what a seed means, and what goes wrong; topics of them have modules of their
  own (`drawn_claims`, `drawn_processes`, `store_faults`, `damage`)
- `second_world`  a run of another form, which begins with the newest checkpoint of the first

How it goes: `Simulation.run` takes the earliest event off the heap and calls it. An event of a
process goes through `Process.do`, which runs the process' event loop until nothing is ready: so a
task of production code goes on within the event that it waited for, and what it awaits next is
another event. Time passes only between events. Threads compute at one moment and answer at a later
one. Messages are serialized, cross the network in drawn time, and wait in the other process.

Nothing looks at a real clock, and every draw comes from a generator that the seed and a purpose
name. So a seed is a whole run: replaying it shows the same events in the same order, also after a
change elsewhere in the drawing. The digest of the trace proves it (test_same_trace).

Of a learner of several ranks, production's are `Control` (which commands at which boundary),
`JobState` (in which order), `Counts` (what a step counts) and `Peers` (who is lost).

What a seed may contain beside faults: up to 4 shards and 8 learners, learners of 2 or 3 ranks or
lanes, all wires, lengths in ticks or in tokens, an evaluator, learners and observers of a former
run that dial again, words of the operator that come late, examinations of offers that take a
second, slices that are read back after others are merged, Ends that cannot be written for seconds,
so that an ended session's messages go on to arrive, and links on which a slice takes 20 to 60 s,
longer than the limits of 30 s. A fault comes at a time, or at the moment at which a program
performs an effect of a kind: a learner dies as the shard begins to write its seed.

Checkers (`checkers`, called by `watch`) look at what crosses an edge: entries in a store, messages,
effects, values that a learner adopts. They do not ask the programs whether all is well. Each has at
least one planted bug that it must find (`plants`). Those in `checkers/values`, `rounds`, `start`
and `ranks` say what must never happen; those in `checkers/progress` what must happen, and by when:
a due slice calls, a round closes, a slice whose quorum is alive commits within 2H ticks. An
exception anywhere ends the seed, and so does a run that does not reach Final after the faults have
stopped.
"""

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import structlog

from atoll_protos.transfer import frames
from atoll_syncer.rules import shut_out
from sim import faults, second_world
from sim.checkers.every import ALL
from sim.drawn_claims import FAULTS_END
from sim.scenario import SLOW_SECONDS, Scenario, draw
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World

SLOW_CHUNK_BYTES = 48


class LivenessError(AssertionError):
    """Faults have stopped, and yet the run does not reach its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a seed went."""

    seed: int
    digest: str
    events: int
    seconds: float  # virtual
    result: str  # Complete, or Failed where a store was lost

    def then(self, second: "Outcome") -> "Outcome":
        """With the run that has begun with a checkpoint of this one."""
        assert second.result == "Complete"
        return replace(
            self,
            digest=self.digest + second.digest,
            events=self.events + second.events,
            seconds=self.seconds + second.seconds,
        )


def simulate(
    seed: int, checkers: tuple[type[Watcher], ...] = ALL, *, trace: list[str] | None = None
) -> Outcome:
    """Run one seed with faults, then without; raises AssertionErrors of all kinds."""
    scenario = draw(seed)
    chunk = SLOW_CHUNK_BYTES if scenario.slow else frames.CHUNK_BYTES
    chunks = constant(frames, "CHUNK_BYTES", chunk)  # on a slow link many have to come
    grace = constant(shut_out, "GRACE_SECONDS", grace_of(scenario))
    with logs_into(trace), chunks, grace:
        world = World(scenario, checkers, keep_trace=trace is not None)
        try:
            outcome = run_and_close(world, trace)
            if (parent := second_world.left_by(world)) is None:
                return outcome
            scenario = second_world.draw(scenario, parent)
            world = World(scenario, checkers, keep_trace=trace is not None, parent=parent)
            return outcome.then(run_and_close(world, trace))
        except Exception as error:
            error.add_note(f"seed {seed}; trace: PYTHONPATH=tests python -m sim.simulate {seed}")
            raise


def grace_of(scenario: Scenario) -> float:
    """How long this seed's shards wait for who has left the list."""
    return scenario.grace_seconds


@contextmanager
def constant(module: ModuleType, name: str, value: float) -> Iterator[None]:
    """A constant of production is another one, for a job that is smaller and shorter than real."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def logs_into(trace: list[str] | None) -> Iterator[None]:
    """Production's log lines stand in a trace that is kept (not in its digest), else nowhere."""

    def keep(logger: Any, level: str, line: MutableMapping[str, Any]) -> str:
        if trace is not None:
            error = line.pop("exc_info", None)
            fields = " ".join(f"{key}={value}" for key, value in line.items() if key != "event")
            trace.append(f"{'log':26s} {line['event']} {fields}")
            if isinstance(error, BaseException):
                trace.extend(traceback.format_exception(error))
        raise structlog.DropEvent

    before = structlog.get_config()
    level = logging.INFO if trace is not None else logging.CRITICAL
    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def run_and_close(world: World, trace: list[str] | None) -> Outcome:
    if trace is not None:
        world.sim.lines = trace
    try:
        return run(world)
    finally:
        world.close()


def run(world: World) -> Outcome:
    """Faults, then the liveness phase."""
    scenario, sim = world.scenario, world.sim
    faults.schedule(world)
    may_fail = world.loses_a_store

    def over() -> bool:  # asked after each event
        return world.complete or (may_fail and world.failed)

    if not sim.run(FAULTS_END, over):
        faults.stop(world)
        sim.run(FAULTS_END + quiet_seconds_max(world), over)
    if not over():
        raise LivenessError(f"at {sim.now:.0f} s: {state(world)}")
    world.watchers.tell("run_ended")
    result = "Complete" if world.complete else "Failed"
    return Outcome(
        seed=scenario.seed, digest=sim.digest, events=sim.events, seconds=sim.now, result=result
    )


def quiet_seconds_max(world: World) -> float:
    """From the last fault to Final: all ticks at the slowest learner's pace, and some time-outs."""
    paces = (
        world.scenario.step_seconds[p.slot] * p.slowness for p in world.all_learners if p.alive
    )
    slowest, scenario = max(paces, default=0.0), world.scenario
    transfers = 12 * len(scenario.layout.slices) * max(SLOW_SECONDS) if scenario.slow else 0.0
    return 120.0 + 2.0 * slowest * scenario.steps + transfers


def state(world: World) -> str:
    """What does not move."""
    shards = [shard_state(p, world.scenario.steps) for p in world.shards]
    learners = [
        f"{p.name} t_m {p.training.t_m}, {'finished' if p.training.finished else 'training'}"
        f"{'' if p.alive else ', dead'}"
        for p in world.learners.values()
    ]
    return "; ".join(shards + learners)


def shard_state(process: ShardProcess, steps: int) -> str:
    if process.shard is None:
        return f"{process.name} not serving"
    state = process.shard.state
    ended = "ended" if state.history.ended else "open"
    rounds = {
        number: (len(each.complete), sorted(each.called), each.reason)
        for number, each in state.rounds.open.items()
    }
    return (
        f"{process.name} tick {state.clock.tick} of {steps}, {ended}, "
        f"{state.failed or 'well'}, rounds {rounds}"
    )


def main() -> None:
    """Print the trace of one seed, and how it ended."""
    seed, lines = int(sys.argv[1]), list[str]()
    try:
        ending = str(simulate(seed, trace=lines))
    except Exception as error:
        ending = "".join(traceback.format_exception(error))
    sys.stdout.write("\n".join([str(draw(seed)), *lines, ending, ""]))


if __name__ == "__main__":
    main()
