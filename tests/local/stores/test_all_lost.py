"""All learners and what the shards had in a bucket are lost: a checkpoint brings the job back."""

import json
from pathlib import Path
from statistics import mean

import pytest

from atoll_syncer.checkpoints import restoring
from atoll_syncer.checkpoints.bucket_place import BucketPlace
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from local.background import running
from local.command import LIGHT, TINY, commits, run_atoll
from local.failures.test_checkpoints import begins, cursor_of, losses
from local.leftovers import check_none_is_left
from local.stores.opened import object_store
from local.stores.servers import Server

SLOTS = ("us-east-0", "eu-west-0", "ap-south-0")
SHARDS = 2
FAR = 60  # ticks, after which the loss is well below that of the beginning
MORE_STEPS = 40
STEADY = LIGHT[1].replace("step-milliseconds-min=30", "step-milliseconds-min=100")
SETTINGS = ("--set", STEADY, "--set", "spec.evaluator=", "--set", "spec.sync.fragments=4")


def test_a_job_that_lost_all_learners_and_its_folder_of_the_bucket_goes_on_from_a_checkpoint(
    moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, kept = moto.place(), moto.place()
    settings = (*SETTINGS, *state.used(monkeypatch))
    place = f"{{url: '{kept.url}', everySteps: 20, keep: 2, model: false}}"
    endless = ("--set", "spec.steps=1000000", "--set", f"spec.checkpoint={place}")
    out, again = tmp_path / "out", tmp_path / "again"

    def is_far(each: Checkpoint | None) -> bool:
        return each is not None and each.tick >= FAR and each.cursors.keys() >= {*SLOTS}

    def found(url: str = kept.url) -> Checkpoint | None:
        try:
            return restoring.find(url, lambda each: BucketPlace(each, kept.endpoint))
        except RestoreRefusedError:
            return None

    with running(TINY, out, *settings, *endless) as run:
        run.until(lambda: is_far(found()), "a whole checkpoint")
        run.process.kill()
        run.process.wait()
    check_none_is_left(out)
    store = object_store(state)
    for name in store.names(""):
        store.delete(name)
    assert found(state.url) is None

    parent = found()
    assert parent is not None
    length = ("--set", f"spec.steps={parent.tick + MORE_STEPS}", "--resume-from", kept.url)
    run_atoll(TINY, again, *settings, *length)
    assert begins(again) == [(parent.url, parent.tick)] * SHARDS
    assert {slot: cursor_of(again, slot) for slot in SLOTS} == parent.cursors
    assert {line["shard"] for line in commits(again)} == {*range(SHARDS)}
    assert json.loads((again / "summary.json").read_text())["result"] == "Complete"
    before, after = losses(out), losses(again)
    assert mean(after[:30]) < (mean(before[:15]) + mean(before[-60:])) / 2
