"""The manifests in examples/ are valid, and a script of one's own trains."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator.cli import app
from local.command import TESTS, json_lines, run_atoll

EXAMPLES = TESTS.parent / "examples"
STEPS = 24


@pytest.mark.parametrize("manifest", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_manifest_of_the_examples_is_valid(manifest: Path) -> None:
    result = CliRunner().invoke(app, ["validate", str(manifest)])
    assert result.exit_code == 0, result.output


@pytest.mark.fresh
def test_a_script_of_ones_own_trains_with_its_folder_command_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the manifest's workingDir begins in its own folder
    # Every round waits for both, so that both make all steps, however fast each of them is.
    settings = (f"spec.steps={STEPS}", "spec.sync.quorum=2", "spec.syncer.startSeconds=1800")
    words = [word for each in settings for word in ("--set", each)]
    run_atoll(EXAMPLES / "script.yaml", tmp_path / "out", *words)

    tokens = {}
    for slot in ("us-east-0", "eu-west-0"):
        lines = json_lines(tmp_path / "out" / "learners" / f"{slot}.jsonl")
        steps = [line for line in lines if line.get("tokens") and "t_m" in line]
        tokens[slot] = {line["tokens"] for line in steps}
        assert steps[-1]["loss"] < steps[0]["loss"]
    assert tokens == {"us-east-0": {16 * 48}, "eu-west-0": {8 * 48}}
    assert (tmp_path / "out" / "export" / "model.safetensors.index.json").exists()
