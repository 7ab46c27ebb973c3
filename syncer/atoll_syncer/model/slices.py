"""The values of one slice between two commits; the only ones of `model` that need numpy."""

from dataclasses import dataclass

from atoll_protos.transfer.arrays import Array, Base


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTensors:
    """A commit writes to master and momentum, never to `base`, the published value (rule 16)."""

    master: Array  # f32[n]
    momentum: Array  # f32[n]
    base: Base


def round_master(master: Array, base: Base) -> None:
    """Fill a base that is not the sum of differences: the master f32[n] in the base's types."""
    base.exact[:], base.coded[:] = master[: base.form.exact], master[base.form.exact :]
