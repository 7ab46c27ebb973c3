"""A model that cannot be written is said, and waits; the job is Complete once it can."""

import json
import sys
from pathlib import Path
from typing import Any

from local.background import running
from local.command import TINY, TWO_LEARNERS


def test_an_export_that_fails_is_tried_again_and_said(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def conditions() -> dict[str, dict[str, Any]]:
        status = json.loads((out / "status.json").read_text())
        return {each["type"]: each for each in status["conditions"]}

    def blocked() -> dict[str, dict[str, Any]]:
        """The conditions once they say that the export cannot be written."""
        now = conditions()
        reasons = (now["Progressing"]["reason"], now["Degraded"]["reason"])
        return now if reasons == ("Exporting", "StoreTrouble") else {}

    # The learners wait with their first step until the export cannot be written.
    gate = tmp_path / "gate"
    train = f"exec {sys.executable} -m atoll_worker bytegpt.train:main"
    command = ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.1; done; {train}"]
    containers = json.dumps([{"command": command}])
    settings = ("spec.steps=40", f"spec.learner.template.spec.containers={containers}")
    words = [word for each in settings for word in ("--set", each)]
    with running(TINY, out, *words, *TWO_LEARNERS) as run:
        run.until((out / "status.json").exists, "a status")
        seeding = "shard 0 Seeding, shard 1 Seeding"  # they have looked at the folder
        run.until(lambda: conditions()["SyncerReady"]["message"] == seeding, seeding)
        (out / "export").write_text("this is no folder")
        gate.touch()
        found = run.until(blocked, "its word")
        assert str(out / "export") in found["Degraded"]["message"]
        assert found["Complete"]["status"] == "False"
        (out / "export").unlink()
        code, stderr = run.finish()
    assert code == 0, stderr
    assert (out / "export" / "model.safetensors.index.json").exists()
