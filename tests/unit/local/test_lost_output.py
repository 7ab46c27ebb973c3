"""A run goes on, and ends with its own code, where nobody takes what it writes."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from atoll_operator.cli.app import main
from atoll_operator.local.show.live import RunView, TableView, line
from atoll_operator.local.show.run_summary import RunResult
from atoll_protos.errors import SpecError
from unit.local.test_local_status import reply, snapshot


def closed_pipe() -> TextIO:
    """As after `atoll serve ... | head`."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def lost_terminal() -> TextIO:
    """As when the window is closed, and nohup or a background job keeps the process."""
    master, slave = os.openpty()
    os.close(master)
    return os.fdopen(slave, "w")


MODULE = sys.modules[main.__module__]  # the package has the app under this name
Place = Callable[[], TextIO]
both = pytest.mark.parametrize("place", [closed_pipe, lost_terminal])


@contextmanager
def nobody_takes(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """In the body of a test: between fixtures and it pytest sets the streams again."""
    file = place()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        patch.setattr(sys, "stderr", file)
        yield file
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # what waits is written at its end
    file.close()


@both
def test_lines_that_nobody_takes_end_no_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with nobody_takes(place, monkeypatch):
        view = RunView(line)
        view.say("a line")
        view.show(snapshot([reply()]), view.shown_at + 60.0)


def test_a_table_without_its_terminal_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with nobody_takes(lost_terminal, monkeypatch), TableView() as view:
        view.say("a line")
        view.show(snapshot([reply()]), 0.0)


@both
def test_a_command_ends_with_its_own_code_where_nobody_has_taken_all(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise SpecError("a", "b", "c")

    monkeypatch.setattr(MODULE, "app", refused)
    with nobody_takes(place, monkeypatch) as file:
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == RunResult.BAD_INPUT
        file.flush()  # as Python does at its end, which makes the code 120 where it cannot


def test_an_error_of_the_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device", "/a/b")

    monkeypatch.setattr(MODULE, "app", full)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == RunResult.FAILED
    assert capsys.readouterr().err == "atoll: [Errno 28] No space left on device: '/a/b'\n"
