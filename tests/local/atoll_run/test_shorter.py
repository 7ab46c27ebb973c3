"""A typo in a running job's length is taken back: its processes end at the shorter one."""

from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.folder.run_files import LENGTH_FILE, read_lines, write_whole
from atoll_protos.job.length import LengthFile
from local.background import running
from local.command import LIGHT, TINY, TWO_LEARNERS
from local.law import check_law

TYPO = 1_000_000


@pytest.mark.parametrize("preset", ["DecoupledDiLoCo", "DiLoCo"])
def test_a_running_job_that_is_made_shorter_ends_at_the_new_length(
    preset: str, tmp_path: Path
) -> None:
    """The file changes in place, as the operator's does; no process starts again."""
    out = tmp_path / "out"

    def tape(shard: int, event: str) -> list[dict[str, Any]]:
        lines = read_lines(out / "syncer" / f"{shard}.tape.jsonl")
        return [line for line in lines if line.get("event") == event]

    job = (
        *("--set", f"spec.sync={{preset: {preset}, period: 8}}", "--set", "spec.evaluator="),
        *("--set", "spec.syncer.startSeconds=1800"),  # both have their part
    )
    with running(TINY, out, "--set", f"spec.steps={TYPO}", *TWO_LEARNERS, *LIGHT, *job) as run:
        run.until(lambda: run.commits(0) and run.commits(1), "commits")
        steps = run.commits(0)[-1]["tick"] + 40
        run.edit(f"spec.steps={steps}")
        run.until(lambda: tape(0, "length") and tape(1, "length"), "the news")
        first = LengthFile(revision=1, steps=TYPO).to_json()
        write_whole(out / LENGTH_FILE, first)  # as a kubelet may show it once more
        code, stderr = run.finish()
    assert code == 0, stderr
    assert "started again" not in stderr
    for shard in (0, 1):
        assert [line["steps"] for line in tape(shard, "length")] == [steps]
        (final,) = tape(shard, "final")
        assert final["tick"] >= steps
        if preset == "DiLoCo":
            last = {line["slice"]: len(line["participants"]) for line in run.commits(shard)}
            assert set(last.values()) == {2}, "what both have done up to the end is merged"
    assert (out / "export" / "model.safetensors.index.json").exists()
    check_law(out)
