"""What the benchmarks share: interleaved timing, medians, a plain table."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(cases: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each case; every round runs all of them, so that noise hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to standard output."""
    cells = [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [title, *("  ".join(map(str.rjust, row, widths)) for row in [columns, *cells])]
    sys.stdout.write("\n".join(lines) + "\n\n")
