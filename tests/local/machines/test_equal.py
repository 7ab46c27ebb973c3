"""In lock-step, machines come to the numbers of one machine, bit for bit."""

from pathlib import Path

from local.arithmetic import lockstep_script
from local.command import json_lines, manifest, run_atoll
from local.lockstep_model import LEARNERS, PERIOD, ROUNDS
from local.machines.commands import commands_in

REGIONS = tuple(f"region-{n}" for n in range(LEARNERS))


def written(folder: Path, name: str) -> Path:
    """The manifest of the equality tests; learners meet below the folder."""
    job = folder / f"{name}.yaml"
    text = manifest(
        Path(lockstep_script.__file__),
        regions=REGIONS,
        env={"MEETING": str(folder / f"{name}-meeting")},
        steps=ROUNDS * PERIOD,
        sync={"preset": "DiLoCo", "period": PERIOD},
    )
    job.write_text(text)
    return job


def losses(folder: Path, region: str) -> dict[int, float]:
    """By step, as far as the job goes; learners may make some more."""
    lines = json_lines(folder / "learners" / f"{region}-0.jsonl")
    steps = range(1, ROUNDS * PERIOD + 1)
    return {line["t_m"]: line["loss"] for line in lines if line.get("t_m") in steps}


def export(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "export").glob("*.safetensors")}


def test_two_machines_equal_one_in_every_loss_and_in_the_model(tmp_path: Path) -> None:
    one = tmp_path / "one"
    run_atoll(written(tmp_path, "alone"), one)
    with commands_in(tmp_path) as here:
        server = here.serve(written(tmp_path, "apart"))
        line = server.says("ATOLL_TOKEN=")
        houses = [here.join(line, f"house-{x}", "--region", x) for x in REGIONS]
        assert [each.end() for each in (*houses, server)] == [0] * (LEARNERS + 1), server.logs()
    assert export(server.out) == export(one) != {}
    for region, house in zip(REGIONS, houses, strict=True):
        known = losses(one, region)
        assert len(known) == ROUNDS * PERIOD
        assert losses(house.out, region) == known
