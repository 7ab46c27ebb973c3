"""Learners one after the other in one process: all their tokens are accounted for."""

from collections import defaultdict
from pathlib import Path

from local.command import json_lines, manifest, run_atoll

FRAGMENTS, SHARDS, STEPS = 2, 1, 50


def test_every_opening_is_an_incarnation_and_the_tokens_of_all_are_accounted_for(
    tmp_path: Path,
) -> None:
    """With one instance for all, the counters went back to 0 and their tokens were missing."""
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    script, sync = Path(__file__).with_name("phases_script.py"), {"period": 6, "overlap": 1}
    sync["fragments"] = FRAGMENTS
    job.write_text(manifest(script, regions=["one"], shards=SHARDS, steps=STEPS, sync=sync))
    run_atoll(job, out)
    lines = json_lines(out / "learners" / "one-0.jsonl")
    instances = [line["instance"] for line in lines if line.get("event") == "start"]
    first = instances[0]
    assert instances == [first, *(f"{first}.{n}" for n in range(2, len(instances) + 1))]
    assert len(instances) >= STEPS // 15

    trained: dict[int, int] = defaultdict(int)
    accounted: dict[tuple[int, int, int], int] = defaultdict(int)
    ended = []
    for line in lines:
        incarnation = line["incarnation"]
        trained[incarnation] += line["tokens"] if line.get("event") is None else 0
        for each in line.get("adopted", ()):
            became = each["merged"] + each["overlap"] + each["late"]
            accounted[incarnation, each["shard"], each["slice"]] += became
        if line.get("event") == "end":
            ended.append(incarnation)
            assert line["tokens"] == trained[incarnation]
            for name, pending in line["pending"].items():
                shard, part = map(int, name.split("/"))
                accounted[incarnation, shard, part] += pending
    assert ended == [*range(1, len(instances) + 1)]
    slices = [(shard, part) for shard in range(SHARDS) for part in range(FRAGMENTS)]
    assert dict(accounted) == {
        (incarnation, *each): trained[incarnation] for incarnation in ended for each in slices
    }
