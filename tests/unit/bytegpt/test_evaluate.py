import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atoll_protos.errors import SpecError
from bytegpt import evaluate
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT, Size

SMALL = Size(layers=1, heads=2, width=16, context=8)
OPTIONS = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "8"]


def exported(folder: Path, seed: int = 4) -> ByteGPT:
    """An export in two files."""
    model = ByteGPT(SMALL, seed=seed)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    weight_map = {}
    for number, name in enumerate(state):
        weight_map[name] = f"model-{number % 2}.safetensors"
    for file in set(weight_map.values()):
        save_file({n: state[n] for n, f in weight_map.items() if f == file}, folder / file)
    (folder / evaluate.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return model


def test_the_loss_is_the_mean_over_all_predicted_bytes_and_the_mode_stays() -> None:
    model = ByteGPT(SMALL, seed=1)
    windows = torch.randint(256, (evaluate.BATCH + 3, 9))
    expected = torch.stack([model.loss(each[None]) for each in windows]).mean().item()
    assert heldout_loss(model, windows) == pytest.approx(expected, rel=1e-5)
    assert model.training


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(tmp_path)
    text = tmp_path / "text.bin"
    text.write_bytes(bytes(range(256)) * 2000)
    arguments = [*OPTIONS, "--export", str(tmp_path), "--data", str(text)]
    assert evaluate.main([*arguments, "--heldout-bytes", "800"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["bytes"] == 800
    assert 4 < found["loss"] < 8
    assert said.err == f"{tmp_path}: the loss on held-out bytes of {text}\n"


def test_a_missing_export_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([*OPTIONS, "--export", str(tmp_path / "no")]) == 64
    assert "cannot be read" in capsys.readouterr().err
    before, after = exported(tmp_path), ByteGPT(SMALL, seed=0)
    evaluate.load(after, tmp_path)
    for name, value in before.state_dict().items():
        assert torch.equal(value, after.state_dict()[name])
    with pytest.raises(SpecError, match=r"of another size: Missing key.* \"blocks\.1"):
        evaluate.load(ByteGPT(Size(layers=2, heads=2, width=16), seed=0), tmp_path)
    with pytest.raises(SpecError, match=r"size: size mismatch for .*; give --layers, --w"):
        evaluate.load(ByteGPT(Size(layers=1, heads=2, width=32, context=8), seed=0), tmp_path)


def test_anothers_model_is_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {f"encoder.{number}.weight": torch.zeros(2) for number in range(30)}
    save_file(names, tmp_path / "model.safetensors")
    file = str(tmp_path / "model.safetensors")
    assert evaluate.main([*OPTIONS, "--export", file]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "another model than the built-in byte-level GPT: encoder.0.weight and 29 other" in line
    assert len(line) < 300
