"""Learners of several processes, what becomes of these and of lanes, and who stands still."""

import random
from collections.abc import Mapping, Sequence

from sim.drawn_claims import FAULTS_BEGIN, FAULTS_END, Fault, faults_of

RANKS_SHARE, OF_RANKS_SHARE = 0.15, 0.6  # of the seeds, and of the learners of one
RANK_KINDS = ("kill rank", "freeze rank")  # of a rank that is not the head
LANE_FAULTS_SHARE, STILL_SHARE = 0.3, 0.25  # of the seeds
SILENT_SECONDS = (0.5, 3.0, 8.0, 15.0, 40.0)


def draw_ranks(slots: Sequence[str], seed: int) -> dict[str, int]:
    """How many ranks the learners have that have several; in most seeds none has."""
    rng = random.Random(f"{seed}/ranks")
    if rng.random() >= RANKS_SHARE:
        return {}
    return {slot: rng.choice((2, 2, 3)) for slot in slots if rng.random() < OF_RANKS_SHARE}


def draw_rank_faults(ranks: Mapping[str, int], seed: int) -> tuple[Fault, ...]:
    """What becomes of ranks that are not heads; heads meet what all learners meet."""
    if not ranks or seed % 8 == 0:
        return ()
    rng = random.Random(f"{seed}/rank faults")
    return tuple(
        Fault(
            at=rng.uniform(FAULTS_BEGIN, FAULTS_END),
            kind=rng.choice(RANK_KINDS),
            which=rng.randrange(1 << 16),
            seconds=rng.choice((0.5, 3.0, 8.0, 25.0)) * rng.uniform(0.5, 1.5),
        )
        for _ in range(rng.choice((1, 1, 2, 3)))
    )


def draw_lane_faults(seed: int) -> tuple[Fault, ...]:
    """What becomes of single lanes; some are silent for longer than a shard waits for them."""
    rng = random.Random(f"{seed}/lane faults")
    if seed % 8 == 0 or rng.random() >= LANE_FAULTS_SHARE:
        return ()
    kinds = ["silent lane"] * rng.choice((1, 2, 4))
    return faults_of(rng, kinds, lambda kind: rng.choice(SILENT_SECONDS) * rng.uniform(0.9, 1.1))


def draw_still(seed: int) -> tuple[Fault, ...]:
    """Training processes that stand still while their transports live."""
    rng = random.Random(f"{seed}/still")
    if seed % 8 == 0 or rng.random() >= STILL_SHARE:
        return ()
    count, times = rng.choice((1, 2)), (3.0, 8.0, 20.0, 40.0)
    return faults_of(
        rng, ["still training"] * count, lambda kind: rng.choice(times) * rng.uniform(0.9, 1.1)
    )
