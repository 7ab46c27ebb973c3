"""A full disk and a model that cannot be written are said, and wait; then the job is Complete."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.background import running
from local.command import TINY, TWO_LEARNERS

SMALL_BYTES = 64 << 20  # of the file system, which the run needs a part of


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, as root can make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount: list[str | Path] = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={SMALL_BYTES}",
        "atoll-test",
        folder,
    ]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Leave no room at all on its file system."""
    with file.open("wb", buffering=0) as rest:
        for size in (1 << 20, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while rest.write(b"x" * size) == size:
                    pass


def test_a_disk_that_is_full_and_an_export_that_fails_are_said_and_tried_again(
    small: Path, tmp_path: Path
) -> None:
    out = small / "out"

    def conditions() -> dict[str, dict[str, Any]]:
        status = json.loads((out / "status.json").read_text())
        return {each["type"]: each for each in status["conditions"]}

    def blocked() -> dict[str, dict[str, Any]]:
        """The conditions once they say that the export cannot be written."""
        now = conditions()
        reasons = (now["Progressing"]["reason"], now["Degraded"]["reason"])
        return now if reasons == ("Exporting", "StoreTrouble") else {}

    # Each learner waits for its gate; then it prints something, and trains.
    gate = tmp_path / "gate"
    train = f"exec {sys.executable} -m atoll_worker bytegpt.train:main"
    mine = f"{gate}-$ATOLL_SLOT"
    wait = f"until [ -e {mine} ]; do sleep 0.1; done; echo hello && touch {mine}-said; {train}"
    containers = json.dumps([{"command": ["sh", "-c", wait]}])
    settings = (
        "spec.steps=40",
        "spec.syncer.startSeconds=1",
        f"spec.learner.template.spec.containers={containers}",
    )
    words = [word for each in settings for word in ("--set", each)]
    with running(TINY, out, *words, *TWO_LEARNERS) as run:
        run.until((out / "status.json").exists, "a status")
        seeding = "shard 0 Seeding, shard 1 Seeding"  # they have looked at the folder
        run.until(lambda: conditions()["SyncerReady"]["message"] == seeding, seeding)
        (out / "export").rmdir()
        (out / "export").write_text("this is no folder")
        Path(f"{gate}-us-east-0").touch()
        run.until(lambda: run.commits(0), "a commit")
        filler = small / "filler"
        fill(filler)
        assert run.process.stderr is not None
        told = "the run continues, commits wait, and what cannot be written is tried again"
        assert "No space left" in next(line for line in run.process.stderr if told in line)
        Path(f"{gate}-eu-west-0").touch()  # it prints to the full disk
        run.until(Path(f"{gate}-eu-west-0-said").exists, "its words")
        filler.unlink()
        run.until((out / "learners" / "eu-west-0.jsonl").exists, "its start")
        found = run.until(blocked, "its word")
        assert str(out / "export") in found["Degraded"]["message"]
        assert found["Complete"]["status"] == "False"
        (out / "export").unlink()
        code, stderr = run.finish()
    assert code == 0, stderr
    assert "Traceback" not in stderr
    assert "is started again" not in stderr
    assert "the run continues" not in stderr  # it was told once
    assert "hello" in (out / "logs" / "eu-west-0.log").read_text()
    for name in ("loss.png", "goodput.png", "summary.json"):
        assert (out / name).stat().st_size, name
    assert [*out.glob("tensorboard/us-east-0/*")]
    assert (out / "export" / "model.safetensors.index.json").exists()
