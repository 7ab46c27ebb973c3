"""The loops that people copy first give every learner its own data, and all the same start."""

from collections import Counter
from pathlib import Path

from local.atoll_run.shown_loops import PAGES
from local.command import json_lines, manifest, run_atoll

STEPS, PERIOD = 16, 4


def test_the_loops_of_the_pages_train_together_and_no_batch_is_trained_by_two_learners(
    tmp_path: Path,
) -> None:
    """Two learners of one job run the loop of each page."""
    file, script = tmp_path / "job.yaml", Path(__file__).with_name("shown_loop_script.py")
    regions = [
        {"name": f"page-{n}", "learners": 2, "podOverrides": {"args": [page, str(tmp_path)]}}
        for n, page in enumerate(PAGES)
    ]
    text = manifest(
        script,
        regions=regions,
        shards=1,
        start_seconds=1800,
        steps=STEPS,
        sync={"fragments": 1, "period": PERIOD, "overlap": 1},
    )
    file.write_text(text)
    run_atoll(file, tmp_path / "out")

    lines = {path.stem: json_lines(path) for path in tmp_path.glob("page-*.jsonl")}
    assert len(lines) == 2 * len(PAGES)
    assert len({found[0]["model"] for found in lines.values()}) == 1
    by_slot = {slot: [line["batch"] for line in found[1:]] for slot, found in lines.items()}
    assert all(len(batches) >= PERIOD for batches in by_slot.values()), by_slot
    times = Counter(batch for batches in by_slot.values() for batch in batches)
    twice = {slot: sum(times[b] > 1 for b in found) for slot, found in by_slot.items()}
    assert not any(twice.values()), twice
