"""How much of the time a learner computes, by the bandwidth of its link: 2501.18512, section 3.1.

A step is a forward pass and a backward pass over L layers. The three kinds of node (forward, and
backward by activations, which the first layer has not, and then by parameters) take t / 3L each.
When a layer's gradients by parameters are there, a layer that is exchanged in this step joins the
queue of the link, which carries one layer after the other. Its bits are N b / L: each value is
counted once, as the published figures do.

What is awaited:
- data-parallel, DiLoCo, streaming: a layer's forward pass waits for that layer;
- overlapped: a fragment is adopted as a whole, between two steps, tau steps later.

All of it is computed for many bandwidths at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from paper.published import METHODS, UTILISATIONS

Seconds = NDArray[np.float64]  # for each bandwidth

PERIOD: Final = 100  # H
LAYERS_IN_FRAGMENT: Final = 3
GRID: Final = np.logspace(-1, 3, 50)  # Gbit/s: all published figures lie on it, 21% apart
FINE: Final = np.logspace(-1, 3, 49 * 40 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One of the published sizes."""

    parameters: float
    layers: int
    step_seconds: float  # published with one digit

    @property
    def fragments(self) -> int:
        return self.layers // LAYERS_IN_FRAGMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What is sent, and when: every `every` steps one of `fragments`, whose layers are strided."""

    bits: int  # of a value
    every: int  # steps
    fragments: int = 1
    overlap: int = 0  # tau, steps
    steps: int = 3 * PERIOD  # that are simulated

    def fragment(self, step: int) -> int | None:
        """The fragment that is sent after this step."""
        return step // self.every % self.fragments if step % self.every == 0 else None


MODELS: Final[Mapping[str, Model]] = {
    "1B": Model(parameters=1e9, layers=24, step_seconds=0.1),
    "10B": Model(parameters=1e10, layers=48, step_seconds=0.8),
    "100B": Model(parameters=1e11, layers=108, step_seconds=4.9),
}


def exchanges(model: Model) -> Mapping[str, Exchange]:
    """By method, in the order of METHODS.

    H / P is no whole number: 12.5, 6.25 and 2.8 steps. The published intervals of "11, 5 and 2
    steps" are the steps between two exchanges, so 12, 6 and 3 are from one to the next.
    """
    streaming = Exchange(bits=16, every=round(PERIOD / model.fragments), fragments=model.fragments)
    overlapped = replace(streaming, overlap=1)
    found = (
        Exchange(bits=16, every=1, steps=20),
        Exchange(bits=16, every=PERIOD),
        streaming,
        overlapped,
        replace(overlapped, bits=4),
    )
    return dict(zip(METHODS, found, strict=True))


def utilisation(model: Model, exchange: Exchange, gigabits: Seconds = GRID) -> Seconds:
    """Share of the time that is computation, for each bandwidth in Gbit/s."""
    layers, unit = model.layers, model.step_seconds / 3 / model.layers
    layer_seconds = model.parameters * exchange.bits / layers / (gigabits * 1e9)
    now, link = np.zeros_like(gigabits), np.zeros_like(gigabits)
    awaited: dict[int, tuple[int, Seconds]] = {}  # by layer: the step that waits, and until when
    for step in range(exchange.steps):
        if exchange.overlap:
            for layer in [n for n, (due, _) in awaited.items() if due <= step]:
                now = np.maximum(now, awaited.pop(layer)[1])
        for layer in range(layers) if awaited and not exchange.overlap else ():
            if layer in awaited:
                now = np.maximum(now, awaited.pop(layer)[1] - layer * unit)
        now = now + layers * unit
        fragment = exchange.fragment(step)
        for layer in reversed(range(layers)) if fragment is not None else ():
            if layer % exchange.fragments == fragment:
                ready = now + (2 * (layers - layer) - (layer == 0)) * unit
                link = np.maximum(link, ready) + layer_seconds
                awaited[layer] = step + 1 + exchange.overlap, link
        now = now + (2 * layers - 1) * unit
    for due, until in awaited.values():
        now = np.maximum(now, until) if due <= exchange.steps else now
    return exchange.steps * (3 * layers - 1) * unit / now


def threshold(shares: Seconds, least: float) -> int:
    """The index of the first bandwidth that reaches this utilisation."""
    return int(np.argmax(shares >= least))


def shown(gigabits: float) -> float:
    """As the published table writes it: rounded to two digits, then to one."""
    return float(f"{round(gigabits, 2):.1f}")


def interval(cell: float) -> tuple[float, float]:
    """What a published cell says: the utilisation is reached between these two, in Gbit/s.

    The table has the last point of the grid that does not reach the utilisation, not the first one
    that does: all 30 cells without streaming agree with that, and none with the other.
    """
    points = [n for n, gigabits in enumerate(GRID) if shown(float(gigabits)) == cell]
    return float(GRID[points[0]]), float(GRID[points[-1] + 1])


def table() -> Mapping[str, Sequence[tuple[float, ...]]]:
    """Our Table 4, in the form of `published.TABLE_4`."""
    return {
        size: [
            tuple(shown(float(GRID[threshold(shares, least) - 1])) for least in UTILISATIONS)
            for shares in (utilisation(model, each) for each in exchanges(model).values())
        ]
        for size, model in MODELS.items()
    }
