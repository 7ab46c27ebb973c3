"""What one seed means: a job, its machines' speeds, and the faults that apply it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from atoll_protos.job.layout import Layout, TensorSpec
from atoll_protos.job.run_file import (
    NOBODY,
    Checkpoints,
    Expected,
    Fragments,
    GraceLimit,
    RunFile,
    Sync,
)
from atoll_protos.job.schedule import Length
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire
from atoll_syncer.rules.shut_out import GRACE_SECONDS
from sim import damage
from sim.drawn_claims import (
    CLAIM_SEEDS,
    FALSE_NAME_SEEDS,
    FAULTS_BEGIN,
    FAULTS_END,
    LIST_SEEDS,
    MACHINE_SEEDS,
    Fault,
    draw_claims,
    draw_false_names,
    draw_lies,
    draw_lists,
    draw_lists_faults,
    faults_of,
    is_of,
    quorum_of,
    regions_of,
)
from sim.drawn_processes import draw_lane_faults, draw_rank_faults, draw_ranks, draw_still

LARGE_SHARE, TOKENS_SHARE, OBSERVER_SHARE = 0.06, 0.15, 0.2  # of the seeds
MORE_FAULTS_SHARE = 0.3
KINDS = (
    "drop",
    "drop",
    "kill learner",
    "kill learner",
    "kill shard",
    "kill shard",
    "pause learner",
    "pause shard",
    "partition",
    "successor",
    "zombie",
    "owner",
    "hiccup",
    "store away",
    "store answers",
    "damage",
)
EDITS_SHARE, OBJECT_STORE_SHARE = 0.25, 0.3  # of the seeds
READ_SECONDS = (0.05, 0.05, 2.0, 15.0)  # of a slice; some come back when others are merged
STOPS_SHARE, REPLACED_SHARE = 0.17, 0.33  # of the seeds
SLOW_BEATS_SHARE, LONG_SECONDS = 0.5, 40.0  # of those in which shards are replaced
WORKS = 2  # of a shard that is replaced: it stands still, is cut off, or works
STORE_FAULTS_SHARE, STORE_KINDS = 0.15, ("store conflicts", "store forbids")  # of the seeds
LANES_SHARES = {True: 0.5, False: 0.04}  # of process starts have several lanes, with such faults
MORE_KINDS = ("old run", "old observer", "late word")  # drawn apart: the other faults stay
EFFECT_SEEDS, EFFECT_SHARE = (8, 3), 0.5  # modulus and rest; of them begin with the job
EFFECTS = (  # of a shard's rules, then of a learner's
    "StoreSeed",
    "StoreHeld",
    "Merge",
    "PublishHead",
    "Accept",
    "Ask",
    "Reply",
    "EndSession",
    "WritePart",
    "WriteIndex",
    "Append TermBegun",
    "Append RunStarted",
    "Append Taken",
    "Append Begun",
    "Append Seeded",
    "Append Committed",
    "Append Ended",
    "Append ShardFinal",
    "SendSeed",
    "SendHeld",
    "SendOffer",
    "Dial",
    "PlaceValue",
    "Promote",
    "Command Start",
    "Command Capture",
    "Command Adopt",
    "Command Proceed",
    "Command Finished",
)
ACTIONS = ("kill shard", "kill learner", "cut", "pause shard", "pause learner", "successor")
SLOW_SEEDS, SLOW_SECONDS = (32, (19, 21)), (20.0, 60.0)
WORK_SEEDS = (9, (7,))  # whose graces are limited by work


Reads: TypeAlias = tuple[tuple[int, int], ...]  # tick, and revision of the file from then on


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that is drawn from the seed beforehand."""

    seed: int
    run_file: RunFile
    layout: Layout
    step_seconds: dict[str, float]
    step_spread: tuple[float, float] = (0.8, 1.25)  # of single steps, over step_seconds
    tokens_per_step: int
    disk_seconds: float
    merge_seconds: float
    examine_seconds: float
    read_seconds: float  # of one slice, when a process starts
    delay_seconds: float
    slice_seconds: float
    leaves_when_finished: bool
    object_store: bool  # the shards' state lies in one
    beat_seconds: float  # that the store needs for a heartbeat
    snapshot_entries: int  # of the log, from one snapshot to the next
    observer: bool  # an evaluator joins as well
    fresh: bool  # no run of this job can exist yet, so the registrar begins one at once
    faults: tuple[Fault, ...] = field(default=())
    slow: frozenset[str] = frozenset()  # slots on whose links a slice takes SLOW_SECONDS
    lanes_share: float = 0.0  # of process starts, whose sessions have several lanes
    ranks: Mapping[str, int] = field(default_factory=dict)  # of the slots that have several
    silence_seconds: float = 8.0  # after which a rank counts as lost
    expected: Expected = NOBODY  # the job's learners, as far as the shards are told
    late_seconds: Mapping[str, float] = field(default_factory=dict)  # slots whose start takes long
    lists: tuple[tuple[float, Expected], ...] = ()  # of the job's learners, and from when on
    grace_seconds: float = GRACE_SECONDS  # of who is on the list no more
    certificate_seconds: float = 0.0  # for which one is valid; 0: plain text
    lengths: tuple[int, ...] = ()  # in ticks, after each edit of the job; revisions 1, 2, ...
    reads: Mapping[int, Reads] = field(default_factory=dict)  # by shard

    @property
    def steps(self) -> int:
        """The job's length in ticks; if it is given in tokens, those that all must train for it."""
        if self.run_file.steps is not None:
            return max((self.run_file.steps, *self.lengths))
        assert self.run_file.tokens is not None
        others = (self.length(n).tokens for n, _ in enumerate(self.lengths, 1))
        return max((self.run_file.tokens, *others)) // self.tokens_per_step

    def length(self, revision: int) -> Length:
        """What the operator's file says at that revision."""
        steps = self.lengths[revision - 1]
        if self.run_file.steps is not None:
            return Length(revision=revision, steps=steps, ends=(steps,))
        tokens = steps * self.tokens_per_step * len(self.run_file.slots)
        return Length(revision=revision, tokens=tokens)

    @property
    def loses_a_store(self) -> bool:
        """Whether rule 22 is at work."""
        return any(fault.kind.startswith(("lose", damage.KIND)) for fault in self.faults)


def draw(seed: int) -> Scenario:
    rng = random.Random(f"{seed}/scenario")
    more = random.Random(f"{seed}/more")  # so that the draws of `rng` stay as they are
    large = more.random() < LARGE_SHARE
    shards = rng.choice((1, 1, 2))
    learners = rng.choice((1, 2, 2, 3, 3, 4))
    if large:
        shards, learners = more.choice((3, 4)), more.randint(5, 8)
    if is_of(seed, FALSE_NAME_SEEDS):
        shards, learners = max(shards, 2), max(learners, 2)
    if is_of(seed, LIST_SEEDS) or is_of(seed, MACHINE_SEEDS):
        learners = max(learners, 2)
    if is_of(seed, CLAIM_SEEDS):
        learners = max(learners, 3)
    period = rng.choice((4, 6, 8, 10))
    fragments = rng.choice([n for n in (1, 2, 3, 4) if n <= period // 2])
    overlap = rng.choice((0, 1, 1, 2, 2))
    sync = Sync(
        fragments=Fragments.AUTO if random.Random(f"{seed}/auto").random() < 0.5 else fragments,
        period=period,
        overlap=overlap,
        quorum=quorum_of(rng.randint(1, learners), learners, seed),
        grace=rng.random() < 0.8,
        grace_limit=GraceLimit.WORK if is_of(seed, WORK_SEEDS) else GraceLimit.OVERLAP,
        lockstep=overlap == 0 or rng.random() < 0.1,
        blend=rng.choice((0.0, 0.0, 0.5)),
        wire_up=random.Random(f"{seed}/up").choice(tuple(Wire)),
        wire_down=random.Random(f"{seed}/down").choice(WIRES_DOWN),
    )
    steps, tokens_per_step = period * rng.randint(3, 5), rng.choice((1, 7))
    in_tokens = not sync.lockstep and more.random() < TOKENS_SHARE
    run_file = RunFile(
        job="sim",
        regions=regions_of(learners, seed),
        shards=shards,
        seed=seed,
        steps=None if in_tokens else steps,
        tokens=steps * tokens_per_step * learners if in_tokens else None,
        sync=sync,
        checkpoint=Checkpoints(url="", every=period // 2, keep=2, model=False)
        if seed % 4 == 2
        else None,
    )
    tensors = [
        TensorSpec(name=f"t{n}", shape=(600,), dtype="float32", merge="average" if n % 3 else "rda")
        for n in range(fragments * shards)
    ]
    if sync.fragments is not Fragments.AUTO:  # else each slice would be one tensor
        tensors += [
            TensorSpec(name=f"s{n}", shape=(40,), dtype="float32", merge="average")
            for n in range(fragments * shards)
        ]
    pace = rng.uniform(0.3, 1.0)
    slowest = rng.choice((1.0, 1.5, 3.0, 6.0))
    network = rng.choice((0.005, 0.02, 0.1))
    lists, grace = draw_lists(run_file.regions, seed)
    ranks, lane_faults = draw_ranks(run_file.slots, seed), draw_lane_faults(seed)
    lengths, reads = draw_edits(run_file.shards, steps, period, seed)
    object_store = random.Random(f"{seed}/object store").random() < OBJECT_STORE_SHARE
    replacements, slow_store = draw_replacements(seed)
    return Scenario(
        seed=seed,
        run_file=run_file,
        layout=run_file.layout(tensors),
        step_seconds={
            slot: pace * (rng.uniform(1.0, slowest) if n else 1.0)
            for n, slot in enumerate(run_file.slots)
        },
        tokens_per_step=tokens_per_step,
        disk_seconds=max(rng.choice((0.002, 0.02, 0.1)), 0.3 * object_store, slow_store),
        object_store=object_store,
        beat_seconds=max(4 * slow_store, 0.05),
        merge_seconds=rng.choice((0.01, 0.1, 0.4)),
        examine_seconds=more.choice((0.02, 0.02, 0.3, 1.0)),
        read_seconds=random.Random(f"{seed}/reads").choice(READ_SECONDS),
        delay_seconds=network,
        slice_seconds=network * rng.choice((1.0, 5.0)),
        leaves_when_finished=rng.random() < 0.5,
        snapshot_entries=random.Random(f"{seed}/snapshots").choice((2, 5, 20, 1000)),
        fresh=rng.random() < 0.9,
        observer=more.random() < OBSERVER_SHARE,
        faults=draw_claims(seed)
        or draw_lists_faults(lists)
        or (
            *(() if slow_store else draw_faults(rng, seed)),
            *draw_rank_faults(ranks, seed),
            *lane_faults,
            *draw_still(seed),
            *(() if slow_store else draw_stops(seed)),
            *replacements,
            *draw_store_faults(seed),
            *draw_effect_faults(seed),
            *draw_lies(seed),
            *damage.draw(seed),
            *draw_false_names(seed),
        ),
        slow=frozenset() if lists else draw_slow(run_file.slots, seed),
        lists=lists,
        expected=lists[0][1] if lists else NOBODY,
        grace_seconds=grace,
        certificate_seconds=15.0 if lists else 0.0,  # longer than what ends a back-off
        lanes_share=LANES_SHARES[bool(lane_faults)],
        ranks=ranks,
        silence_seconds=random.Random(f"{seed}/silence").choice((3.0, 8.0, 20.0)),
        lengths=lengths,
        reads=reads,
    )


def draw_replacements(seed: int) -> tuple[tuple[Fault, ...], float]:
    """Pods that take a shard's place while the former one lives; how slow its store is at least."""
    rng = random.Random(f"{seed}/replacements")
    if seed % 8 == 0 or rng.random() >= REPLACED_SHARE:
        return (), 0.0
    slow = rng.uniform(1.5, 2.2) if rng.random() < SLOW_BEATS_SHARE else 0.0
    if slow:  # from the start: before the first commits two could take the shard from each other
        which, at = 3 * rng.randrange(1 << 14) + WORKS, rng.uniform(0.0, 1.0)
        return (Fault(at=at, kind="replace shard", which=which, seconds=LONG_SECONDS),), slow
    kinds = ["replace shard"] * rng.choice((1, 2))
    return faults_of(rng, kinds, lambda _: rng.choice((2.0, 8.0, 20.0, LONG_SECONDS))), slow


def draw_stops(seed: int) -> tuple[Fault, ...]:
    """Ordered ends of shards."""
    rng = random.Random(f"{seed}/stops")
    if seed % 8 == 0 or rng.random() >= STOPS_SHARE:
        return ()
    return faults_of(rng, ["stop shard"] * rng.choice((1, 2)), end=FAULTS_END)


def draw_store_faults(seed: int) -> tuple[Fault, ...]:
    """What an object store answers now and then."""
    rng = random.Random(f"{seed}/store faults")
    if seed % 8 == 0 or rng.random() >= STORE_FAULTS_SHARE:
        return ()
    kinds = [rng.choice(STORE_KINDS) for _ in range(rng.choice((1, 2)))]
    return faults_of(rng, kinds, lambda _: rng.choice((0.5, 3.0, 8.0, 25.0)), end=FAULTS_END)


def draw_edits(
    shards: int, steps: int, period: int, seed: int
) -> tuple[tuple[int, ...], dict[int, Reads]]:
    """Edits of the job's length, up and down, and when they come into each shard's file.

    They come late or soon after each other, to some shards never, and an old file may come back.
    """
    rng = random.Random(f"{seed}/edits")
    if rng.random() >= EDITS_SHARE:
        return (), {}
    lengths = tuple(rng.randint(1, steps + 2 * period) for _ in range(rng.choice((1, 2, 2, 3))))
    made = sorted(rng.randint(1, steps) for _ in lengths)
    reads: dict[int, Reads] = {}
    for shard in range(shards):
        read = [(at + rng.choice((0, 0, 1, period)), n) for n, at in enumerate(made, 1)]
        if rng.random() < 0.3:
            read.append((rng.randint(1, steps), rng.randint(1, len(lengths))))
        if not shard or rng.random() < 0.7:
            reads[shard] = tuple(sorted(read))
    return lengths, reads


def draw_effect_faults(seed: int) -> tuple[Fault, ...]:
    """What goes wrong while an effect is performed: no time that is drawn meets that moment."""
    modulus, rest = EFFECT_SEEDS
    if seed % modulus != rest:
        return ()
    rng = random.Random(f"{seed}/effect faults")
    return tuple(
        Fault(
            at=0.0 if rng.random() < EFFECT_SHARE else rng.uniform(0.0, FAULTS_END / 2),
            kind=rng.choice(ACTIONS),
            which=rng.randrange(1 << 16),
            seconds=rng.choice((0.1, 0.5, 3.0, 8.0, 25.0)) * rng.uniform(0.5, 1.5),
            effect=rng.choice(EFFECTS),
        )
        for _ in range(rng.choice((1, 2, 4)))
    )


def draw_slow(slots: Sequence[str], seed: int) -> frozenset[str]:
    """Whose links are slower than the limits of 30 s: of one learner, or of all."""
    modulus, rests = SLOW_SEEDS
    if seed % modulus not in rests:
        return frozenset()
    rng = random.Random(f"{seed}/slow")
    return frozenset(slots if rng.random() < 0.3 else (rng.choice(slots),))


def draw_faults(rng: random.Random, seed: int) -> tuple[Fault, ...]:
    """One seed in eight is quiet; some lose a store, some meet processes of a former run."""
    if seed % 8 == 0:
        return ()
    count = rng.choice((1, 2, 4, 6, 10))
    kinds = [rng.choice(KINDS) for _ in range(count)]
    if seed % 12 == 5:
        kinds.append("lose store")
    if seed % 12 == 11:
        kinds.append("lose object")
    times = (0.5, 3.0, 8.0, 25.0, 40.0)
    drawn = faults_of(rng, kinds, lambda _: rng.choice(times) * rng.uniform(0.5, 1.5), FAULTS_END)
    more = random.Random(f"{seed}/more faults")
    if more.random() < MORE_FAULTS_SHARE:
        kind, at = more.choice(MORE_KINDS), more.uniform(FAULTS_BEGIN, FAULTS_END / 2)
        drawn += (Fault(at=at, kind=kind, which=more.randrange(1 << 16), seconds=3.0),)
    return drawn + tuple(behind(fault) for fault in drawn if fault.kind.startswith("lose"))


def behind(loss: Fault) -> Fault:
    """A learner cannot be reached until just before a loss: it holds older versions than others."""
    rng = random.Random(f"{loss.at}/behind")
    seconds = rng.uniform(3.0, 9.9)
    which = 3 * rng.randrange(1 << 16) + 1  # a learner, not a shard
    return Fault(at=loss.at - seconds, kind="partition", which=which, seconds=seconds)
