"""The published tables beside ours, in numbers: what of docs/replication.md needs no simulation.

In tests/: python -m bench.published [--json FILE]
"""

import argparse
from collections.abc import Iterator

from bench.results import Figure, option, publish
from paper.bandwidth import data_parallel, planned
from paper.chips import FITTED, expected, uptime
from paper.published import CHIPS, GOODPUT, METHODS, PAIR_5B, PAIR_8_SITES, TABLE_4
from paper.utilisation import table


def goodput() -> Iterator[Figure]:
    """In per cent, for each number of chips: published, ours. 0 learners: not elastic."""
    beside = []
    for learners, theirs in GOODPUT.items():
        ours = [
            100 * expected(FITTED, chips / max(1, learners), elastic=learners > 0).trained
            for chips in CHIPS
        ]
        pairs = [*zip(theirs, ours, strict=True)]
        beside += [abs(a - b) for a, b in pairs]
        yield Figure(what=f"goodput, M = {learners}", values=[x for pair in pairs for x in pair])
    yield Figure(what="goodput, most beside the published", values=[max(beside)], unit="points")
    least = min(uptime(FITTED, chips, learners) for learners in (4, 8, 16) for chips in CHIPS)
    yield Figure(what="uptime, M from 4 on, least", values=[100 * least], unit="%")


def bandwidth() -> Iterator[Figure]:
    """Gbit/s: published, ours."""
    of_5b = data_parallel(5e9, 1.0, 0.9), planned(5 * 10**9, 1.0)[1]
    of_10b = data_parallel(1e10, 1.0, 0.9), planned(10**10, 1.0)[1] / 4
    pairs = {"5B": (PAIR_5B, of_5b), "8 sites": (PAIR_8_SITES, of_10b)}
    for name, (theirs, ours) in pairs.items():
        for what, *values in zip(("data-parallel", "one fragment"), theirs, ours, strict=True):
            yield Figure(what=f"{name}, {what}", values=values, unit="Gbit/s")
    int4 = planned(10**10, 1.0, wire={"up": "int4"})[1]
    yield Figure(what="8 sites, one fragment with int4", values=[int4], unit="Gbit/s")


def utilisation() -> Iterator[Figure]:
    """Gbit/s by utilisation; where ours is another one, the published comes first."""
    equal = 0
    for size, rows in table().items():
        for method, ours, theirs in zip(METHODS, rows, TABLE_4[size], strict=True):
            cells = [(a,) if a == b else (a, b) for a, b in zip(theirs, ours, strict=True)]
            equal += sum(len(each) == 1 for each in cells)
            values = [x for each in cells for x in each]
            yield Figure(what=f"utilisation, {size}, {method}", values=values)
    yield Figure(what="utilisation, equal cells", values=[equal], unit="cells")


def main() -> None:
    """Print and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    option(parser)
    given = parser.parse_args()
    figures = [*goodput(), *bandwidth(), *utilisation()]
    publish(given, figures, about="Formulas and `tests/paper`: no machine plays a part.")


if __name__ == "__main__":
    main()
