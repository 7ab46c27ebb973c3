"""A real shard for a learner in the test's own process: what `atoll run` would set up around it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.run_files import read_lines
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.transfer.codecs import Wire
from atoll_worker.job import ALONE
from local.command import json_lines
from wire.fixtures import shard

SECONDS_MAX = 600.0
STEP_SECONDS = 0.03
GIVEN_SECONDS = 1.0
SLOT = f"{ALONE}-0"


@dataclass(slots=True, kw_only=True)
class OneShard:
    """The shard's files."""

    folder: Path

    @property
    def commits(self) -> list[dict[str, Any]]:
        lines = read_lines(self.folder / "tape.jsonl")
        return [line for line in lines if line.get("event") == "commit"]

    def has_merged(self) -> bool:
        """Whether a commit has work of the learner; if not, some time is given to the shard.

        A learner that stops before leaves nothing behind, and the next one begins anew.
        """
        if not self.commits:
            time.sleep(GIVEN_SECONDS)
        return bool(self.commits)

    def breathe(self) -> None:
        """Let merges happen between two steps of a model that is too small to take time."""
        time.sleep(STEP_SECONDS)

    def exported(self) -> Path:
        """The file of the exported model, once it is there."""
        index = self.folder / "export" / "model.safetensors.index.json"
        deadline = time.monotonic() + SECONDS_MAX
        while not index.exists():
            assert time.monotonic() < deadline, "no export comes"
            time.sleep(STEP_SECONDS)
        return self.folder / "export" / "model.safetensors"

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps that the learner has reported."""
        return [line for line in self.lines if line.get("tokens") and "t_m" in line]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that the learner has reported."""
        return json_lines(self.folder / "learners" / f"{SLOT}.jsonl")


@contextmanager
def one_shard(
    folder: Path, *, steps: int, learners: int = 1, lockstep: bool = False
) -> Iterator[OneShard]:
    """Start a shard; until the end of the block this process is the one learner of its job.

    Slot and seed are those of a process without a job: alone, it has its data in the same order.
    """
    run_file = RunFile(
        job="inside",
        regions=(Region(name=ALONE, learners=learners),),
        shards=1,
        steps=steps,
        sync=Sync(
            fragments=2,
            period=4,
            overlap=0 if lockstep else 1,
            lockstep=lockstep,
            wire_up=Wire.F32,
            wire_down=Wire.F32,
        ),
    )
    with shard(folder, run_file=run_file) as served, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_RUN_FILE", str(folder / "run.json"))
        patch.setenv("ATOLL_ENDPOINTS", served.endpoint)
        patch.setenv("ATOLL_SLOT", SLOT)
        patch.setenv("ATOLL_TELEMETRY_DIR", str(folder))
        yield OneShard(folder=folder)
