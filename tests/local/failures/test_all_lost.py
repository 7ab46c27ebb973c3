"""All learners and all shards' stores are lost under a living `atoll run` (rule 43)."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.folder.run_files import CHECKPOINTS_FOLDER, STORES_FOLDER, read_lines
from atoll_syncer.checkpoints import restoring
from atoll_syncer.checkpoints.places import FolderPlace
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from local.background import Running, running
from local.command import LIGHT, TINY, TWO_LEARNERS

EVERYBODY = (0, 1, "us-east-0", "eu-west-0")
ENDLESS = (*LIGHT, *TWO_LEARNERS, "--set", "spec.steps=1000000", "--set", "spec.sync.fragments=2")


def runs(run: Running) -> list[dict[str, Any]]:
    lines = read_lines(run.out / "syncer" / "0.tape.jsonl")
    return [line for line in lines if line.get("event") == "run"]


def newest(place: Path) -> Checkpoint | None:
    """A whole checkpoint that has something of both learners."""
    try:
        found = restoring.find(f"file://{place}", lambda url: FolderPlace(Path(url[7:])))
    except RestoreRefusedError:
        return None
    return found if len(found.cursors) == 2 else None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("every", [20, None])
def test_a_run_that_lost_everything_begins_with_its_newest_checkpoint_and_says_so(
    tmp_path: Path, every: int | None
) -> None:
    out = tmp_path / "out"
    place = out / CHECKPOINTS_FOLDER
    given = f"{{everySteps: {every}, keep: 2, model: false}}" if every else "{keep: 2}"
    kept = list[Checkpoint]()

    def lose() -> None:
        if every:
            found = newest(place)
            assert found is not None
            kept.append(found)
        shutil.rmtree(out / STORES_FOLDER)

    with running(TINY, out, *ENDLESS, "--set", f"spec.checkpoint={given}") as run:
        run.until(lambda: len(run.commits(0)) > 8, "commits")
        run.until(lambda: newest(place) or not every, "a whole checkpoint")
        run.kill(*EVERYBODY, then=lose)
        run.until(lambda: len(runs(run)) == 2, "another run")
        commits = [len(run.commits(shard)) for shard in range(2)]
        run.until(lambda: all(len(run.commits(n)) > commits[n] for n in range(2)), "its commits")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    lost, began = runs(run)
    (said,) = [line for line in stderr.splitlines() if line.startswith("lost: ")]
    assert lost["run"] in said
    assert "--resume-from" in said
    summary = json.loads((out / "summary.json").read_text())
    assert summary["lost_runs"] == [lost["run"]]
    if not every:
        assert "begins at step 0" in said
        assert "checkpoint" not in began
        return
    (checkpoint,) = kept
    assert (began["checkpoint"], began["tick"]) == (checkpoint.url, checkpoint.tick)
    assert began["parent"] == lost["run"]
    assert checkpoint.url in said
    for slot in EVERYBODY[2:]:
        lines = read_lines(out / "learners" / f"{slot}.jsonl")
        starts = [line["cursor"] for line in lines if line.get("event") == "start"]
        assert starts[-1] == checkpoint.cursors[str(slot)]
    assert summary["tokens"]["trained"] > 0
