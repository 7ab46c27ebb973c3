"""Whoever watches a host from outside is told that it is not stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from atoll_operator.local.supervisor import free_ports
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import STARTED_PATH
from atoll_worker.launcher import command, health
from atoll_worker.launcher.health import ANSWER, answer_probes

ANSWER_SECONDS_MAX = 60.0  # of a process that runs
STILL_SECONDS = 0.5  # that one which is stopped is asked for
SCRIPT = """
import os, signal, sys
from atoll_worker.launcher.health import answer_probes
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


def test_a_launcher_that_is_stopped_takes_connections_and_answers_none() -> None:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, Env.HEALTH_PORT: str(port)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"open\n"
        assert asked(port) == ANSWER
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with pytest.raises(TimeoutError):
            asked(port, STILL_SECONDS)
        process.send_signal(signal.SIGCONT)
        assert asked(port) == ANSWER
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_host_answers_while_torch_is_still_imported(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "torch.py").write_text(TORCH)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    (begun, begins), (waits, go_on) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "atoll_worker", "launch", "--", "true"],
        env={**os.environ, Env.HEALTH_PORT: str(port), "PYTHONPATH": path}
        | {"BEGUN": str(begins), "GO_ON": str(waits)},
        pass_fds=(begins, waits),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(begins)
    os.close(waits)
    try:
        assert os.read(begun, 5) == b"begun"
        assert asked(port) == ANSWER
        with pytest.raises(TimeoutError):
            asked(port, STILL_SECONDS, STARTED_PATH)
    finally:
        os.close(go_on)
        process.wait()
        os.close(begun)


def test_who_asks_whether_it_has_started_hears_when_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(health, "START_SECONDS_MAX", 0.0)
    monkeypatch.setattr(health, "begun", begun := threading.Event())
    monkeypatch.setattr(command, "begun", begun)
    answer_probes({Env.HEALTH_PORT: str(port)})
    with pytest.raises(AssertionError, match="503"):
        asked(port, path=STARTED_PATH)
    with pytest.raises(SpecError, match="names no command"):
        command.main([])
    assert asked(port, path=STARTED_PATH) == ANSWER


def test_a_connection_on_which_nothing_comes_holds_nobody() -> None:
    (port,) = free_ports(1)
    assert answer_probes({Env.HEALTH_PORT: str(port)}) == port
    with socket.create_connection(("127.0.0.1", port)):
        assert asked(port) == ANSWER


@pytest.mark.parametrize("given", [{}, {Env.HEALTH_PORT: "0"}, {Env.HEALTH_PORT: ""}])
def test_without_a_port_nothing_is_opened(given: dict[str, str]) -> None:
    assert answer_probes(given) == 0


def test_a_port_that_another_launcher_of_this_machine_has_ends_none() -> None:
    with socket.create_server(("", 0)) as taken:
        assert answer_probes({Env.HEALTH_PORT: str(taken.getsockname()[1])}) == 0


@pytest.mark.parametrize("text", ["-1", "65536", "many", "7701.0"])
def test_what_is_no_port_is_refused_by_its_variable(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        answer_probes({Env.HEALTH_PORT: text})
    assert caught.value.field == Env.HEALTH_PORT
