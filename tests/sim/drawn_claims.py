"""What is said that is not so, and who is let in: drawn for the rules 5, 38, 39, 41 and 47."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from atoll_protos.job.run_file import Expected, Limit, ListedMachine, Region
from atoll_protos.names import slot_name
from atoll_syncer.rules.shut_out import GRACE_SECONDS

FAULTS_BEGIN, FAULTS_END = 2.0, 40.0
LIES_SEEDS = 16, 11  # modulus and rest
CLAIM_SEEDS = 32, (15, 28)  # three learners at least and K = 1; nothing else goes wrong
LIST_SEEDS = 32, (18, 20)  # of two regions, of which one leaves and comes back
MACHINE_SEEDS = 32, (24, 26)  # two learners at least, each on a machine; one is revoked
FALSE_NAME_SEEDS = 32, (13, 22)  # of jobs of two shards and learners at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something goes wrong at a time, with the world's `which`-th of its kind."""

    at: float
    kind: str
    which: int
    seconds: float
    effect: str = ""  # from `at` on, at the moment of the next one of this kind


def is_of(seed: int, seeds: tuple[int, tuple[int, ...]]) -> bool:
    """Whether a seed leaves one of the rests."""
    modulus, rests = seeds
    return seed % modulus in rests


def faults_of(
    rng: random.Random,
    kinds: Iterable[str],
    seconds: Callable[[str], float] = lambda kind: 0.0,
    end: float = FAULTS_END / 2,
) -> tuple[Fault, ...]:
    """One fault of each of these kinds, at any time before `end`."""
    return tuple(
        Fault(
            at=rng.uniform(FAULTS_BEGIN, end),
            kind=kind,
            which=rng.randrange(1 << 16),
            seconds=seconds(kind),
        )
        for kind in kinds
    )


def draw_lies(seed: int) -> tuple[Fault, ...]:
    """Learners that say what cannot be true, now and then."""
    modulus, rest = LIES_SEEDS
    if seed % modulus != rest:
        return ()
    rng = random.Random(f"{seed}/lies")
    return faults_of(rng, ["lie"] * rng.choice((2, 4, 8)))


def draw_claims(seed: int) -> tuple[Fault, ...]:
    """Learners that say that they are far ahead, or that they hold what never was."""
    if not is_of(seed, CLAIM_SEEDS):
        return ()
    rng, more = random.Random(f"{seed}/claims"), random.Random(f"{seed}/false versions")
    claims = faults_of(rng, ["claim"] * 6, lambda kind: rng.uniform(3.0, 8.0))
    versions = faults_of(more, ["false version"] * 3, lambda kind: more.uniform(3.0, 8.0))
    return (*claims, *versions)


def regions_of(learners: int, seed: int) -> tuple[Region, ...]:
    """One, or one and another with a learner."""
    if not is_of(seed, LIST_SEEDS):
        return (Region(name="a", learners=learners),)
    return Region(name="a", learners=learners - 1), Region(name="b", learners=1)


def draw_lists(
    regions: tuple[Region, ...], seed: int
) -> tuple[tuple[tuple[float, Expected], ...], float]:
    """The last region leaves, and comes back when its certificates are revoked; and the grace."""
    if is_of(seed, MACHINE_SEEDS):
        return draw_machines(regions, seed), GRACE_SECONDS
    if not is_of(seed, LIST_SEEDS):
        return (), GRACE_SECONDS
    rng = random.Random(f"{seed}/lists")
    grace, gone = rng.uniform(1.0, 3.0), rng.uniform(3.0, 6.0)
    back = gone + rng.uniform(4.0, 10.0)
    revoked = (Limit(region=regions[-1].name, generation=1),)
    lists = (
        (0.0, Expected(regions=regions)),
        (gone, Expected(regions=regions[:-1])),
        (back, Expected(regions=regions)),
        (back + rng.uniform(2.0, 6.0), Expected(regions=regions, limits=revoked)),
    )
    return lists, grace


def draw_machines(regions: tuple[Region, ...], seed: int) -> tuple[tuple[float, Expected], ...]:
    """A machine is revoked, another takes its slot, and that one changes slots with a third."""
    rng = random.Random(f"{seed}/machines")
    slots = [slot_name(each.name, n) for each in regions for n in range(each.learners)]
    on = {slot: f"m{number}" for number, slot in enumerate(slots)}
    one, other = rng.sample(slots, 2)
    gone = rng.uniform(3.0, 8.0)
    back = gone + rng.uniform(1.0, 10.0)

    def listed(machines: dict[str, str]) -> Expected:
        """By slot: the machine that has it."""
        given = (ListedMachine(name=name, slots=(slot,)) for slot, name in machines.items())
        return Expected(regions=regions, machines=tuple(given))

    return (
        (0.0, listed(on)),
        (gone, listed({slot: name for slot, name in on.items() if slot != one})),
        (back, listed(on | {one: "new"})),
        (back + rng.uniform(1.0, 6.0), listed(on | {one: on[other], other: "new"})),
    )


def draw_lists_faults(lists: tuple[tuple[float, Expected], ...]) -> tuple[Fault, ...]:
    """The moments at which the list is another one."""
    return tuple(Fault(at=at, kind="list", which=0, seconds=0.0) for at, _ in lists[1:])


def draw_false_names(seed: int) -> tuple[Fault, ...]:
    """Learners that join in the slots of others."""
    rng = random.Random(f"{seed}/false names")
    return faults_of(rng, ["false name"] * (4 if is_of(seed, FALSE_NAME_SEEDS) else 0))


def quorum_of(drawn: int, learners: int, seed: int) -> int:
    """K as drawn, but where the rules of this module need one that shows them."""
    if is_of(seed, CLAIM_SEEDS):
        return 1
    return learners if is_of(seed, LIST_SEEDS) or is_of(seed, MACHINE_SEEDS) else drawn
