import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_protos import allocator, logs
from atoll_worker import __main__ as runner

MODULE = """
import subprocess
import sys
from atoll_worker.errors import LearnerError

def good(): assert sys.argv[1:] == ["--layers", "3"]
def seven(): return 7
def words(): return "done"
def wrong(): raise ValueError("a bug")
def refused(): raise LearnerError(77, "a higher incarnation")
def stopped(): raise SystemExit(0)
number = 3
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "user_module.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["atoll-worker"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logs, "configure", lambda: None)
    monkeypatch.setattr(allocator, "tune", lambda: True)
    yield
    sys.modules.pop("user_module", None)


@pytest.mark.parametrize(
    ("name", "code"), [("seven", 7), ("words", 0), ("wrong", 70), ("refused", 77)]
)
def test_what_a_function_does_is_its_exit_code(name: str, code: int) -> None:
    assert runner.main([f"user_module:{name}"]) == code


def test_the_function_finds_its_arguments() -> None:
    assert runner.main(["user_module:good", "--layers", "3"]) == 0


def test_an_exit_of_its_own_stays() -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(["user_module:stopped"])
    assert caught.value.code == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "names no function"),
        (["user_module"], "names no function"),
        (["nowhere:train"], "there is no module nowhere"),
        (["user_module.inner:train"], "there is no module user_module.inner"),
        (["user_module:number"], "user_module has no function number"),
    ],
)
def test_a_command_that_names_nothing_is_bad_input(
    command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(command) == 64
    assert said in capsys.readouterr().out


def test_a_module_that_cannot_be_imported_is_a_bug_of_its_own() -> None:
    assert runner.main(["broken_module:train"]) == 70


def test_launch_is_the_launcher(capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["launch"]) == 64
    assert "names no command" in "".join(capfd.readouterr())


@pytest.mark.parametrize("program", ["worker", "operator", "syncer"])
def test_every_program_answers_help_with_its_usage(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"atoll_{program}", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:6], done.stderr) == (0, "usage:", "")
