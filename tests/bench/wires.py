"""Held-out loss by number format, with production's codecs, merge and outer step.

In tests/: python -m bench.wires [--pairs UP/DOWN...] [--merge Mean] [--out FILE] [--json FILE]

All learners are in one process and take part in every merge, and nothing is late: two runs of one
seed differ in the number formats alone. What is sent is captured, encoded, examined, merged, moved
and adopted `overlap` ticks later by the functions of transport and shard. Each finished run is one
JSON line in FILE of `--out`, and a run that is there already is not made again.

With `int2+feedback` up a learner keeps what the format has left out of an offer, and adds it to the
slice's next one (error feedback, which Atoll does not have). The first pair is the base.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, Slice, build_layout
from atoll_protos.job.run_file import Merge, Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import Wire, base_encoding, encoding_of
from atoll_syncer.model.round import momentum
from atoll_syncer.model.slices import SliceTensors, round_master
from atoll_syncer.numbers.arrivals import Arrived, examine
from atoll_syncer.numbers.commit import advance, recipe
from atoll_syncer.numbers.workers import Workers
from atoll_worker.model.parameters import travelling
from bench import results
from bench.table import show
from bytegpt import data
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT, Size
from bytegpt.train import BETAS, GRADIENT_NORM_MAX, WEIGHT_DECAY, TrainOptions, warmup_then_cosine

SIZES: Mapping[str, Mapping[str, int]] = {
    "0.14M": {"layers": 2, "heads": 4, "width": 72, "context": 32},
    "0.8M": {"layers": 4, "heads": 4, "width": 128, "context": 32},
}
PAIRS = ("bf16/bf16", "int4/bf16", "int2/bf16", "int2/int4")  # up and down
FEEDBACK = "+feedback"
LEARNERS, FRAGMENTS, OVERLAP, BATCH = 3, 4, 2, 8
HELDOUT_BYTES = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One run."""

    pair: str
    merge: str
    size: str
    seed: int
    merges: int  # of each fragment
    period: int
    parameters: int
    loss: float  # of the last version, nats per byte
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, int, int, int]:
        return self.pair, self.merge, self.size, self.seed, self.merges, self.period


class Learner:
    """A model with its optimizer and data; `slices` are its values in the layout's order."""

    def __init__(self, size: Size, seed: int, number: int, steps: int, text: data.Text) -> None:
        self.left_out: dict[int, arrays.Array] = {}  # of the last offer of each slice
        self.model = ByteGPT(size, seed=seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=TrainOptions().learning_rate,
            betas=BETAS,
            weight_decay=WEIGHT_DECAY,
        )
        self.schedule = LambdaLR(self.optimizer, warmup_then_cosine(steps))
        self.batches = data.Batches(
            text=text.shard(number, LEARNERS),
            seed=seed,
            slot=f"region-{number}-0",
            batch=BATCH,
            context=size.context,
        )
        self.flat = {
            each.spec.name: each.tensor.detach().view(-1).numpy() for each in travelling(self.model)
        }

    def step(self, number: int) -> None:
        self.model.loss(self.batches.at(number)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM_MAX)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def captured(self, layout: Layout, owned: Slice) -> arrays.Array:
        names = [(layout.tensors[p.tensor].name, p.start, p.element_count) for p in owned.pieces]
        return np.concatenate([self.flat[name][at : at + n] for name, at, n in names])

    def adopt(self, layout: Layout, owned: Slice, base: arrays.Base) -> None:
        for p in owned.pieces:
            values = base.part(range(p.offset, p.offset + p.element_count))
            self.flat[layout.tensors[p.tensor].name][p.start : p.start + p.element_count] = values


class Shard:
    """All slices of a model, with versions as a shard and its learners hold them."""

    def __init__(
        self, layout: Layout, sync: Sync, steps: int, first: Learner, *, feedback: bool
    ) -> None:
        self.layout, self.sync, self.steps, self.workers = layout, sync, steps, Workers(1)
        self.feedback = feedback
        self.merges = dict.fromkeys(range(FRAGMENTS), 0)
        self.states = {}
        for owned in layout.slices:
            master = first.captured(layout, owned)
            base = arrays.empty_packed(base_encoding(sync.wire_down), owned.form)
            round_master(master, base)
            state = SliceTensors(master=master, momentum=np.zeros_like(master), base=base)
            self.states[owned.fragment] = state

    def offered(self, learner: Learner, owned: Slice) -> Arrived:
        """What a learner sends of a slice, as it arrives."""
        encoding = encoding_of(self.sync.wire_up)
        theta = learner.captured(self.layout, owned)
        change = arrays.difference(self.states[owned.fragment].base, theta)
        if self.feedback:
            change += learner.left_out.get(owned.fragment, arrays.F32.type(0))
        head = pb.Transfer(offer=pb.Offer(slice=owned.fragment), encoding=encoding)
        sent = arrays.pack(change, encoding, owned.form)
        offer = examine(self.layout, 0, head, sent, self.workers)
        exact, coded = change[: owned.form.exact], change[owned.form.exact :]
        exact -= offer.values.exact
        coded -= arrays.decode(offer.values.coded, encoding, np.empty_like(coded))
        learner.left_out[owned.fragment] = change
        return offer

    def merge(self, owned: Slice, offers: Sequence[Arrived], *, last: bool = False) -> arrays.Base:
        """The next version, as a learner makes it of what is published."""
        number, state = owned.fragment, self.states[owned.fragment]
        made = advance(
            state,
            offers,
            [1.0] * len(offers),
            recipe(self.layout, owned, self.sync),
            self.workers,
            momentum=momentum(self.sync, self.merges[number], self.steps),
            last=last,
        )
        if made.difference is not None:
            wire = encoding_of(self.sync.wire_down)
            again = arrays.moved(state.base, made.difference, wire)
            assert again.data == made.base.data, "rule 17"
        self.merges[number] += 1
        self.states[number] = SliceTensors(
            master=state.master, momentum=state.momentum, base=made.base
        )
        return made.base


def measure(
    pair: str, merge: Merge, size: str, seed: int, merges: int, period: int, text: data.Text
) -> Found:
    """Train, and measure the last version."""
    begun, steps = time.monotonic(), merges * period
    up, down = map(Wire, pair.replace(FEEDBACK, "").split("/"))
    sync = Sync(
        fragments=FRAGMENTS,
        period=period,
        overlap=OVERLAP,
        merge=merge,
        wire_up=up,
        wire_down=down,
    )
    learners = [Learner(Size(**SIZES[size]), seed, n, steps, text) for n in range(LEARNERS)]
    specs = [each.spec for each in travelling(learners[0].model)]
    layout = build_layout(specs, FRAGMENTS, 1)
    shard = Shard(layout, sync, steps, learners[0], feedback=FEEDBACK in pair)
    coming: dict[tuple[int, int], arrays.Base] = {}  # by slice, by tick of its adoption
    everyone(learners, layout, shard)
    for tick in range(1, steps + 1):
        for learner in learners:
            learner.step(tick - 1)
        for owned in layout.slices:
            if base := coming.pop((owned.fragment, tick), None):
                for learner in learners:
                    learner.adopt(layout, owned, base)
            if (tick - owned.fragment * period // FRAGMENTS) % period == 0 and tick < steps:
                offers = [shard.offered(learner, owned) for learner in learners]
                coming[owned.fragment, tick + OVERLAP] = shard.merge(owned, offers)
    for owned in layout.slices:
        offers = [shard.offered(learner, owned) for learner in learners]
        shard.merge(owned, offers, last=True)
    everyone(learners, layout, shard)
    model = learners[0].model
    windows = data.windows(
        text.heldout(), context=SIZES[size]["context"], byte_count_max=HELDOUT_BYTES
    )
    return Found(
        pair=pair,
        merge=merge,
        size=size,
        seed=seed,
        merges=merges,
        period=period,
        parameters=sum(each.numel() for each in model.parameters()),
        loss=heldout_loss(model, windows),
        seconds=time.monotonic() - begun,
    )


def everyone(learners: Sequence[Learner], layout: Layout, shard: Shard) -> None:
    """All learners take the newest version of each slice."""
    for owned in layout.slices:
        for learner in learners:
            learner.adopt(layout, owned, shard.states[owned.fragment].base)


def options() -> argparse.Namespace:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--pairs", nargs="+", default=PAIRS, help="formats up/down")
    found.add_argument("--merge", type=Merge, choices=Merge, default=Merge.RADIAL_DIRECTIONAL)
    found.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--merges", type=int, default=16)
    found.add_argument("--period", type=int, default=16)
    found.add_argument("--out", type=Path, help="each run as a JSON line; runs in it are kept")
    results.option(found)
    return found.parse_args()


def main() -> None:
    """Run and print."""
    given = options()
    torch.set_num_threads(1)
    lines = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    found = [Found(**json.loads(line)) for line in lines]
    done, text = {each.key for each in found}, data.read()
    for size in given.sizes:
        for seed in range(given.seeds):
            for pair in given.pairs:
                key = (pair, given.merge, size, seed, given.merges, given.period)
                if key in done:
                    continue
                found.append(measure(*key, text))
                line = json.dumps(asdict(found[-1])) + "\n"
                sys.stderr.write(line)
                if given.out:
                    with given.out.open("a") as file:
                        file.write(line)
    figures = []
    for size in given.sizes:
        keys = [
            (pair, given.merge, size, seed, given.merges, given.period)
            for pair in given.pairs
            for seed in range(given.seeds)
        ]
        figures += report([each for key in keys for each in found if each.key == key], size)
    about = f"{given.seeds} seeds: the mean; then the mean, the least and the most."
    results.publish(given, figures, about=about)


def report(found: Sequence[Found], size: str) -> list[results.Figure]:
    """Means with ranges; what is subtracted is of the same seed."""
    first = found[0]
    base = {each.seed: each.loss for each in found if each.pair == first.pair}
    rows: list[tuple[Any, ...]] = []
    figures = []
    for pair in dict.fromkeys(each.pair for each in found):
        runs = [each for each in found if each.pair == pair and each.seed in base]
        more = [100 * (each.loss / base[each.seed] - 1) for each in runs]
        loss, spread = statistics.mean(each.loss for each in runs), (min(more), max(more))
        extra = f"{statistics.mean(more):+.2f}% ({spread[0]:+.2f}% to {spread[1]:+.2f}%)"
        rows.append((pair, f"{loss:.4f}", extra, statistics.mean(x.seconds for x in runs)))
        figures.append(results.Figure(what=f"{size}, {pair}: loss", values=[loss]))
        if pair != first.pair:
            values = [statistics.mean(more), *spread]
            what = f"{size}, {pair}: over {first.pair}"
            figures.append(results.Figure(what=what, values=values, unit="%"))
    show(
        f"{size}: {first.parameters:,} parameters, {LEARNERS} learners, {first.merges} merges of"
        f" each fragment, period {first.period}: held-out nats per byte, mean over seeds",
        ("up/down", "loss", f"over {first.pair}", "seconds"),
        rows,
    )
    return figures


if __name__ == "__main__":
    main()
