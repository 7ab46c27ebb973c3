"""What an offer costs a learner: copies of its slice, passes over it, and a loop that waits.

In tests/: python -m bench.offers [--json FILE]
"""

import argparse
import asyncio
import math
import os
import random
import time
from collections.abc import Callable

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_protos.job.run_file import Sync  # noqa: E402
from atoll_protos.job.schedule import ahead, next_due  # noqa: E402
from atoll_protos.transfer import arrays  # noqa: E402
from atoll_protos.transfer.arrays import BF16, F32, Array  # noqa: E402
from atoll_protos.transfer.codecs import Form  # noqa: E402
from bench.results import Figure, option, publish  # noqa: E402
from bench.table import interleaved, show  # noqa: E402

TICK_SECONDS = 0.002  # of the task that shows how long the loop is blocked
TICKS = 20_000
STEPS = (0.5, 1.0, 1.7, 3.0, 6.0)  # in ticks
NOISE = 0.1  # of a step's time, both ways


def three_passes(base: arrays.Base, theta: Array) -> Array:
    """As it was: a copy of the base, a second one in f32, and the subtraction."""
    held = base.coded.copy().astype(F32)
    return np.subtract(held, theta, out=held)


def longest_stop(work: Callable[[], object], *, in_thread: bool) -> float:
    """Seconds for which a task that wants to run every TICK_SECONDS did not."""

    async def scenario() -> float:
        longest, over = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not over:
                before = time.perf_counter()
                await asyncio.sleep(TICK_SECONDS)
                longest = max(longest, time.perf_counter() - before - TICK_SECONDS)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(10 * TICK_SECONDS)
        longest = 0.0
        if in_thread:
            await asyncio.to_thread(work)
        else:
            work()
        await asyncio.sleep(2 * TICK_SECONDS)
        over = True
        await watching
        return longest

    return asyncio.run(scenario())


def every_boundary(
    sync: Sync, tick: float, ticks_per_second: float, step_seconds: float
) -> list[int]:
    """As it was: at every boundary, what comes due in two steps and a tick."""
    whole = math.floor(tick)
    until = whole + 1 + math.ceil(2 * step_seconds * ticks_per_second)
    until = min(until, whole + (sync.period + 1) // 2)
    return [p for p in range(sync.fragment_count) if next_due(sync, p, whole) <= until]


def copies(
    sync: Sync,
    asked: Callable[[Sync, float, float, float], list[int]],
    step_ticks: float,
    seed: int = 1,
) -> tuple[float, float]:
    """Copies of a slice for one due tick, and the share of Calls that are answered at once.

    The learner's steps take `step_ticks` ticks and 10% noise; the clock is even.
    """
    draw = random.Random(seed)
    now, count, at_once, dues = 0.0, 0, 0, 0
    held: list[int] = []
    while now < TICKS:
        wanted = asked(sync, now, 1.0, step_ticks)
        after = now + step_ticks * draw.uniform(1 - NOISE, 1 + NOISE)
        for tick in range(math.floor(now) + 1, math.floor(after) + 1):
            for fragment in range(sync.fragment_count):
                if next_due(sync, fragment, tick - 1) == tick:
                    dues += 1
                    if fragment in held:
                        at_once += 1
                    elif fragment not in wanted:
                        wanted.append(fragment)  # for the Call itself
        now, held = after, wanted
        count += len(held)
    return count / dues, at_once / dues


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=62_500_000)
    parser.add_argument("--rounds", type=int, default=5)
    option(parser)
    arguments = parser.parse_args()
    count: int = arguments.elements
    theta = np.random.default_rng(0).standard_normal(count, F32)
    base = arrays.packed(arrays.byte_view(-theta.astype(BF16)), pb.BF16, Form(0, count))
    work: dict[str, Callable[[], object]] = {
        "three passes": lambda: three_passes(base, theta),
        "one pass": lambda: arrays.difference(base, theta),
    }
    seconds = interleaved(work, arguments.rounds)
    stops: dict[tuple[str, bool], float] = {
        (name, in_thread): longest_stop(one, in_thread=in_thread)
        for name, one in work.items()
        for in_thread in (False, True)
    }
    show(
        f"Forming a difference: {count:,} elements in bf16, one thread of {os.cpu_count()}",
        ("case", "ms", "of three passes", "loop stops, ms", "in a thread, ms"),
        [
            (
                name,
                took * 1e3,
                took / seconds["three passes"],
                stops[name, False] * 1e3,
                stops[name, True] * 1e3,
            )
            for name, took in seconds.items()
        ],
    )
    sync = Sync(fragments=24, period=24, overlap=2)
    columns = "copies", "at once"
    rules = {"every boundary": every_boundary, "ahead, once": ahead}
    found = {name: [copies(sync, rule, step) for step in STEPS] for name, rule in rules.items()}
    show(
        "Copies of a slice for one offer (P = H = 24, 10% noise), and Calls answered at once",
        (
            "ticks in a step",
            *(f"{name}, {what}" for name in rules for what in columns),
        ),
        [
            (step, *(value for rule in found.values() for value in rule[at]))
            for at, step in enumerate(STEPS)
        ],
    )
    figures = [
        Figure(
            what=f"{rule}, {column}: least and most", values=[k * min(of), k * max(of)], unit=unit
        )
        for rule, cells in found.items()
        for column, of, k, unit in zip(
            columns, zip(*cells, strict=True), (1, 100), ("", "%"), strict=True
        )
    ]
    one = 1e3 * seconds["one pass"], 1e3 * stops["one pass", True]
    figures += [
        Figure(what="a difference is formed", values=one[:1], unit="ms"),
        Figure(what="the loop's longest stop, in a thread", values=one[1:], unit="ms"),
    ]
    publish(arguments, figures, about=f"P = H = 24, steps of {STEPS} ticks; {count:,} elements.")


if __name__ == "__main__":
    main()
