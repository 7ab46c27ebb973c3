"""One run that a person changes while it trains: its learners, its length, a pause, its end."""

from pathlib import Path

from atoll_operator.api.job.parsing import parse
from atoll_operator.local import run_manifest
from atoll_operator.local.last_status import read_status
from atoll_operator.local.run_files import MANIFEST_FILE, read_lines
from local.background import Running, running
from local.command import ATOLL, LIGHT, TINY, TWO_LEARNERS, ended, tapes
from local.law import check_law
from local.leftovers import check_none_is_left, lives

ENDLESS = 1_000_000
REGIONS = "spec.regions=[{name: us-east}, {name: eu-west}]"
STEPS = ("--set", f"spec.steps={ENDLESS}")
TOGETHER = ("--set", "spec.sync={preset: DiLoCo, period: 4}")  # a merge has the work of all


def edit(run: Running, *words: str) -> str:
    done = ended(ATOLL, words[0], run.out, *words[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout


def merged_last(run: Running) -> set[str]:
    commits = run.commits(0)
    return {each["slot"] for each in commits[-1]["participants"]} if commits else set()


def reasons(run: Running, slot: str) -> list[str]:
    """Why the starts of a learner have ended."""
    lines = read_lines(run.out / "learners" / f"{slot}.jsonl")
    return [line["reason"] for line in lines if line.get("event") == "end"]


def test_learners_come_and_go_and_the_run_pauses_and_is_stopped(tmp_path: Path) -> None:
    out, both = tmp_path / "out", {"us-east-0", "eu-west-0"}
    with running(TINY, out, *LIGHT, *TWO_LEARNERS, *STEPS, *TOGETHER) as run:
        run.until(lambda: merged_last(run) == both, "merges of two")
        names: tuple[str | int, ...] = (*sorted(both), 0, 1)
        before = {name: run.row(name) for name in names}
        said = edit(run, "edit", "--learners", "eu-west=2", "--learners", "asia=1")
        assert "eu-west has 2 learners, it had 1" in said
        assert "asia is a new region; its learners: 1" in said
        newcomers = ("eu-west-1", "asia-0")
        run.until(lambda: merged_last(run) == {*both, *newcomers}, "merges of four")
        pids = [run.row(name)["pid"] for name in newcomers]
        run_manifest.edit(out, [REGIONS])
        edit(run, "edit", "--steps", f"{ENDLESS + 1}")
        run.until(lambda: not any(map(lives, pids)), "the end of the newcomers")
        assert [reasons(run, name) for name in newcomers] == [["terminated"]] * 2
        four = len(run.commits(0))
        run.until(lambda: len(run.commits(0)) > four + 4, "more merges")
        assert merged_last(run) == both
        assert {name: run.row(name) for name in names} == before, "nobody has started again"

        edit(run, "suspend")
        run.until(lambda: read_status(out).true_condition("Suspended"), "the pause")
        run.until(lambda: run.row(0)["pid"] is None, "the end of the shards")
        assert not any(lives(row["pid"]) for row in before.values())
        reached = run.commits(0)[-1]["version"]
        edit(run, "resume")
        run.until(lambda: run.commits(0)[-1]["version"] > reached + 2, "merges after the pause")
        assert {line["run"] for line in tapes(out)} == {run.commits(0)[0]["run"]}

        edit(run, "stop")
        code, stderr = run.finish()
    assert code == 0, stderr
    assert "Traceback" not in stderr
    length = parse((out / MANIFEST_FILE).read_text()).spec.steps
    assert length is not None
    assert length < ENDLESS
    finals = [line["tick"] for line in tapes(out) if line.get("event") == "final"]
    assert len(finals) == 2
    assert all(tick >= length for tick in finals)
    assert (out / "export" / "model.safetensors.index.json").exists()
    check_none_is_left(out)
    check_law(out)
