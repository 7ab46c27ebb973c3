"""Each machine of a job is lost and comes back, and so is the network: one job, fault after fault.

After each of them: what had been committed still is, each house has its slots, both are merged
again, and the token law is exact (rule 13). In the end the job is Complete.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from atoll_operator.machines import bundle as bundles
from atoll_syncer.storage.object_store import open_store
from local.command import TINY, commits
from local.law import check_law, exported_is_newest, learners_lines
from local.leftovers import check_none_is_left
from local.machines.commands import Commands, Machine, commands_in
from local.machines.nat import NAME, V4, V6, Houses, Space, behind_nat, missing
from local.machines.test_machines import TWO, steps

# A forked learner would be where the server of forks is, and not in its house.
pytestmark = [
    pytest.mark.fresh,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}, for houses behind NAT"),
]
PORT = 7700
HOUSES = ((V4, 20.0), (V6, 20.0))  # Mbit/s up
SLOTS = (("us-east-0",), ("eu-west-0",))
SLICES = 8  # of the only shard
ARGUMENTS = "['--batch=2', '--context=32', '--step-milliseconds-min=100']"
ENDLESS, MORE_STEPS = 1_000_000, 40
JOB = (
    *(*TWO, "--set", f"spec.learner.template.spec.containers=[{{args: {ARGUMENTS}}}]"),
    *("--set", "spec.sync.wire.up=int4", "--set", "spec.syncer.shards=1", *steps(ENDLESS)),
)
LISTEN = ("--listen", f"0.0.0.0:{PORT}", "--output", "lines")
MOVED = 2


@dataclass(slots=True)
class Scene:
    """A job over three machines. `served` and `joined` are what runs on them at present."""

    place: Houses
    here: Commands
    served: Machine
    joined: list[Machine]
    known: list[dict[str, Any]] = field(default_factory=list)  # commits that must stay
    lost: list[int] = field(default_factory=list)  # how often each house's learner lost its shard

    @property
    def out(self) -> Path:
        return self.served.out

    def all_is_well(self) -> None:
        """Both houses are merged in newer commits of each slice than now; what must hold does."""
        before = commits(self.out)
        self.served.until(lambda: merged_again(commits(self.out), before), "merges of both")
        found = commits(self.out)
        assert [each for each in (*self.known, *before) if each not in found] == []
        assert [slots_of(each) for each in self.joined] == [*SLOTS]
        self.known, self.lost = found, [losses(each.out) for each in self.joined]
        with still(self.out, *(each.out for each in self.joined)) as folders:
            check_law(*folders)

    def until_lost(self, *houses: int) -> None:
        """The learners there have lost their shard once more than when they were well."""

        def noticed() -> bool:
            return all(losses(self.joined[each].out) > self.lost[each] for each in houses)

        self.served.until(noticed, "its loss by a learner")

    def serve_again(self) -> None:
        words = ("serve", self.out, "--output", "lines")
        self.served = self.here.atoll(self.out, *words, within=self.place.server.enter)

    def join_again(self, number: int) -> None:
        """With nothing but its state folder."""
        state, within = self.joined[number].out, self.place.houses[number].enter
        words = ("join", f"{NAME}:{PORT}", "--name", state.name, "--state", state)
        self.joined[number] = self.here.atoll(state, *words, within=within)

    def end(self) -> None:
        """Of the job, some steps later; then it is looked at as a whole."""
        last = max(each["tick"] for each in commits(self.out))
        self.served.edit(f"spec.steps={last + MORE_STEPS}")
        codes = [each.end() for each in (*self.joined, self.served)]
        assert codes == [0, 0, 0], self.served.logs()
        found = commits(self.out)
        assert [each for each in self.known if each not in found] == []
        assert len({each["run"] for each in found}) == 1
        check_law(self.out, *(each.out for each in self.joined))
        store = f"file://{self.out}/commits"
        assert exported_is_newest(self.out, store, open_store)
        for each in self.joined:
            assert {line["slot"] for line in learners_lines(each.out)} == {*slots_of(each)}
            check_none_is_left(each.out)


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Both houses are merged, and all is well; the job ends when the scene does."""
    out = folder / "served"
    with behind_nat(folder, *HOUSES) as place, commands_in(folder) as here:
        first = ("serve", TINY, *LISTEN, *JOB, "--out", out)
        served = here.atoll(out, *first, within=place.server.enter)
        line = served.says("ATOLL_TOKEN=")
        assert f"atoll join {NAME}:{PORT}\n" in line
        regions = zip(("us-east", "eu-west"), place.houses, strict=True)
        joined = [
            here.join(line, f"house-{region}", "--region", region, within=house.enter)
            for region, house in regions
        ]
        for house, address in zip(joined, (f"{V4.public}11", f"[{V6.public}12]"), strict=True):
            served.says(f"{house.out.name} has entered from {address}:")
        made = Scene(place, here, served, joined)
        made.all_is_well()
        yield made
        made.end()


@contextmanager
def still(out: Path, *states: Path) -> Iterator[list[Path]]:
    """Copies of what a job has written, at a moment at which no shard writes a commit."""
    copies = [each.with_name(f"{each.name}-copy") for each in (out, *states)]
    while True:
        before = commits(out)
        copytree(out / "syncer", copies[0] / "syncer")
        for state, copy in zip(states, copies[1:], strict=True):
            copytree(state / "learners", copy / "learners")
        if commits(out) == before:
            break
        for each in copies:
            rmtree(each)
    for path in (path for each in copies for path in each.rglob("*.jsonl")):
        whole, end, _ = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole + end)
    yield copies
    for each in copies:
        rmtree(each)


def merged_again(found: list[dict[str, Any]], before: list[dict[str, Any]]) -> bool:
    """Whether each slice has the work of each house in commits that are not among those."""
    new = (each for each in found if each not in before)
    merged = {(each["slice"], part["slot"]) for each in new for part in each["participants"]}
    return len(merged) == SLICES * len(SLOTS)


def slots_of(house: Machine) -> tuple[str, ...]:
    machine = bundles.read(house.out)
    assert machine is not None
    return machine.slots


def losses(state: Path) -> int:
    """How often the learner of a house has lost its shard."""
    return sum(line.get("event") == "disconnected" for line in learners_lines(state))


def lost(space: Space, began: Machine) -> None:
    """Its power fails: everything that runs there ends at once."""
    assert space.kill_all() > 1
    began.process.wait()


def test_each_machine_loses_its_power_and_the_server_moves_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with scene(tmp_path) as job:
        first, second = job.place.houses
        with job.place.cut(0):
            job.until_lost(0)
            before = len(commits(job.out))
            job.served.until(lambda: len(commits(job.out)) > before + SLICES, "commits of one")
        job.all_is_well()

        lost(second, job.joined[1])
        job.join_again(1)
        job.all_is_well()

        lost(job.place.server, job.served)
        lost(first, job.joined[0])
        job.join_again(0)  # before the server is back
        job.joined[0].says("does not answer")
        job.serve_again()
        job.all_is_well()

        # The server's name means another address now; nobody does anything in the houses.
        job.place.move(MOVED)
        job.until_lost(0, 1)
        job.all_is_well()


@pytest.mark.long
def test_the_network_is_away_for_long_and_nothing_is_lost(tmp_path: Path) -> None:
    with scene(tmp_path) as job:
        for seconds, houses in ((60.0, (0,)), (60.0, (0, 1)), (600.0, (0, 1))):
            with job.place.cut(*houses):
                time.sleep(seconds)
            job.until_lost(*houses)
            job.all_is_well()
