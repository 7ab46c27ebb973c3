"""A machine that has its state before it trains, by a token that is not on the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.machines.joined import folder as joined_folder
from unit.machines.served import Served


def test_a_machine_enters_once_and_does_not_train(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_TOKEN", str(served.token(uses=1)))
    state = tmp_path / "state"
    words = ["join", served.place, "--name", "house", "--state", str(state), "--enter-only"]
    words += ["--", "no-such-program"]  # which is not even looked for
    for _ in range(2):
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 0, done.output
        assert "machine house of job tiny: us-0" in done.stderr
        assert "started with it, it trains" in done.stderr
    machine = joined_folder.read(state)
    assert machine is not None
    assert machine.slots == ("us-0",)
    assert not (state / "logs").exists()
    assert [each for each in served.said if "has entered" in each] == served.said[-1:]
