"""A whole run whose state is in a bucket: it ends as the same run on files, whatever is killed."""

import hashlib
from pathlib import Path

import pytest

from atoll_operator.local.progress.last_status import read_status
from local.background import running
from local.command import commits, manifest, run_atoll
from local.law import check_law
from local.lockstep_model import LEARNERS, PERIOD, ROUNDS
from local.stores.held_script import HELD_AT
from local.stores.opened import object_store
from local.stores.servers import Place, Server

SHARDS = 2
SLOTS = tuple(f"region-{n}-0" for n in range(LEARNERS))


def job(folder: Path) -> Path:
    """A manifest in a folder, in which the learners meet."""
    text = manifest(
        Path(__file__).with_name("held_script.py"),
        regions=[slot.removesuffix("-0") for slot in SLOTS],
        env={"MEETING": str(folder / "meeting"), "LET_ON": str(folder / "let-on")},
        steps=ROUNDS * PERIOD,
        sync={"preset": "DiLoCo", "period": PERIOD},
    )
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def digest(out: Path) -> str:
    """Of the exported model."""
    return hashlib.sha256((out / "export" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def on_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model of a run whose state is in its folder; nothing is killed."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "let-on").touch()
    run_atoll(job(folder), folder / "out")
    check_rounds(folder / "out")
    return digest(folder / "out")


def test_a_run_in_a_bucket_whose_shard_is_killed_gives_the_model_of_a_run_on_files(
    server: Server, on_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, out = server.place(), tmp_path / "out"
    with running(job(tmp_path), out, *place.used(monkeypatch)) as run:
        rounds = HELD_AT // PERIOD
        run.until(lambda: all(len(run.commits(n)) == rounds for n in range(SHARDS)), "commits")
        run.kill(0)
        # A shard that has begun anew merges who comes back first, if it has an offer.
        run.until(lambda: are_back(out), "the learners' sessions with the new process")
        (tmp_path / "let-on").touch()
        code, stderr = run.finish()
    assert code == 0, f"{stderr}\n{run.logs()}"
    assert digest(out) == on_files
    check_rounds(out)
    check_law(out)
    epochs = [{line["epoch"] for line in commits(out) if line["shard"] == n} for n in range(SHARDS)]
    assert epochs == [{1, 2}, {1}]
    assert not (out / "commits").exists()
    check_state(place, (out / "store.txt").read_text().strip())


def are_back(out: Path) -> bool:
    """Whether the second process of shard 0 has all learners in training."""
    status = read_status(out)
    epochs = status.syncer.epochs if status.syncer else ()
    return [*epochs] == [2, 1] and status.learners_live == LEARNERS


def check_rounds(out: Path) -> None:
    """Each round has all learners."""
    assert len(commits(out)) == ROUNDS * SHARDS
    for commit in commits(out):
        parts = [(each["slot"], each["steps"]) for each in commit["participants"]]
        assert parts == [(slot, PERIOD) for slot in SLOTS]


def check_state(place: Place, url: str) -> None:
    """It is in the run's own folder of the bucket, by shards; nothing is beside it."""
    assert url.startswith(f"{place.url}/")
    names = object_store(place).names("")
    run = url.removeprefix(f"{place.url}/")
    assert {name.split("/")[0] for name in names} == {run}
    for shard in range(SHARDS):
        assert f"{run}/{shard}/log/{1:016d}.json" in names
