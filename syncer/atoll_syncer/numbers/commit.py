"""The arithmetic of one commit: merge, outer step and rounding, in a shard and in a replay.

`advance` is a function of the slice's tensors, the offers, their weights and the step's momentum
alone: no time, no randomness, no order of arrival. So a replay gives the same bits (rule 29).

All three steps run block by block, so that each block is read from memory once. With a wire of
f32 or bf16 the new base is the master, rounded. With an integer wire it is the old base plus the
decoded difference (rule 17): receivers that hold the old base add the difference and get exactly
these bits, and all others get the base itself. Averaged buffers take the mean itself, and their
base is the master, in f32, on every wire (rule 18).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, Slice
from atoll_protos.job.run_file import Merge, Sync
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import Array, Base
from atoll_protos.transfer.codecs import Form, Wire, base_encoding
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.model.slices import SliceTensors, round_master
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.merge import radial_directional, squared_norm, weighted_mean
from atoll_syncer.numbers.outer import nesterov_step
from atoll_syncer.numbers.workers import Scratch, Workers, blocks

SURELY_FINITE = 1e37  # far enough below f32's largest for sums and for rounding to bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What turns a slice's state and offers into the next version."""

    spans: tuple[range, ...]  # one for each piece
    radial: tuple[bool, ...]  # for each piece: RDA, else weighted mean
    form: Form  # its exact values take the mean itself, without the outer optimizer
    learning_rate: float  # of the outer optimizer
    wire_down: Wire
    final: pb.Encoding  # of the last version's base: F32 or that of all others

    @property
    def element_count(self) -> int:
        return self.form.element_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A new base and, on an integer wire, the bytes that lead to it from the one before.

    Those bytes are the exact values, whole, and the encoded difference of the others (rule 17).
    """

    base: Base
    difference: Buffer | None = None


def recipe(layout: Layout, owned: Slice, sync: Sync) -> Recipe:
    return Recipe(
        spans=tuple(range(p.offset, p.offset + p.element_count) for p in owned.pieces),
        radial=tuple(
            sync.merge is Merge.RADIAL_DIRECTIONAL and layout.tensors[p.tensor].merge == "rda"
            for p in owned.pieces
        ),
        form=owned.form,
        learning_rate=sync.outer_learning_rate,
        wire_down=sync.wire_down,
        final=layout.final_encoding(owned, base_encoding(sync.wire_down)),
    )


def advance(
    state: SliceTensors,
    offers: Sequence[Arrived],
    weights: Sequence[float],
    recipe: Recipe,
    workers: Workers,
    *,
    momentum: float,
    last: bool = False,
) -> Published:
    """Merge the offers, in the order given, into the next version.

    One pass over the slice, block by block: merge, outer step and rounding meet in the cache.
    Writes to the state's master and momentum. Without offers nothing moves.
    """
    encoding = recipe.final if last else base_encoding(recipe.wire_down)
    base = arrays.empty_packed(encoding, recipe.form)
    if not offers:
        if encoding == arrays.encoding_of(state.base):
            return Published(base=state.base)
        round_master(state.master, base)
        return Published(base=base)
    rounds = encoding == pb.F32 or not codecs.BY_WIRE[recipe.wire_down].scaled

    def step(block: range, delta: Array, scratch: Scratch) -> None:
        part = slice(block.start, block.stop)
        master, exact = state.master[part], block.stop <= recipe.form.exact
        if exact:
            np.subtract(master, delta, out=master)  # base - mean(base - theta) = mean(theta)
        else:
            nesterov_step(
                master,
                state.momentum[part],
                delta,
                scratch.one[: len(block)],
                learning_rate=recipe.learning_rate,
                momentum=momentum,
            )
        if rounds or exact:
            base.part(part)[:] = master

    deltas = [offer.values for offer in offers]
    for number, span in enumerate(recipe.spans):
        if recipe.radial[number]:
            norms = [offer.norms[number] for offer in offers]
            radial_directional(deltas, weights, norms, span, workers, step)
        else:
            weighted_mean(deltas, weights, span, workers, step)
    if rounds:
        return Published(base=base)
    return Published(base=base, difference=_add_difference(state, base, recipe, workers))


def advance_finite(
    state: SliceTensors,
    offers: Sequence[Arrived],
    weights: Sequence[float],
    recipe: Recipe,
    workers: Workers,
    *,
    momentum: float,
    last: bool = False,
) -> tuple[Published, frozenset[int]]:
    """`advance`, and a look at its result (rule 12): master, momentum and base stay finite.

    Offers are finite, but their sum may not be: one of 1e36 is beyond what a step can take. Those
    are left out, the longest first, until the rest gives a finite version; with none left the
    version has the old values. Also returns the places of those left out.

    No offer of a healthy training is near that bound, so the look costs one pass over the state
    and needs no copy of it. Only when a bound says that the result may leave f32 the state is
    copied, to be put back.
    """
    if _surely_finite(state, offers, recipe, workers, momentum):
        made = advance(state, offers, weights, recipe, workers, momentum=momentum, last=last)
        return made, frozenset()
    master, buffer = state.master.copy(), state.momentum.copy()
    longest_last = sorted(range(len(offers)), key=lambda n: (max(offers[n].norms), n))
    for count in range(len(offers), -1, -1):
        kept = sorted(longest_last[:count])  # the order of the sum stays
        chosen = [offers[n] for n in kept], [weights[n] for n in kept]
        made = advance(state, *chosen, recipe, workers, momentum=momentum, last=last)
        found = (state.master, state.momentum, made.base.exact, made.base.coded)
        if all(bool(np.isfinite(each).all()) for each in found):
            return made, frozenset(longest_last[count:])
        state.master[:], state.momentum[:] = master, buffer
    raise AssertionError("the version before was finite")


def _surely_finite(
    state: SliceTensors,
    offers: Sequence[Arrived],
    recipe: Recipe,
    workers: Workers,
    momentum: float,
) -> bool:
    """Whether a bound on all values after the step is finite: no element exceeds its vector."""
    delta = max((max(offer.norms) for offer in offers), default=0.0)
    buffer = momentum * _length(state.momentum, workers) + delta
    step = max(1.0, recipe.learning_rate) * (delta + momentum * buffer)
    return _length(state.master, workers) + step < SURELY_FINITE and buffer < SURELY_FINITE


def _length(values: Array, workers: Workers) -> float:
    """|v|, read once; not finite when an element is not."""

    def squares(block: range, _: Scratch) -> float:
        return squared_norm(values[block.start : block.stop])

    return math.sqrt(math.fsum(workers.each(blocks(range(values.size)), squares)))


def _add_difference(
    state: SliceTensors, base: Base, recipe: Recipe, workers: Workers
) -> memoryview:
    """Fill the coded values of `base`: bf16(old base + decoded difference to the master).

    Returns the bytes that a receiver makes the base from; see Published.
    """
    codec, form = codecs.BY_WIRE[recipe.wire_down], recipe.form
    data = np.empty(form.byte_count(codec.encoding), np.uint8)
    data[: form.exact_bytes] = arrays.byte_view(base.exact)
    coded, master = data[form.exact_bytes :], state.master[form.exact :]

    def encode(block: range, scratch: Scratch) -> None:
        part = slice(block.start, block.stop)
        old, change = scratch.sums[: len(block)], scratch.one[: len(block)]
        np.copyto(old, state.base.coded[part])
        np.subtract(master[part], old, out=change)
        arrays.encode_part(coded, codec, form.coded, part, change, scratch.other)
        decoded = arrays.decode_part(coded.data, codec, form.coded, part, change)
        base.coded[part] = np.add(old, decoded, out=old)

    workers.each(blocks(range(form.coded)), encode)
    return data.data
