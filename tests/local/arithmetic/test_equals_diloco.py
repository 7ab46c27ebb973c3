"""Plain DiLoCo through the whole program equals DiLoCo by all-reduce over gloo (2311.08105).

So it does bit for bit with the state in a bucket, several lanes and a shard that is killed.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from atoll_operator.local.last_status import read_status
from local.arithmetic.lockstep_script import HELD_AT
from local.background import running
from local.command import RUN_SECONDS_MAX, TESTS, commits, manifest, run_atoll
from local.law import check_law
from local.lockstep_model import (
    LEARNERS,
    OUTER_LEARNING_RATE,
    OUTER_MOMENTUM,
    PERIOD,
    ROUNDS,
    Model,
)
from local.stores import servers
from local.stores.opened import object_store
from local.stores.servers import Place

DIFFERENCE_MAX = 1e-5
MOVED_MIN = 0.1  # else there is nothing to compare
SHARDS = 2
LANES = 3
SLOTS = tuple(f"region-{n}-0" for n in range(LEARNERS))


def job(folder: Path, **env: str) -> Path:
    """A manifest in a folder, in which the learners meet."""
    outer = {"learningRate": str(OUTER_LEARNING_RATE), "momentum": str(OUTER_MOMENTUM)}
    text = manifest(
        Path(__file__).with_name("lockstep_script.py"),
        regions=[slot.removesuffix("-0") for slot in SLOTS],
        shards=SHARDS,
        env={"MEETING": str(folder / "meeting"), **env},
        steps=ROUNDS * PERIOD,
        sync={"preset": "DiLoCo", "period": PERIOD, "outer": outer},  # f32 both ways
    )
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def exported(out: Path) -> dict[str, torch.Tensor]:
    """The model; each round of the run has merged all learners."""
    committed = commits(out)
    assert len(committed) == ROUNDS * SHARDS
    for commit in committed:
        parts = [(part["slot"], part["steps"]) for part in commit["participants"]]
        assert parts == [(slot, PERIOD) for slot in SLOTS]
    return load_file(out / "export" / "model.safetensors")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model of a run whose state is in its folder, and of which nothing is killed."""
    folder = tmp_path_factory.mktemp("files")
    run_atoll(job(folder), folder / "out")
    return exported(folder / "out")


def reference(folder: Path) -> dict[str, torch.Tensor]:
    """The shared parameters that two processes of torch.distributed come to."""
    expected = folder / "expected.safetensors"
    command = (sys.executable, "-m", "local.arithmetic.lockstep_reference")
    ranks = [
        subprocess.Popen([*command, str(rank), folder / "gloo", slot, expected], cwd=TESTS)
        for rank, slot in enumerate(SLOTS)
    ]
    assert [rank.wait(RUN_SECONDS_MAX) for rank in ranks] == [0] * LEARNERS
    return load_file(expected)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of two state dicts with the same names."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_ten_rounds_of_plain_diloco_equal_an_all_reduce_over_gloo(
    found: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    assert distance(found, reference(tmp_path)) <= DIFFERENCE_MAX
    assert distance(found, dict(Model(seed=0).state_dict())) >= MOVED_MIN


def test_a_run_in_a_bucket_over_several_lanes_whose_shard_is_killed_gives_the_same_bits(
    found: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values do not depend on store and lanes (rule 32); these end with their session (rule 34)."""
    out, held = tmp_path / "out", tmp_path / "held"
    file = job(tmp_path, HELD=str(held), ATOLL_LANES=str(LANES))
    (tmp_path / "moto").mkdir()
    with servers.moto(tmp_path / "moto") as server:
        place = server.place()
        with running(file, out, *place.used(monkeypatch)) as run:
            rounds = HELD_AT // PERIOD
            run.until(lambda: all(len(run.commits(n)) == rounds for n in range(SHARDS)), "commits")
            run.kill(0)
            # A shard that has begun anew merges who comes back first, if it has an offer.
            run.until(lambda: are_back(out), "the learners' sessions with the new process")
            (held / "the test").touch()
            code, stderr = run.finish()
        assert code == 0, f"{stderr}\n{run.logs()}"
        check_state(place, (out / "store.txt").read_text().strip())
    assert distance(exported(out), found) == 0
    check_law(out)
    epochs = [{line["epoch"] for line in commits(out) if line["shard"] == n} for n in range(SHARDS)]
    assert epochs == [{1, 2}, {1}]
    assert not (out / "commits").exists()
    assert all(f'"lanes": {LANES}' in log.read_text() for log in out.glob("logs/shard-*.log"))


def are_back(out: Path) -> bool:
    """Whether the second process of shard 0 has all learners in training."""
    status = read_status(out)
    epochs = status.syncer.epochs if status.syncer else ()
    return [*epochs] == [2, 1] and status.learners_live == LEARNERS


def check_state(place: Place, url: str) -> None:
    """It is in the run's own folder of the bucket, by shards; nothing is beside it."""
    assert url.startswith(f"{place.url}/")
    names = object_store(place).names("")
    run = url.removeprefix(f"{place.url}/")
    assert {name.split("/")[0] for name in names} == {run}
    for shard in range(SHARDS):
        assert f"{run}/{shard}/log/{1:016d}.json" in names
