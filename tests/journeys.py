"""Print the files that five journeys run through, and lines by package: `python -m journeys`.

Whoever follows a journey through the code opens the files that it runs. Their number says how hard
that is; the number of files in a folder does not. Each journey begins in a state that its tests
use, and runs under `sys.setprofile`, which reports every call of a function. Functions of the
product count, and the files that hold them; generated code, comprehensions and lambdas do not.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from atoll_syncer.model.effects import MergeOffers
from planted.bugs import load
from sim.scenario import draw
from sim.simulate import logs_into
from sim.world import World as SimulatedWorld
from unit.kube.world import World, lost_learner
from unit.syncer.shard_side import begun, step_all
from unit.worker.fixtures import entered, learner_of, model_and_optimizer

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("operator", "syncer", "worker", "protos")
QUIET_SEED = 32  # three learners, no faults
QUIET_SECONDS = 20.0  # virtual


class Trace:
    """Functions of the product that ran, and how often each was called.

    A profile function holds for one thread. The operator plans in a thread pool, which keeps its
    threads from one pass to the next. So `follow` sets the function in all threads that a journey
    starts, and it notes calls only while the journey is `on`.
    """

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self._on = False
        self._called: list[CodeType] = []  # several threads append

    def files(self, *programs: str) -> int:
        """Count the files of these programs that hold the functions."""
        files = {Path(code.co_filename).relative_to(ROOT) for code in self.calls}
        return sum(file.parts[0] in programs for file in files)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Note the calls of this thread, and of those that the journey has started."""
        self._on = True
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._on = False
        self.calls = Counter(code for code in self._called if is_product(code))

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Be a profile function."""
        if self._on and event == "call":
            self._called.append(frame.f_code)


def is_product(code: CodeType) -> bool:
    """Say whether it is a function that people have written in a file of a program."""
    file = Path(code.co_filename)
    inside = any(file.is_relative_to(ROOT / program) for program in PROGRAMS)
    return inside and "_pb2" not in file.name and not code.co_name.startswith("<")


def idle_world() -> World:
    """Return a job whose children are as they should be."""
    world = World()
    world.run()
    return world


def reconcile(make: Callable[[], World], trace: Trace) -> None:
    """Make one pass of the operator over a job."""
    world = make()
    with trace.on():
        world.run()


def offer(trace: Trace) -> None:
    """Receive the one offer that a round waits for, up to the order to merge."""
    shard, sessions = begun("a-0")
    step_all(shard, sessions, range(1, 10))
    shard.skip_merges = True
    with trace.on():
        shard.offer(sessions[0], 0, 9)
    assert len(shard.take(MergeOffers)) == 1


def step(trace: Trace) -> None:
    """End a learner's step while its transport process sends nothing."""
    learner = learner_of(*model_and_optimizer())
    with entered(learner):
        learner.step(tokens=1)
        with trace.on():
            learner.step(tokens=1)


def quiet_training(trace: Trace) -> None:
    """Train without faults: shards and learners, but for numbers and training processes."""
    world = SimulatedWorld(draw(QUIET_SEED), ())
    try:
        assert world.sim.run(600.0, lambda: all(p.training.t_m for p in world.all_learners))
        with trace.on():
            world.sim.run(world.sim.now + QUIET_SECONDS, lambda: False)
        assert not world.complete
    finally:
        world.close()


# Those of the operator are bounded in its own files, the others in all.
JOURNEYS: dict[str, tuple[Callable[[Trace], None], int]] = {
    "pass with nothing to do": (partial(reconcile, idle_world), 26),
    "pass with a lost learner": (partial(reconcile, lost_learner), 26),
    "offer that closes its round": (offer, 11),
    "step in which nothing arrives": (step, 8),
    "20 quiet seconds of training": (quiet_training, 45),
}


def follow(journey: Callable[[Trace], None]) -> Trace:
    """Return what a journey runs through."""
    trace = Trace()
    threading.setprofile(trace.note)
    try:
        with logs_into(None):
            journey(trace)
    finally:
        threading.setprofile(None)
    return trace


def sizes() -> Iterator[tuple[str, int, int]]:
    """Yield (package, files, lines) of what people have written in Python, and the sums."""
    product = [package for name in PROGRAMS for package in sorted((ROOT / name).glob("atoll*/"))]
    for name, folders in (
        *((str(package.relative_to(ROOT)), [package]) for package in product),
        ("product", product),
        ("tests", [ROOT / "tests"]),
    ):
        files = [file for folder in folders for file in folder.rglob("*.py")]
        written = [file.read_bytes() for file in files if "_pb2" not in file.name]
        yield name, len(written), sum(len(text.splitlines()) for text in written)


def report() -> Iterator[str]:
    """Yield the lines of both tables, and what else has a bound."""
    titles = ("files", *PROGRAMS, "goal", "functions", "calls")
    yield f"{'journey':31}" + "".join(f"{title:>10}" for title in titles)
    for name, (journey, goal) in JOURNEYS.items():
        trace = follow(journey)
        files = (trace.files(*PROGRAMS), *map(trace.files, PROGRAMS))
        counts = (*files, goal, len(trace.calls), trace.calls.total())
        yield f"{name:31}" + "".join(f"{count:10}" for count in counts)
    yield f"{'package':31}{'files':>10}{'lines':>10}"
    for name, count, lines in sizes():
        yield f"{name:31}{count:10}{lines:10}"
    words = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))
    yield f"docs: {words} words; planted bugs: {len(load())}"


if __name__ == "__main__":
    for line in report():
        sys.stdout.write(f"{line}\n")
