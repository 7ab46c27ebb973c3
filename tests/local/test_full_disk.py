"""A model that cannot be written is said, and waits; the job is Complete once it can."""

import json
from pathlib import Path
from typing import Any

from local.background import running
from local.command import TINY, TWO_LEARNERS


def test_an_export_that_fails_is_tried_again_and_said(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def conditions() -> dict[str, dict[str, Any]]:
        status = json.loads((out / "status.json").read_text())
        return {each["type"]: each for each in status["conditions"]}

    with running(TINY, out, "--set", "spec.steps=40", *TWO_LEARNERS) as run:
        # The shards have looked at the folder, and the learners have all their steps before them.
        run.until((out / "status.json").exists, "a status")
        run.until(lambda: conditions()["SyncerReady"]["status"] == "True", "the shards")
        (out / "export").write_text("this is no folder")
        run.until(lambda: conditions()["Degraded"]["reason"] == "StoreTrouble", "its word")
        found = conditions()
        assert str(out / "export") in found["Degraded"]["message"]
        assert found["Progressing"]["reason"] == "Exporting"
        assert found["Complete"]["status"] == "False"
        (out / "export").unlink()
        code, stderr = run.finish()
    assert code == 0, stderr
    assert (out / "export" / "model.safetensors.index.json").exists()
