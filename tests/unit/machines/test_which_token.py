"""Which of several tokens is asked with, and the exit code where another try may help."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atoll_operator import cli
from atoll_operator.cli.tokens import revoked
from atoll_operator.local.supervision.ports import free_ports
from atoll_operator.machines.joined.entering import enter
from atoll_operator.machines.looking import kept
from atoll_operator.machines.token import Token
from atoll_protos.errors import SpecError
from unit.machines.laptop_side import atoll, line, with_run
from unit.machines.served import Served

OF_ANOTHER = str(Token.new("0" * 64))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with with_run(tmp_path, monkeypatch) as found:
        yield found


def new(served: Served, **may: bool) -> Token:
    return Token.parse(line(served, **may).split()[-1])


def test_a_kept_token_goes_before_a_variable_unless_the_server_refuses_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, edits = new(served, look=True), new(served, look=True), new(served, edit=True)
    monkeypatch.setenv("ATOLL_TOKEN", str(first))
    atoll("status", served.place)  # none is kept
    for variable in (OF_ANOTHER, str(served.token()), str(second)):
        monkeypatch.setenv("ATOLL_TOKEN", variable)
        atoll("status", served.place)
        assert kept.kept_for(served.place, first.digest) == first
    monkeypatch.setenv("ATOLL_TOKEN", str(edits))
    atoll("edit", served.place, "--steps", "70")
    assert kept.kept_for(served.place, first.digest) == edits
    revoked(served.out, edits.name)
    monkeypatch.setenv("ATOLL_TOKEN", str(second))
    atoll("status", served.place)
    assert kept.kept_for(served.place, first.digest) == second
    with pytest.raises(SpecError, match=f"{edits.name} is not a token of this job"):
        atoll("status", served.place, "--token", str(edits))  # no other one in its place


def test_a_variable_of_another_server_alone_is_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_TOKEN", OF_ANOTHER)
    with pytest.raises(SpecError, match=r"none is kept .* ATOLL_TOKEN has that of another server"):
        atoll("status", served.place)


def test_a_machine_that_is_known_goes_on_whatever_token_a_variable_has(
    served: Served, tmp_path: Path
) -> None:
    known = enter(served.options(tmp_path / "a", served.token()))[:2]
    options = served.options(tmp_path / "a")
    for variable in (OF_ANOTHER, str(served.token())):
        assert enter(replace(options, variable=variable)) == (*known, False)


@pytest.mark.parametrize("verb", ["status", "join"])
def test_a_server_that_is_away_is_another_exit_code_than_bad_input(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (port,) = free_ports(1)
    for token, code in ((OF_ANOTHER, 75), ("half", 2)):
        monkeypatch.setattr("sys.argv", ["atoll", verb, f"127.0.0.1:{port}", "--token", token])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == code
