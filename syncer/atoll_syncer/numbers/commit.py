"""The arithmetic of one commit: merge, outer step and rounding, in a shard and in a replay.

`advance` is a function of the slice's tensors, the offers, their weights and the step's momentum
alone: no time, no randomness, no order of arrival. So a replay of the tape gives the same bits
(rule 29).

All three steps run block by block, so that each block is read from memory once. With a wire of
f32 or bf16 the new base is the master, rounded. With an integer wire it is the old base plus the
decoded difference (rule 17): receivers that hold the old base add the difference and get exactly
these bits, and all others get the base itself. Averaged buffers take the mean itself, and their
base is the master, in f32, on every wire (rule 18).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs, tensors
from atoll_protos.codecs import Form, Packed, Wire, base_encoding, encoding_of
from atoll_protos.layout import Layout, Slice
from atoll_protos.run import Merge, Sync
from atoll_syncer.model.slices import SliceTensors, round_master
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.merge import (
    BLOCK_ELEMENTS,
    Scratch,
    blocks,
    radial_directional,
    weighted_mean,
)
from atoll_syncer.numbers.outer import Outer, nesterov_step

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
        """Elements of the slice."""
        return self.form.element_count

    @property
    def sum_elements(self) -> int:
        """Elements that a Scratch for this slice must hold: its longest RDA tensor, or a block."""
        longest = (len(s) for s, radial in zip(self.spans, self.radial, strict=True) if radial)
        return max(BLOCK_ELEMENTS, *longest, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A new base and, on an integer wire, the bytes that lead to it from the one before.

    Those bytes are the exact values, whole, and the encoded difference of the others (rule 17).
    """

    base: Packed[torch.Tensor]
    difference: bytearray | None = None


def recipe(layout: Layout, owned: Slice, sync: Sync) -> Recipe:
    """The recipe of one slice."""
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
    scratch: Scratch,
    *,
    momentum: float,
    last: bool = False,
) -> Published:
    """Merge the offers, in the order given, into the next version.

    One pass over the slice, block by block: merge, outer step and rounding meet in the cache.
    Writes to the state's master and momentum. Without offers nothing moves.
    """
    encoding = recipe.final if last else base_encoding(recipe.wire_down)
    base = tensors.empty_packed(encoding, recipe.form)
    if not offers:
        if encoding == tensors.encoding_of(state.base):
            return Published(base=state.base)
        round_master(state.master, base)
        return Published(base=base)
    rounds = encoding == pb.F32 or not codecs.BY_WIRE[recipe.wire_down].scaled
    outer = Outer(learning_rate=recipe.learning_rate, momentum=momentum)
    for block, delta in _merged(offers, weights, recipe, scratch):
        part = slice(block.start, block.stop)
        exact = block.stop <= recipe.form.exact
        if exact:
            state.master[part].sub_(delta)  # base - mean(base - theta) = mean(theta)
        else:
            nesterov_step(state.master[part], state.momentum[part], delta, outer)
        if rounds or exact:
            base.part(part).copy_(state.master[part])
    if rounds:
        return Published(base=base)
    return Published(base=base, difference=_add_difference(state, base, recipe, scratch))


def advance_finite(
    state: SliceTensors,
    offers: Sequence[Arrived],
    weights: Sequence[float],
    recipe: Recipe,
    scratch: Scratch,
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
    if _surely_finite(state, offers, recipe.learning_rate, momentum):
        made = advance(state, offers, weights, recipe, scratch, momentum=momentum, last=last)
        return made, frozenset()
    master, buffer = state.master.clone(), state.momentum.clone()
    longest_last = sorted(range(len(offers)), key=lambda n: (max(offers[n].norms), n))
    for count in range(len(offers), -1, -1):
        kept = sorted(longest_last[:count])  # the order of the sum stays
        chosen = [offers[n] for n in kept], [weights[n] for n in kept]
        made = advance(state, *chosen, recipe, scratch, momentum=momentum, last=last)
        found = (state.master, state.momentum, made.base.exact, made.base.coded)
        if all(_is_finite(each) for each in found):
            return made, frozenset(longest_last[count:])
        state.master.copy_(master)
        state.momentum.copy_(buffer)
    raise AssertionError("the version before was finite")


def _surely_finite(
    state: SliceTensors, offers: Sequence[Arrived], learning_rate: float, momentum: float
) -> bool:
    """A bound on every value after the step: no element of a merge is longer than an offer."""
    delta = max((max(offer.norms) for offer in offers), default=0.0)
    buffer = momentum * _largest(state.momentum) + delta
    step = max(1.0, learning_rate) * (delta + momentum * buffer)
    return _largest(state.master) + step < SURELY_FINITE and buffer < SURELY_FINITE


def _largest(values: torch.Tensor) -> float:
    """The largest absolute value; NaN when there is one."""
    low, high = torch.aminmax(values)
    return max(-float(low), float(high))


def _is_finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def _merged(
    offers: Sequence[Arrived], weights: Sequence[float], recipe: Recipe, scratch: Scratch
) -> Iterator[tuple[range, torch.Tensor]]:
    """The merged difference, block by block, each piece by its own rule."""
    deltas = [offer.values for offer in offers]
    for number, span in enumerate(recipe.spans):
        if recipe.radial[number]:
            norms = [offer.norms[number] for offer in offers]
            yield from radial_directional(deltas, weights, norms, span, scratch)
        else:
            yield from weighted_mean(deltas, weights, span, scratch)


def _add_difference(
    state: SliceTensors, base: Packed[torch.Tensor], recipe: Recipe, scratch: Scratch
) -> bytearray:
    """Fill the coded values of `base`: bf16(old base + decoded difference to the master).

    Returns the bytes that a receiver makes the base from; see Published.
    """
    encoding, form = encoding_of(recipe.wire_down), recipe.form
    data = bytearray(form.byte_count(encoding))
    exact, whole = form.cut(data)
    exact[:] = tensors.byte_view(base.exact)
    master = state.master[form.exact :]
    for block in blocks(range(form.coded)):
        part = slice(block.start, block.stop)
        old = scratch.sums[: len(block)].copy_(state.base.coded[part])
        decoded = scratch.decoded[: len(block)]
        torch.sub(master[part], old, out=decoded)
        encoded = tensors.encode(decoded, encoding)
        base.coded[part].copy_(old.add_(tensors.decode(encoded, encoding, decoded)))
        _place(whole, encoded, block, form.coded, encoding)
    return data


def _place(
    whole: memoryview, part: bytearray, block: range, element_count: int, encoding: pb.Encoding
) -> None:
    """Copy the encoded block to where it lies in the encoded values: all scales come first."""
    scale_bytes = codecs.of(encoding).scale_bytes
    first, size = scale_bytes(block.start), scale_bytes(len(block))
    whole[first : first + size] = memoryview(part)[:size]
    before = codecs.encoded_size(block.start, encoding) - first  # levels of earlier blocks
    first = scale_bytes(element_count) + before
    whole[first : first + len(part) - size] = memoryview(part)[size:]
