"""What it does to the loss whom a round waits for, at equal time: real training in virtual time.

In tests/: python -m bench.waiting_loss [--arm NAME]... [--cell FLEET=LINK]... [--seed N]...

As bench.waiting, with a byte model of 33 thousand parameters in each learner, batches of its own
and AdamW. Production's shard merges what its rules say, in the bits of the wire. The loss is that
of the newest versions when the time is over, which is the same for all arms; in nats per byte of
held-out text. `left out`: offers that the merge refused as outliers (rule 12).
"""

import argparse
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, Slice
from atoll_protos.job.run_file import RunFile, Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32, Array, Base
from atoll_protos.transfer.codecs import encoding_of
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed
from atoll_syncer.numbers.values import TensorValues
from atoll_worker.link.messages import Tick
from atoll_worker.model.parameters import travelling
from bench.results import Figure, option, publish
from bench.table import show
from bench.waiting import ARMS, FLEETS, STEP_SECONDS, Fleet, scenario, slow_links
from bytegpt import data
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT, Size
from bytegpt.train import BETAS, GRADIENT_NORM_MAX, WEIGHT_DECAY, warmup_then_cosine
from sim.learner_process import LearnerProcess
from sim.scenario import Scenario
from sim.shard_process import ShardProcess
from sim.simulate import logs_into
from sim.symbols import Difference, Key, Work
from sim.watch import Watcher
from sim.world import World

SIZE = Size(layers=2, heads=4, width=32, context=32)
BATCH = 8
RATE = 3e-3
HELDOUT_BYTES = 1 << 17
CELLS = (
    ("equal", 130),
    ("one 3 x slower", 130),
    ("18% apart, one link 2 x slower", 130),
    ("18% apart, one link 3 x slower", 130),
)
TEXT = cache(data.read)


class Model:
    """A byte model: the parameters of one learner, and its optimizer."""

    def __init__(self, job: RunFile, slot: str, ticks: int) -> None:
        text = TEXT().shard(job.slots.index(slot), len(job.slots))
        self.tick, self.model = 0, ByteGPT(SIZE, seed=job.seed)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(
            parameters, lr=RATE, betas=BETAS, weight_decay=WEIGHT_DECAY
        )
        self.share = warmup_then_cosine(ticks)
        self.batches = data.Batches(
            text=text, seed=job.seed, slot=slot, batch=BATCH, context=SIZE.context
        )

    def step(self, cursor: int) -> None:
        """One optimizer step, at the rate of the job's tick."""
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * self.share(self.tick)
        self.model.loss(self.batches.at(cursor)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM_MAX)
        self.optimizer.step()
        self.optimizer.zero_grad()


def run_of(model: ByteGPT, layout: Layout, owned: Slice) -> list[tuple[slice, Array]]:
    """Where the pieces of a slice lie in it, and views of the parameters that they are."""
    tensors = {place.spec.name: place.tensor.view(-1).numpy() for place in travelling(model)}
    return [
        (
            slice(piece.offset, piece.offset + piece.element_count),
            tensors[layout.tensors[piece.tensor].name][piece.start : piece.stop],
        )
        for piece in owned.pieces
    ]


def captured(model: ByteGPT, layout: Layout, owned: Slice) -> Array:
    """A copy of the parameters of a slice, f32[n]."""
    theta: Array = np.empty(owned.element_count, F32)
    for span, values in run_of(model, layout, owned):
        theta[span] = values
    return theta


def adopt(model: ByteGPT, layout: Layout, owned: Slice, base: Base) -> None:
    """Overwrite the parameters of a slice."""
    for span, values in run_of(model, layout, owned):
        values[:] = base.part(span)


class TrainingLearner(LearnerProcess):
    """A learner that trains at its steps."""

    world: "TrainingWorld"

    def __init__(self, world: "TrainingWorld", slot: str, uid: str, instance: str) -> None:
        super().__init__(world, slot, uid, instance)
        self.mine = Model(world.run_file, slot, world.ticks)

    def finish_step(self) -> None:
        if not self.stands_still:
            self.mine.step(self.training.cursor)
        super().finish_step()

    def drain(self) -> tuple[list[tuple[int, int, int]], list[Key]]:
        for command in self.training.inbox:
            if isinstance(command, Tick):
                self.mine.tick = command.tick
        adopted, keys = super().drain()
        layout, model = self.world.layout, self.mine.model
        for shard, fragment, number in adopted:
            base = self.world.bases[fragment, number]
            adopt(model, layout, layout.slice(shard, fragment), base)
        for key in keys:
            theta = self.regions[key].theta
            if theta is not None and theta.work is not None:
                self.world.captured[theta.work] = captured(model, layout, layout.slice(*key))
        return adopted, keys


class TrainingWorld(World):
    """One shard, whose real values follow what the simulated one does with symbols."""

    learner_kind = TrainingLearner

    def __init__(self, job: Scenario, ticks: int) -> None:
        self.ticks, self.captured = ticks, dict[Work, Array]()
        self.values_here = TensorValues.allocate(job.layout, 0, job.run_file.sync)
        self.bases: dict[tuple[int, int], Base] = {}
        self.left_out = 0
        self._seed(job)
        super().__init__(job, (Merges,))

    def _seed(self, job: Scenario) -> None:
        values, model = self.values_here, ByteGPT(SIZE, seed=job.run_file.seed)
        for owned in job.layout.shard_slices(0):
            head = pb.Transfer(seed=pb.Seed(slice=owned.fragment), encoding=pb.F32)
            payload = arrays.pack(captured(model, job.layout, owned), pb.F32, owned.form)
            values.keep(0, owned.fragment, values.examine(head, payload))
        for making in values.begin_seed(StoreSeed(0), "run", 1):
            making.compute()
            self._committed(making.origin.slice)

    def _committed(self, fragment: int) -> None:
        self.values_here.committed(fragment)
        head = self.values_here.slices[fragment].head
        assert head is not None
        self.bases[fragment, head.number] = head.base

    def merge(self, effect: MergeOffers, offers: tuple[Difference | None, ...]) -> None:
        """As the shard's threads do."""
        values, owned = self.values_here, self.layout.slice(0, effect.slice)
        sync = self.run_file.sync
        for part, offer in zip(effect.participants, offers, strict=True):
            assert offer is not None, f"{part} was staged"
            assert offer.theta.work is not None, f"{part} has work"
            theta = self.captured.pop(offer.theta.work)
            change = arrays.difference(self.bases[effect.slice, part.base], theta)
            encoding = encoding_of(sync.wire_up)
            head = pb.Transfer(offer=pb.Offer(slice=effect.slice), encoding=encoding)
            payload = arrays.pack(change, encoding, owned.form)
            name = Stage(part.slot, part.incarnation, effect.slice, part.capture)
            values.stage(name, values.examine(head, payload))
        making = values.begin_merge(effect, "run", 1)
        making.compute()
        self.left_out += len(making.found.left_out)
        self._committed(effect.slice)

    def loss(self) -> float:
        """Of the newest versions, in nats per byte of held-out text."""
        model = ByteGPT(SIZE, seed=0)
        for owned in self.layout.shard_slices(0):
            head = self.values_here.slices[owned.fragment].head
            assert head is not None
            adopt(model, self.layout, owned, head.base)
        text = TEXT().heldout()
        windows = data.windows(text, context=SIZE.context, byte_count_max=HELDOUT_BYTES)
        return heldout_loss(model, windows)


class Merges(Watcher):
    """Does with real values what a shard does with symbols."""

    world: TrainingWorld

    def merging(self, shard: ShardProcess, effect: MergeOffers, offers: Any) -> None:
        self.world.merge(effect, offers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One run: nats per byte, tokens of all learners."""

    loss: float
    tokens: int
    left_out: int


def trained(sync: Sync, link: int, fleet: Fleet, ticks: int, seed: int) -> Trained:
    """So many ticks of a learner at usual speed; see bench.waiting.played."""
    one = scenario(sync, fleet, ticks, seed)
    layout = one.run_file.layout([each.spec for each in travelling(ByteGPT(SIZE, seed=seed))])
    one = replace(one, layout=layout, tokens_per_step=BATCH * SIZE.context)
    with logs_into(None):
        world = TrainingWorld(one, ticks)
        try:
            slow_links(world, fleet, link)
            world.sim.run(ticks * STEP_SECONDS, lambda: False)
            return Trained(
                loss=world.loss(),
                tokens=sum(each.training.tokens for each in world.all_learners),
                left_out=world.left_out,
            )
        finally:
            world.close()


def main() -> None:
    """Print one table for each cell: by seed, and what is subtracted is of the same seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--cell", action="append", help="FLEET=LINK, in percent of the overlap")
    parser.add_argument("--ticks", type=int, default=480)
    parser.add_argument("--seed", action="append", type=int)
    option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = given.seed or (1, 2, 3)
    cells = [each.rpartition("=")[::2] for each in given.cell or ()]
    figures: list[Figure] = []
    for fleet, link in [(name, int(share)) for name, share in cells] or CELLS:
        rows, first = [], dict[int, float]()
        for arm in given.arm or ("K = 1, limit Overlap", "K = 1"):
            runs = [trained(ARMS[arm], link, FLEETS[fleet], given.ticks, seed) for seed in seeds]
            losses = [each.loss for each in runs]
            if first:
                over = [loss - first[seed] for seed, loss in zip(seeds, losses, strict=True)]
                figures.append(
                    Figure(
                        what=f"{fleet}; link {link}%; {arm}",
                        values=[min(over), max(over)],
                        unit="nats",
                    )
                )
            first = first or dict(zip(seeds, losses, strict=True))
            rows.append(
                (
                    arm,
                    *(
                        f"{loss:.3f} ({loss - first[seed]:+.3f})"
                        for seed, loss in zip(seeds, losses, strict=True)
                    ),
                    f"{statistics.mean(losses):.4f}",
                    statistics.mean(each.tokens for each in runs),
                    sum(each.left_out for each in runs),
                )
            )
        columns = ("arm", *(f"seed {seed}" for seed in seeds), "mean", "tokens", "left out")
        show(f"{fleet}, link {link}%", columns, rows)
        sys.stdout.flush()
    about = "Virtual time. Loss above that of the first arm: least and most of the seeds."
    publish(given, figures, about=about)


if __name__ == "__main__":
    main()
