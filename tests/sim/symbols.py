"""Tensors as symbols: values that say themselves which work is in them, and from where."""

import hashlib
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from atoll_protos.job.layout import Slice
from atoll_protos.transfer.arrays import F32, Array

Key: TypeAlias = tuple[int, int]  # (shard, fragment): a slice
Norms: TypeAlias = tuple[range, ...]  # of which elements of a slice each norm was taken


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """The units of work of steps first..last (both in) of one instance, for one slice."""

    slot: str
    incarnation: int
    key: Key
    first: int
    last: int

    @property
    def steps(self) -> int:
        return self.last - self.first + 1

    def units(self) -> list[tuple[str, int, int, int, int]]:
        """Each unit of work by name."""
        return [
            (self.slot, self.incarnation, *self.key, step)
            for step in range(self.first, self.last + 1)
        ]


Works: TypeAlias = tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A version's value: everything ever merged into it, by way of its parents.

    `exact`: a last version, which has all bits whatever the wire.
    """

    digest: str
    parent: "Value | None" = field(default=None, repr=False)
    merged: Works = ()
    exact: bool = False

    def lineage(self) -> "list[Value]":
        """This value and all before it, newest first."""
        values, each = [], self
        while True:
            values.append(each)
            if each.parent is None:
                return values
            each = each.parent


def master_of(digest: str, count: int) -> Array:
    """What an object holds of a value whose elements are looked at: f32[count], any bits."""
    return np.frombuffer(hashlib.shake_128(digest.encode()).digest(4 * count), F32)


def momentum_of(digest: str, merges: int, count: int) -> Array:
    """Likewise, f32[count]: of so many merges; zeros before the first."""
    return master_of(f"{digest}/{merges}", count) if merges else np.zeros(count, F32)


def seed_value(key: Key, what: str) -> Value:
    """Version 0: the job's seed fixes it, no matter which learner sends it."""
    return Value(hashlib.sha256(f"{key}/{what}".encode()).hexdigest()[:16])


def norms_of(owned: Slice) -> Norms:
    """What the merge needs of an offer: one norm of each tensor, over all that the slice has."""
    return tuple(range(p.offset, p.offset + p.element_count) for p in owned.pieces)


def merge(parent: Value, works: Works, norms: tuple[Norms, ...], *, exact: bool = False) -> Value:
    """The next version, from works and the norms of each; without any work nothing moves."""
    if not works and exact == parent.exact:
        return parent
    text = f"{parent.digest}/{works!r}/{norms!r}{'/exact' if exact else ''}"
    return Value(hashlib.sha256(text.encode()).hexdigest()[:16], parent, works, exact)


@dataclass(frozen=True, slots=True)
class Theta:
    """A learner's own parameters of a slice: a base that it adopted, and its steps since."""

    base: Value
    work: Work | None  # none before the first step


@dataclass(frozen=True, slots=True)
class Change:
    """What a Publish carries on a wire of differences: only the holder of `before` can add it."""

    before: Value
    after: Value


@dataclass(frozen=True, slots=True)
class Difference:
    """An offer's payload as the edge formed it: the base it holds less the captured value."""

    base: Value
    theta: Theta
    norms: Norms = ()  # once a shard has examined it


Symbol: TypeAlias = Value | Change | Difference
