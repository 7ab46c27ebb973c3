"""Two allocations of a real Slurm train; each ends as Slurm ends one, and has its slot again."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atoll_protos.names import split_slot
from local.command import ATOLL, TESTS, TINY, commits
from local.law import check_law
from local.leftovers import check_none_is_left, of_run
from local.machines.commands import LINE, Machine, commands_in
from local.machines.test_machines import TWO, steps
from local.slurm.cluster import Slurm, slurm_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for Slurm's daemons")
SBATCH = TESTS.parent / "examples" / "slurm" / "learners.sbatch"
BOTH = ("us-east-0", "eu-west-0")


def progress(server: Machine) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((server.out / "status.json").read_text())["progress"]
    return found


def region(server: Machine, name: str) -> Mapping[str, Any]:
    """As `atoll status` shows it."""
    regions = json.loads((server.out / "status.json").read_text())["regions"]
    return next(each for each in regions if each["name"] == name)


def has_left(server: Machine, name: str) -> None:
    """Wait until a region has no learner; it has left in order, and its connection is not lost."""
    server.until(lambda: region(server, name)["live"] == 0, "that it has left")
    assert region(server, name)["lost"] == 0


def variables(folder: Path) -> dict[str, str]:
    """Of a learner of the machine in this folder."""
    text = Path(f"/proc/{of_run(folder)[0]}/environ").read_text()
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)


@dataclass(slots=True)
class Allocations:
    """A server, and Slurm with jobs for it. `states` has a folder of each machine."""

    slurm: Slurm
    server: Machine
    states: Path

    def submit(self, **more: str) -> str:
        """The example as it is; the job."""
        line = LINE.search(self.server.says("ATOLL_TOKEN="))
        assert line is not None
        token, place = line.groups()
        path = f"{ATOLL.parent}{os.pathsep}{os.environ['PATH']}"
        own = {"SERVER": place, "ATOLL_TOKEN": token, "STATE": str(self.states), "PATH": path}
        return self.slurm.submit(SBATCH, **own, HOME=str(self.states.parent), **more)

    def merges(self, *slots: str) -> None:
        """Wait for a new commit with the work of these learners."""
        before = len(commits(self.server.out))
        self.server.until(
            lambda: any(
                {part["slot"] for part in each["participants"]} >= {*slots}
                for each in commits(self.server.out)[before:]
            ),
            f"a merge of {slots}",
        )
        names = [split_slot(each)[0] for each in slots]
        self.server.until(lambda: all(region(self.server, x)["live"] for x in names), "live")


@contextmanager
def allocations(folder: Path) -> Iterator[Allocations]:
    """Its server is that of a job of two regions without an end."""
    with commands_in(folder) as here, slurm_in(folder / "slurm") as slurm:
        server = here.serve(TINY, *TWO, *steps(1_000_000))
        yield Allocations(slurm, server, folder / "states")


def test_allocations_leave_in_order_and_have_their_slots_again(tmp_path: Path) -> None:
    with allocations(tmp_path) as here:
        slurm, server, states = here.slurm, here.server, here.states
        us, eu = here.submit(REGION="us-east"), here.submit(REGION="eu-west")
        here.merges(*BOTH)
        mine = variables(states / f"atoll-{us}-0")
        assert (mine["CUDA_VISIBLE_DEVICES"], mine["SLURM_CPUS_PER_TASK"]) == ("0", "8")
        assert not {"SLURM_PROCID", "SLURM_NTASKS", "ATOLL_TOKEN"} & mine.keys()

        slurm.says("scontrol", "requeue", us)
        has_left(server, "us-east")
        here.merges(*BOTH)
        assert slurm.job(us)["Restarts"] == "1"

        slurm.says("scancel", eu)
        has_left(server, "eu-west")
        slurm.until(eu, "CANCELLED")
        check_none_is_left(here.states / f"atoll-{eu}-0")
        again = here.submit(MACHINE=f"atoll-{eu}")
        here.merges(*BOTH)

        server.edit(f"spec.steps={progress(server)['step']}")  # as `atoll stop`
        assert server.end() == 0, server.logs()
        for job in (us, again):
            assert slurm.until(job, "COMPLETED")["ExitCode"] == "0:0"
        check_law(server.out, *states.iterdir())
        assert {each.name for each in states.iterdir()} == {f"atoll-{x}-0" for x in (us, eu)}
