"""The command `atoll` starts fast: a verb imports only what it needs."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator import cli

HEAVY = ("torch", "grpc", "matplotlib", "kubernetes", "kopf", "numpy", "aiohttp")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("validate", str(EXAMPLES / "tiny.yaml")), ("status", "no-such-folder")],
)
def test_verbs_that_start_nothing_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    script = (
        "import sys; from atoll_operator import cli\n"
        "try: cli.main()\n"
        f"finally: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_example_is_valid(file: Path) -> None:
    result = CliRunner().invoke(cli.app, ["validate", str(file)])
    assert result.exit_code == 0, result.output
    assert "valid" in result.output


def test_validate_says_what_only_a_cluster_refuses() -> None:
    several_shards = CliRunner().invoke(cli.app, ["validate", str(EXAMPLES / "tiny.yaml")])
    assert "a cluster does not accept it: spec.export: is missing" in several_shards.output
    exported = CliRunner().invoke(cli.app, ["validate", str(EXAMPLES / "three-regions.yaml")])
    assert "does not accept" not in exported.output


def test_the_version_is_the_installed_packages() -> None:
    shown = CliRunner().invoke(cli.app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"atoll {importlib.metadata.version('atoll')}\n"


def test_shells_can_complete_verbs_and_options() -> None:
    help_text = CliRunner().invoke(cli.app, ["--help"]).output
    assert "--install-completion" in help_text
    asked = {"_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": "atoll val", "COMP_CWORD": "1"}
    offered = CliRunner().invoke(cli.app, env=asked, prog_name="atoll")
    assert offered.output.split() == ["validate"]
