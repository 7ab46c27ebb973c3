"""TRL's SFTTrainer, and a loop like those of diffusers' training scripts, as learners."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from local.command import TESTS, commits, ended, python_path
from local.installed import trainers
from local.one_shard import one_shard

pytestmark = pytest.mark.long
LIBRARIES = TESTS.parent / "examples" / "libraries"
SCRIPT = Path(__file__).with_name("trainers_script.py")
STEPS, PERIOD, STEP_BATCHES = 12, 4, 2  # PERIOD: of one_shard
ROUNDING = 1e-6  # two ranks and one gave equal bits; one wrong gradient moves a value by 1e-4
SAVED = {"sft": "model.safetensors", "diffusion": "unet/diffusion_pytorch_model.safetensors"}
LOAD = """
import sys
from diffusers import UNet2DModel
from safetensors.torch import load_file
model = UNet2DModel.from_config(UNet2DModel.load_config(sys.argv[1]))
model.load_state_dict(load_file(f"{sys.argv[1]}/model.safetensors"), strict=True)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return trainers()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask no server for anything and take one core for each rank."""
    more = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    for name, value in (more | {"PYTHONPATH": python_path(LIBRARIES, TESTS)}).items():
        monkeypatch.setenv(name, value)


def done(*words: object) -> None:
    found = ended(*words)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-4000:]


def command(python: Path, ranks: int, example: str, folder: Path) -> list[object]:
    """What a container of a learner has; the batches are noted in `folder`."""
    (folder / "notes").mkdir(exist_ok=True)
    launch = (python, "-m", "atoll_worker", "launch", "--nproc-per-node", ranks, "--")
    return [*launch, SCRIPT, example, folder / "notes", "--output-dir", folder / "saved"]


def noted(folder: Path) -> list[list[int]]:
    """The batches of each rank."""
    return [[*map(int, each.read_text().split())] for each in sorted((folder / "notes").iterdir())]


def distance(one: Path, other: Path) -> float:
    """The largest difference of two values in two files with the same names."""
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    return max(float((tensor - second[name]).abs().max()) for name, tensor in first.items())


@pytest.mark.parametrize("example", SAVED)
def test_two_ranks_export_and_save_what_one_does(
    example: str, python: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    exported, told = [], []
    for ranks, folder in enumerate(folders, 1):
        folder.mkdir()
        with one_shard(folder, steps=STEPS, lockstep=True) as shard:
            done(*command(python, ranks, example, folder))
            exported.append(shard.exported())
        told.append(shard.steps)
    (whole,) = noted(folders[0])
    steps = [sorted(whole[at : at + 2]) for at in range(0, len(whole), STEP_BATCHES)]
    assert [sorted(each) for each in zip(*noted(folders[1]), strict=True)] == steps
    saved = [folder / "saved" / SAVED[example] for folder in folders]
    for one, two in zip(*told, strict=True):
        assert one["tokens"] == two["tokens"]
        if example == "sft":  # the loop tells the loss of the last batch that it accumulates
            assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    assert distance(*exported) < ROUNDING
    assert distance(*saved) < ROUNDING
    own = distance(exported[0], saved[0])
    if example == "diffusion":  # it saves the average
        assert 0 < own < 0.01
        done(python, "-c", LOAD, exported[0].parent)
    else:
        assert own == 0


@pytest.mark.parametrize(
    ("example", "arguments"), [("sft", ["--lora"]), ("diffusion", [])], ids=["sft", "diffusion"]
)
def test_two_learners_train_one_model(
    example: str, arguments: list[str], python: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings = ("--set", "spec.sync.quorum=2", "--set", "spec.sync.period=8")
    job = ("--learners", 2, "--steps", 40, "--out", out, *settings)
    script = LIBRARIES / f"{example}.py"
    saves = ("--output-dir", tmp_path / "saved")
    done(python.with_name("atoll"), "run", script, *job, "--", *arguments, *saves)
    merged = {each["slot"] for line in commits(out) for each in line["participants"]}
    assert merged == {"local-0", "local-1"}
    if example == "sft":
        name = "adapter_model.safetensors"
        assert distance(out / "export" / name, tmp_path / "saved" / name) == 0
