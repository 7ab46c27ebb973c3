"""The values of a learner of several processes: what is captured and adopted equals full_tensor.

Real processes and real collectives (gloo), once for all checks of exchange_script.py, which
compare every bit on every rank.
"""

import ast
import json
from pathlib import Path

import pytest

from local.ranks.jobs import run_script

SCRIPT = Path(__file__).with_name("exchange_script.py")
RANKS = 4


def names_of_checks() -> list[str]:
    """Keys of CHECKS, read without importing torch's libraries for it."""
    for statement in ast.parse(SCRIPT.read_text()).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "CHECKS":
            assert isinstance(statement.value, ast.Dict)
            return [ast.literal_eval(key) for key in statement.value.keys if key is not None]
    raise AssertionError("there is no CHECKS")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each rank says of every check that it has made."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script(SCRIPT.name, folder, TORCHINDUCTOR_CACHE_DIR=str(folder / "of-torch"))
    return [read(folder / f"{rank}.jsonl") for rank in range(RANKS)]


def read(path: Path) -> dict[str, str]:
    return dict(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("check", names_of_checks())
def test_every_rank_agrees_with_torch(check: str, reports: list[dict[str, str]]) -> None:
    for rank, report in enumerate(reports):
        assert report[check] == "", f"rank {rank}: {report[check]}"
