"""Whoever watches a host from outside is told that it is not stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.startable import free_ports
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import STARTED_PATH
from atoll_worker.launcher import launch, probes
from atoll_worker.launcher.probes import ANSWER, answer_probes

ANSWER_SECONDS_MAX = 60.0  # of a process that runs
STILL_SECONDS = 0.5  # that one which is stopped is asked for
SCRIPT = """
import os, signal, sys
from atoll_worker.launcher.probes import answer_probes
answer_probes(os.environ)
print("open", flush=True)
signal.pause()
"""


TORCH = """
import os
os.write(int(os.environ["BEGUN"]), b"begun")
os.read(int(os.environ["GO_ON"]), 1)
raise ImportError("this is no torch")
"""


def asked(port: int, seconds_max: float = ANSWER_SECONDS_MAX, path: str = "/") -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=seconds_max)
    with contextlib.closing(connection):
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status == 200
        return reply.read()


@contextlib.contextmanager
def started(*words: str, pass_fds: tuple[int, ...] = (), **env: str) -> Iterator[Any]:
    """A process of this Python, and the port on which it answers."""
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, Env.HEALTH_PORT: str(port), **env},
        pass_fds=pass_fds,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            yield process, port
        finally:
            process.kill()


def test_a_launcher_that_is_stopped_takes_connections_and_answers_none() -> None:
    with started("-c", SCRIPT) as (process, port):
        assert process.stdout.readline() == b"open\n"
        assert asked(port) == ANSWER
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with pytest.raises(TimeoutError):
            asked(port, STILL_SECONDS)
        process.send_signal(signal.SIGCONT)
        assert asked(port) == ANSWER


def test_a_host_answers_while_torch_is_still_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    (begun, begins), (waits, go_on) = os.pipe(), os.pipe()
    more = {"PYTHONPATH": path, "BEGUN": str(begins), "GO_ON": str(waits)}
    words = ("-m", "atoll_worker", "launch", "--", "true")
    with started(*words, pass_fds=(begins, waits), **more) as (_, port):
        os.close(begins)
        assert os.read(begun, 5) == b"begun"
        assert asked(port) == ANSWER
        with pytest.raises(TimeoutError):
            asked(port, STILL_SECONDS, STARTED_PATH)
    for each in (begun, waits, go_on):
        os.close(each)


def test_who_asks_whether_it_has_started_hears_when_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(probes, "START_SECONDS_MAX", 0.0)
    monkeypatch.setattr(probes, "begun", begun := threading.Event())
    monkeypatch.setattr(launch, "begun", begun)
    answer_probes({Env.HEALTH_PORT: str(port)})
    with pytest.raises(AssertionError, match="503"):
        asked(port, path=STARTED_PATH)
    with pytest.raises(SpecError, match="names no command"):
        launch.main([])
    assert asked(port, path=STARTED_PATH) == ANSWER


def test_a_connection_on_which_nothing_comes_holds_nobody() -> None:
    (port,) = free_ports(1)
    assert answer_probes({Env.HEALTH_PORT: str(port)}) == port
    with socket.create_connection(("127.0.0.1", port)):
        assert asked(port) == ANSWER
    assert answer_probes({Env.HEALTH_PORT: str(port)}) == 0, "another launcher has it"


@pytest.mark.parametrize("given", [{}, {Env.HEALTH_PORT: "0"}, {Env.HEALTH_PORT: ""}])
def test_without_a_port_nothing_is_opened(given: dict[str, str]) -> None:
    assert answer_probes(given) == 0


@pytest.mark.parametrize("text", ["-1", "65536", "many", "7701.0"])
def test_what_is_no_port_is_refused_by_its_variable(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        answer_probes({Env.HEALTH_PORT: text})
    assert caught.value.field == Env.HEALTH_PORT
