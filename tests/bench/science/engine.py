"""One run: production's programs in virtual time, with real tensors and real training.

Production's are the rules of shard and learner, transport, frames and codecs, the shard's values
(merge, outer step, rounding), the log, and how a learner captures and adopts. The simulation
(`sim`) is network, clock, threads and stores. What is left to this module is the script's loop, and
how long a step takes: the experiment says so. Nothing here looks at a clock, so equal settings give
equal runs.
"""

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import torch

from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.arrays import F32
from atoll_syncer.model import roster as rounds
from atoll_syncer.numbers.values import TensorValues
from atoll_worker.errors import LearnerError
from atoll_worker.link import shared_memory
from atoll_worker.model.parameters import travelling
from atoll_worker.model.staging import DirectStaging
from atoll_worker.training.replica import Replica, TrainingOwner, state_of
from atoll_worker.transport.carrier import Numbers
from bench.science.setting import STEP_SECONDS, TIME, TOKENS, Away, Setting
from bench.science.training import DEVICE, Training, batches, data_parallel, loss, model_of
from bench.waiting import CLASSES, Counts
from bytegpt.model import ByteGPT
from sim.learner_process import LearnerProcess
from sim.scenario import Scenario, draw
from sim.shard_process import ShardProcess
from sim.simulate import logs_into
from sim.symbols import Key
from sim.world import World

QUIET: Final = 0  # a seed without faults
BEGIN_SECONDS: Final = 10.0  # of virtual time, until all train
END_SHARE: Final = 20  # times the job's length, after which it is stuck


class TensorShard(ShardProcess):
    """A shard with production's values."""

    tensors: TensorValues | None = None

    def _make_values(self, layout: Layout, number: int, sync: Sync) -> TensorValues:
        self.tensors = TensorValues.allocate(layout, number, sync)
        return self.tensors


class TensorLearner(LearnerProcess):
    """A learner that trains; its training process and its transport share real memory."""

    world: "TensorWorld"

    def make_numbers(self) -> Numbers:
        world, setting = self.world, self.world.setting
        self.script = Training(setting)
        self.batches = batches(setting, world.run_file.slots.index(self.slot))
        plan = shared_memory.memory_plan(world.layout, world.run_file.sync)
        descriptor = shared_memory.create()
        shared_memory.resize(descriptor, plan)
        memory = shared_memory.attach(plan, descriptor)
        os.close(descriptor)
        nothing: Any = None  # no process is beside it
        owner = TrainingOwner(child=nothing, memory=memory, staging=DirectStaging())
        self.side = Replica(
            places=travelling(self.script.model, world.run_file.sync.mean_patterns),
            state=state_of(world.layout),
            owner=owner,
        )
        self.side.capture_seed()
        return Numbers(memory, world.run_file.sync, world.layout)

    def finish_step(self) -> None:
        if not self.stands_still:
            self.script.step(self.batches.at(self.training.cursor), self.world.progress(self))
        super().finish_step()

    def drain(self) -> tuple[list[tuple[int, int, int]], list[Key]]:
        """As production obeys commands; copies are done at once."""
        training, side, owner = self.training, self.side, self.side.owner
        assert owner is not None
        inbox, training.inbox = training.inbox, []
        side.state.proceed = training.proceed
        try:
            work = side.state.apply(inbox, side)
        except LearnerError as error:
            self.fail(error.exit_code, str(error))
            return [], []
        for key in work.captured:
            owner.end_capture(key)
        training.start, training.proceed = side.state.start, side.state.proceed
        training.finished = side.state.finished
        return work.adopted, work.captured


class TensorWorld(World):
    """A job of such learners, and who of them is there when."""

    learner_kind = TensorLearner
    shard_kind = TensorShard

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        super().__init__(scenario(setting), (Counts,))
        for slot in self.run_file.slots:
            last = setting.last_way if slot == self.run_file.slots[-1] else 1.0
            seconds = setting.way * last * STEP_SECONDS
            self.weather.slow[slot] = seconds, seconds
        for each in setting.away:
            if each.begins:  # else it begins late
                at = BEGIN_SECONDS + each.begins * STEP_SECONDS
                self.sim.at(at, partial(self._goes_away, each))

    def _goes_away(self, away: Away) -> None:
        slot = self.run_file.slots[away.learner]
        learner = self.learners[slot]
        if away.killed:
            learner.kill("its machine is gone")
        else:
            learner.leave("its machine is wanted elsewhere")
        if away.ends is not None:
            seconds = (away.ends - away.begins) * STEP_SECONDS
            self.learners[slot] = self.start_learner(slot, f"{slot}-again", seconds)

    def progress(self, learner: TensorLearner) -> float:
        """How much of the job is done, 0 to 1: what a script asks `Learner.progress` for."""
        setting = self.setting
        if setting.ends == TIME:
            share = (self.sim.now - BEGIN_SECONDS) / (setting.steps * STEP_SECONDS)
        elif setting.ends == TOKENS:
            share = self.trained()[1] / setting.tokens
        else:
            share = learner.side.state.tick / setting.steps
        return min(1.0, max(0.0, share))

    def model(self) -> ByteGPT:
        """With the newest values of the shard: what an export has."""
        (values,) = [
            each.tensors
            for each in self.all_shards
            if isinstance(each, TensorShard) and each.tensors is not None
        ]
        model = model_of(self.setting)
        named = dict(model.named_parameters())
        with torch.no_grad():
            for fragment, array in values.exported().items():
                for piece in self.layout.slice(0, fragment).pieces:
                    flat = named[self.layout.tensors[piece.tensor].name].view(-1)
                    part = array[piece.offset : piece.offset + piece.element_count].astype(F32)
                    flat[piece.start : piece.stop] = torch.from_numpy(part)
        return model.to(DEVICE)


def scenario(setting: Setting) -> Scenario:
    """A quiet network, and a store that answers at once: what is measured is the experiment's."""
    drawn, job = draw(QUIET), setting.job()
    specs = [each.spec for each in travelling(model_of(setting), job.sync.mean_patterns)]
    paces = setting.paces or (1.0,) * setting.learners
    late = {
        job.slots[each.learner]: BEGIN_SECONDS + (each.ends or 0.0) * STEP_SECONDS
        for each in setting.away
        if not each.begins
    }
    return replace(
        drawn,
        seed=setting.seed,
        run_file=job,
        layout=job.layout(specs),
        step_seconds={
            slot: STEP_SECONDS * pace for slot, pace in zip(job.slots, paces, strict=True)
        },
        step_spread=(1.0 - setting.spread, 1.0 + setting.spread),
        tokens_per_step=setting.step_tokens,
        disk_seconds=0.002,
        merge_seconds=0.01,
        examine_seconds=0.01,
        read_seconds=0.01,
        delay_seconds=0.002,
        slice_seconds=0.0,
        leaves_when_finished=False,
        object_store=False,
        snapshot_entries=100,
        observer=False,
        fresh=True,
        faults=(),
        late_seconds=late,
        lanes_share=0.0,
        ranks={},
        lengths=(),
    )


def contiguous(parts: Any, bins: int, parts_min: int) -> Any:
    """In the order of names, cut where the sizes are about equal: one layer after the other."""
    ordered = sorted(parts, key=lambda part: part.tensor)
    whole, size = sum(-part.minus_elements for part in ordered), 0
    filled: list[list[Any]] = [[] for _ in range(bins)]
    for part in ordered:
        filled[size * bins // whole].append(part)
        size -= part.minus_elements
    assert all(len(each) >= parts_min for each in filled), "a part is larger than a fragment"
    return filled


def in_turn(parts: Any, bins: int, parts_min: int) -> Any:
    """In the order of names, one to each fragment in turn."""
    ordered = sorted(parts, key=lambda part: part.tensor)
    return [ordered[number::bins] for number in range(bins)]


def eighth(sync: Sync, merges: int, steps: float) -> float:
    """The rule of `auto` with R / 8 in place of sqrt(R)."""
    return ROOT(sync, merges, round(sync.period * (steps / sync.period / 8) ** 2))


ROOT: Final = rounds.momentum
MODELS: Final[Mapping[str, tuple[str, Callable[..., Any]]]] = {  # what stands for production's
    "layers": ("atoll_protos.job.layout._spread", contiguous),
    "tensors in turn": ("atoll_protos.job.layout._spread", in_turn),
    "R/8": ("atoll_syncer.rules.rounds.momentum", eighth),
}


@contextmanager
def modelled(name: str) -> Iterator[None]:
    """A part of production that an experiment replaces."""
    with ExitStack() as stack:
        if name:
            target, stand_in = MODELS[name]
            stack.enter_context(patch(target, stand_in))
        yield


def train(setting: Setting) -> dict[str, float]:
    """Make one run; what it has come to. AssertionError if the job does not end."""
    torch.set_num_threads(1)
    begun = resource.getrusage(resource.RUSAGE_SELF)
    if setting.sync is None:
        tokens = setting.steps * setting.learners * setting.step_tokens
        found = {"loss": data_parallel(setting), "tokens": float(tokens), "busy": 1.0}
    else:
        with modelled(setting.model), logs_into(None):
            found = decoupled(setting)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {**found, "cpu_seconds": spent.ru_utime - begun.ru_utime}


def decoupled(setting: Setting) -> dict[str, float]:
    world = TensorWorld(setting)
    length = setting.steps * STEP_SECONDS
    try:
        by_time = setting.ends == TIME
        end = BEGIN_SECONDS + length * (1 if by_time else END_SHARE)
        ended = world.sim.run(end, lambda: world.complete)
        assert ended != by_time, "the job has not ended, or before its time"
        return {"loss": loss(world.model(), setting), **counted(world)}
    finally:
        world.close()


def counted(world: TensorWorld) -> dict[str, float]:
    """What became of the work. Shares of the tokens are those of what was settled."""
    (counts,) = world.watchers.watchers
    assert isinstance(counts, Counts)
    settled = sum(counts.tokens.values())
    present = counts.stepped_at
    return {
        "tokens": float(world.trained()[1]),
        "virtual_steps": (max(present.values()) - min(counts.began_at.values())) / STEP_SECONDS,
        "busy": sum(counts.step_seconds.values())
        / sum(present[name] - counts.began_at[name] for name in present),
        "commits": float(counts.rounds),
        "offers_merged": counts.merged / max(1, counts.offers),
        **{name: counts.tokens[name] / max(1, settled) for name in CLASSES},
    }
