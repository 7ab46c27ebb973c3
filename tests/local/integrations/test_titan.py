"""torchtitan's own loop trains its debug model as learners of several ranks."""

import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from local.command import TESTS, commits, ended, json_lines, python_path
from local.installed import titan
from local.one_shard import SLOT, OneShard, one_shard

pytestmark = pytest.mark.long
LIBRARIES = TESTS.parent / "examples" / "libraries"
RANKS, BATCH, LENGTH, STEPS = 2, 2, 64, 24
PERIOD = ("--set", "spec.sync.period=8")
SHORT = ("--training.seq_len", str(LENGTH))
KILL_STEP = 9


@pytest.fixture(scope="module")
def python() -> Path:
    return titan()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks no server for anything and takes one core for each rank."""
    more = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    paths = {"PYTHONPATH": python_path(LIBRARIES, TESTS)}
    for name, value in (more | paths).items():
        monkeypatch.setenv(name, value)


def done(*words: object) -> str:
    """What a command that must succeed says."""
    found = ended(*words)
    assert found.returncode == 0, found.stdout + found.stderr[-4000:]
    return found.stdout + found.stderr


def train(python: Path, folder: Path, *flags: object, titan: Sequence[str] = ()) -> Path:
    """A job of titan_llama.py with its checkpoints in `folder`/saved; the folder of the run."""
    out = folder / "out"
    done(
        *(python.with_name("atoll"), "run", LIBRARIES / "titan_llama.py", "--out", out),
        *("--processes-per-learner", RANKS, "--steps", STEPS, *flags, "--"),
        *("--checkpoint.enable", "--checkpoint.interval", 10),
        *("--dump_folder", folder / "saved", *SHORT, *titan),
    )
    return out


def participants(out: Path) -> set[str]:
    """Those of whose work something was merged."""
    return {each["slot"] for line in commits(out) for each in line["participants"]}


def steps_of(out: Path, slot: str) -> list[dict[str, Any]]:
    lines = json_lines(out / "learners" / f"{slot}.jsonl")
    return [line for line in lines if line.get("tokens") and "t_m" in line]


def logged(log: Path) -> list[float]:
    """The losses that torchtitan has logged on rank 0."""
    return [
        float(each) for each in re.findall(r"\[rank0\].*step:.*?loss:\s*([\d.]+)", log.read_text())
    ]


def check_saved(python: Path, export: Path, saved: Path) -> None:
    """What torchtitan has saved last is what was exported, and that is torchtitan's model."""
    found = (saved / "checkpoint").glob("step-*")
    last = max(found, key=lambda path: int(path.name.removeprefix("step-")))
    done(python, Path(__file__).with_name("titan_load_script.py"), export, last)


def test_learners_of_two_ranks_train_together_and_save_and_export_the_same(
    python: Path, tmp_path: Path
) -> None:
    out, saved = train(python, tmp_path, "--learners", 2, *PERIOD), tmp_path / "saved"
    slots = {"local-0", "local-1"}
    assert participants(out) == slots
    for slot in slots:
        steps = steps_of(out, slot)
        assert {line["tokens"] for line in steps} == {RANKS * BATCH * LENGTH}
        losses = [line["loss"] for line in steps]
        ours = logged(out / "logs" / f"{slot}.log")[: len(losses)]
        assert losses == pytest.approx(ours, abs=2e-5)  # of all ranks; the log rounds
        assert sum(losses[-4:]) / 4 < losses[0] - 1
    done(python.with_name("atoll"), "export", out, "--out", tmp_path / "export")
    for slot in slots:
        check_saved(python, tmp_path / "export", saved / slot)


SHAPES = {
    "context": ("--parallelism.context_parallel_degree", "2", "--training.seq_len", "256"),
    "pipeline": (
        *("--parallelism.pipeline_parallel_degree", "2", "--training.disable_cuda_graphs"),
        *("--parallelism.pipeline_parallel_schedule", "1F1B"),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_train_and_save_and_export_the_same(
    shape: str, python: Path, tmp_path: Path
) -> None:
    job = ("--learners", 1, "--set", "spec.steps=8", "--set", "spec.sync.period=4")
    out = train(python, tmp_path, *job, titan=SHAPES[shape])
    assert commits(out)
    steps = steps_of(out, "local-0")
    tokens = BATCH * (256 if shape == "context" else LENGTH)
    assert {line["tokens"] for line in steps} == {tokens}
    assert all(1 < line["loss"] < 9 for line in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]
    check_saved(python, out / "export", tmp_path / "saved" / "local-0")


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    with one_shard(tmp_path, steps=14) as found:
        yield found


def test_the_data_go_on_at_the_cursor_whatever_checkpoint_there_is(
    python: Path, shard: OneShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = (python, "-m", "atoll_worker", "launch", "--nproc-per-node", RANKS, "--")
    script = (Path(__file__).with_name("titan_batches_script.py"), *SHORT)
    saves = ("--dump_folder", tmp_path / "saved", "--checkpoint.enable", "--checkpoint.interval", 2)
    command = (*launch, *script, *saves)

    def batches(folder: str) -> list[dict[int, Any]]:
        """Of each rank, by step."""
        files = [json_lines(tmp_path / folder / f"{rank}.jsonl") for rank in range(RANKS)]
        return [{line["step"]: line["batch"] for line in lines} for lines in files]

    def noted(folder: str) -> None:
        (tmp_path / folder).mkdir()
        monkeypatch.setenv("NOTES", str(tmp_path / folder))

    noted("first")
    monkeypatch.setenv("KILL_STEP", str(KILL_STEP))
    assert ended(*command).returncode == -signal.SIGKILL
    monkeypatch.delenv("KILL_STEP")
    first = batches("first")
    assert [min(each) for each in first] == [1, 1]
    assert first[0] != first[1]

    saved = tmp_path / "saved" / SLOT / "checkpoint"
    for step in (4, 6, 8):  # the next process finds one that is older than the cursor
        shutil.rmtree(saved / f"step-{step}", ignore_errors=True)
    assert (saved / "step-2").exists()
    noted("second")
    said = done(*command)
    assert "Finished loading the checkpoint" in said
    second = batches("second")
    begin = min(second[0])
    assert 3 < begin <= KILL_STEP  # nothing is repeated that was merged
    for one, other in zip(first, second, strict=True):
        both = one.keys() & other.keys()
        assert both == set(range(begin, KILL_STEP + 1))
        assert all(one[step] == other[step] for step in both)

    # A job that begins finds a checkpoint that is further.
    for name in ("RUN_FILE", "ENDPOINTS", "SLOT", "TELEMETRY_DIR"):
        monkeypatch.delenv(f"ATOLL_{name}")
    monkeypatch.setenv("ATOLL_STEPS", "3")
    (tmp_path / "saved" / SLOT).rename(tmp_path / "saved" / "alone-0")
    noted("third")
    assert "Finished loading the checkpoint" in done(*command)
    third = batches("third")
    assert [sorted(each) for each in third] == [[1, 2, 3], [1, 2, 3]]
    assert all(
        one[step] == other[step] for one, other in zip(first, third, strict=True) for step in other
    )
