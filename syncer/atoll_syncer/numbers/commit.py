"""The arithmetic of one commit: merge, outer step and rounding, in a shard and in a replay.

`advance` is a function of the slice's tensors, the offers, their weights and the step's momentum
alone: no time, no randomness, no order of arrival. So a replay gives the same bits (rule 29).

All three steps run block by block, so that each block is read from memory once. With a wire of
f32 or bf16 the new base is the master, rounded. With an integer wire it is the old base plus the
decoded difference (rule 17): receivers that hold the old base add the difference and get exactly
these bits, and all others get the base itself. Averaged buffers take the mean itself, and their
base is the master, in f32, on every wire (rule 18).

Transfers that arrived whole: verified, and read block by block as f32 (rules 12, 25).

The payload stays in the encoding in which it came; the merge decodes it block by block. Here one
pass looks at all values and finds three things at once: that they are finite, the norms that the
merge needs, and, for a held version, its digest. Only after that do the rules count a transfer.

Which offers of a round are outliers: finite, and far longer than usual (rule 12).

A loss spike, a wrong learning rate or a flipped bit of an exponent makes a difference many times
longer than those before it. Merged with its weight it moves the model further than all others
together. EDiT (arXiv 2412.07210) leaves such offers out by a z-test on running means of
norms; a ratio to medians needs no long past, and says what a person can check.

An offer is an outlier when its norm is beyond `limit` times both

- the median of its own slot's last norms in this slice: a slot whose steps are longer for good
  reasons, such as a larger share of the data, is none;
- the median of the others' newest norms in this slice: what all do is no outlier, as in a warm-up
  or after a change of the data.

Who has fewer than PAST_MIN norms, or no others, is not judged. Norms of what was left out are not
kept, so who stays far out stays out. The past is this process's alone, and decides no more than
which offers a commit names: a replay needs none of it.

A version that a learner holds, and that nothing but its claim shows to be lost, is measured alike
(rule 47): from the master here it may be as far as `limit` times the usual step, for each version
between them. The momentum says how long a step is, in each process: with eta its learning rate, a
step is at most `eta (|d| + mu |m|)`, where m has taken in d, and so about `2 eta |m|`. Without a
momentum nothing is known of the steps, and the values' own length stands for it: zeros are not
judged. What the rounding to bf16 may change is no distance.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, Slice
from atoll_protos.job.run_file import Merge, Sync
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import F32, Array, Base
from atoll_protos.transfer.codecs import BLOCK_MAX, Form, Wire, base_encoding
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.model.log import SliceTensors, round_master
from atoll_syncer.numbers.merge import (
    mean_coefficients,
    nesterov_step,
    norm,
    radial_directional,
    squared_norm,
    weighted_mean,
)
from atoll_syncer.numbers.workers import Scratch, Workers, blocks

ONE: Final = np.full(1, 1, F32)
NAMES_MAX: Final = 4  # of tensors whose values are not finite


class TransferError(Exception):
    """A transfer that must not count, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Values of one slice as they came over the wire (codecs.Form)."""

    data: Buffer
    encoding: pb.Encoding
    form: Form
    exact: Array  # f32 [form.exact], over `data`
    coded: memoryview  # the bytes of the others

    def read(self, span: range, scratch: Array) -> Array:
        """See merge.Delta: in place where it came in f32, else in `scratch`."""
        floats = self.floats(span)
        if floats is not None:
            return arrays.widened(floats, scratch[: len(span)])
        levels, scales, place = self.unscaled(span, scratch)
        np.multiply(levels, scales[:, None], out=levels)
        return scratch[place]

    def unscaled(self, span: range, out: Array) -> tuple[Array, Array, slice]:
        """See merge.Delta."""
        floats = self.floats(span)
        if floats is not None:
            values = out[None, : len(span)]
            np.copyto(values, floats)
            return values, ONE, slice(len(span))
        codec, count = codecs.of(self.encoding), self.form.coded
        first, stop = span.start - self.form.exact, span.stop - self.form.exact
        begin = first // codec.block * codec.block
        part = slice(begin, min(-(-stop // codec.block) * codec.block, count))
        levels = out[: part.stop - begin]
        scales = arrays.levels_part(self.coded, codec, count, part, levels)
        blocks = out[: scales.size * codec.block].reshape(-1, codec.block)
        return blocks, scales, slice(first - begin, stop - begin)

    def floats(self, span: range) -> Array | None:
        """See merge.Delta. The span lies in one piece, so its values are either exact or coded."""
        before = self.form.exact
        if span.stop <= before:
            return self.exact[span.start : span.stop]
        assert span.start >= before, (span, self.form)
        if self.encoding not in arrays.FLOATS:
            return None
        floats = arrays.from_bytes(self.coded, self.encoding)
        return floats[span.start - before : span.stop - before]


def encoded(data: Buffer, encoding: pb.Encoding, form: Form) -> Encoded:
    """Values over `data`, without a copy; its length must be that of the encoding."""
    exact, coded = form.cut(data)
    return Encoded(
        data=data,
        encoding=encoding,
        form=form,
        exact=arrays.from_bytes(exact, pb.F32),
        coded=coded,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A transfer whose length, checksum and values are right.

    `norms` are the |v| of an offer's pieces, in the slice's order; empty for other transfers.
    """

    head: pb.Transfer
    values: Encoded
    norms: tuple[float, ...] = ()

    @property
    def byte_count(self) -> int:
        return len(self.values.data)


def examine(
    layout: Layout, shard: int, head: pb.Transfer, payload: Buffer, workers: Workers
) -> Arrived:
    """Verify a whole transfer; heavy, for a thread. Raises TransferError.

    The rules have checked credit, size and base version before. Here the values are checked: all
    finite, and for a Held the digest of the version that it claims to be.
    """
    owned = layout.slice(shard, _slice_number(head))
    _check_size(owned, head, payload)
    values = encoded(payload, head.encoding, owned.form)
    spans = (range(p.offset, p.offset + p.element_count) for p in owned.pieces)
    norms = tuple(norm(values, span, workers) for span in spans)
    if not all(map(math.isfinite, norms)):
        bad = [
            p.tensor for p, each in zip(owned.pieces, norms, strict=True) if not math.isfinite(each)
        ]
        names = ", ".join(dict.fromkeys(layout.tensors[each].name for each in bad[:NAMES_MAX]))
        more = ", ..." if len(bad) > NAMES_MAX else ""
        raise TransferError(f"slice {owned.fragment}: values are not finite: {names}{more}")
    if head.HasField("held"):
        claimed = head.held.version.version.digest
        found = codecs.digest(payload)
        if found != claimed:
            raise TransferError(f"slice {owned.fragment}: digest {found}, not {claimed}")
    return Arrived(head=head, values=values, norms=norms if head.HasField("offer") else ())


def _slice_number(head: pb.Transfer) -> int:
    """Return the slice that a learner's transfer names. Raises TransferError for any other kind."""
    match head.WhichOneof("kind"):
        case "offer":
            return head.offer.slice
        case "seed":
            return head.seed.slice
        case "held":
            return head.held.version.slice
    raise TransferError("this transfer is not an offer, a seed or a held version")


def _check_size(owned: Slice, head: pb.Transfer, payload: Buffer) -> None:
    """Check encoding and length against the slice; seeds and held versions are f32 or bf16."""
    if not head.HasField("offer") and head.encoding not in arrays.FLOATS:
        raise TransferError(f"slice {owned.fragment}: whole values must come as f32 or bf16")
    try:
        expected = owned.form.byte_count(head.encoding)
    except ValueError as error:
        raise TransferError(f"slice {owned.fragment}: {error}") from error
    if len(payload) != expected:
        raise TransferError(f"slice {owned.fragment}: {len(payload)} bytes, not {expected}")


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


PAST_MIN, PAST_MAX = 3, 9
ROUNDING: Final = 2.0**-8  # of a value, to bf16 and on both sides
SAMPLE_ELEMENTS: Final = 1 << 16  # of a slice, of which cosines are taken


class NormHistory:
    """The last norms of each slot's offers, by slice; for one thread."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # 0: nothing is an outlier
        self._past: dict[int, dict[str, deque[float]]] = {}  # by slice, by slot

    def outliers(self, slice_: int, norms: Mapping[str, float]) -> dict[str, str]:
        """Why, by slot, of those offers that are; the norms of all others are kept."""
        past = self._past.setdefault(slice_, {})
        newest = {slot: each[-1] for slot, each in past.items()} | dict(norms)
        found = dict[str, str]()
        for slot, size in norms.items():
            own = past.get(slot, ())
            others = [each for of, each in newest.items() if of != slot]
            if not self.limit or len(own) < PAST_MIN or not others:
                continue
            usual, theirs = median(own), median(others)
            if size > self.limit * usual and size > self.limit * theirs:
                found[slot] = (
                    f"an outlier: its norm of {size:.3g} is {_ratio(size, usual)} its usual one"
                    f" and {_ratio(size, theirs)} the others'"
                )
        for slot in norms.keys() - found.keys():
            past.setdefault(slot, deque(maxlen=PAST_MAX)).append(norms[slot])
        return found


def norm_of(offer: Arrived) -> float:
    """|v| of the whole offer."""
    return math.hypot(*offer.norms)


def too_far(
    held: Encoded, master: Array, momentum: Array, *, step_max: float, workers: Workers
) -> str:
    """Why a held version cannot be what steps from `master`, f32[n], lead to; empty if it can.

    `step_max` is how far all of them may lead, in lengths of the momentum, f32[n], or without one
    in lengths of the master.
    """

    def squares(block: range, scratch: Scratch) -> tuple[float, float, float]:
        part, moved = slice(block.start, block.stop), scratch.other[: len(block)]
        np.subtract(held.read(block, scratch.one), master[part], out=moved)
        return squared_norm(moved), squared_norm(momentum[part]), squared_norm(master[part])

    found = workers.each(blocks(range(held.form.exact, held.form.element_count)), squares)
    if not found:
        return ""  # averaged buffers alone
    moved, usual, length = (math.sqrt(math.fsum(each)) for each in zip(*found, strict=True))
    usual = usual or length
    if not usual or moved <= step_max * usual + ROUNDING * length:
        return ""
    return f"it is {moved / (step_max * usual):.3g} times as far from this shard's as it can be"


def cosines(offers: Sequence[Arrived], weights: Sequence[float]) -> list[float]:
    """Of each offer with the weighted mean of all, on SAMPLE_ELEMENTS values; 0 where one is 0."""
    form = offers[0].values.form
    first = form.exact if form.coded else 0  # a span has values of one kind
    span = range(first, min(form.element_count, first + SAMPLE_ELEMENTS))
    samples = [_sample(offer, span) for offer in offers]
    mean = np.zeros(len(span), np.float64)
    for share, sample in zip(mean_coefficients(weights), samples, strict=True):
        mean += share * sample
    lengths = [float(np.linalg.norm(sample)) * float(np.linalg.norm(mean)) for sample in samples]
    dots = [float(np.dot(sample, mean)) for sample in samples]
    return [dot / each if each else 0.0 for dot, each in zip(dots, lengths, strict=True)]


def _ratio(norm: float, usual: float) -> str:
    return f"{norm / usual:.0f} times" if usual else "more than"


def _sample(offer: Arrived, span: range) -> Array:
    scratch = np.zeros(len(span) + 2 * BLOCK_MAX, F32)  # also beyond the last whole block
    return offer.values.read(span, scratch).astype(np.float64)
