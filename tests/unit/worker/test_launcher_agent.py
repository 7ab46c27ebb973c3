"""torchrun's agent as a job needs it: its codes, its signals, and who is started again."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousHandler

from atoll_protos.environment import Env
from atoll_protos.exits import RANK_ENDED
from atoll_worker.launcher import agent, meeting
from atoll_worker.launcher.command import configuration
from atoll_worker.launcher.lines import Lines

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    environment = dict(os.environ)
    monkeypatch.setattr(agent, "log", _Silent())
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)


class _Silent:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.fields: list[dict[str, object]] = []

    def warning(self, words: str, **fields: object) -> None:
        self.said.append(words)
        self.fields.append(fields)


def launch(script: str, *options: str) -> int:
    """Two ranks of a shell script."""
    return agent.run(configuration(["--nproc-per-node", "2", *options]), ["sh", "-c", script])


def test_all_ranks_to_their_end_is_success(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("echo $RANK of $WORLD_SIZE, $LOCAL_RANK '$$'; echo bad >&2") == 0
    out, errors = capfd.readouterr()
    lines = ["[rank0]: 0 of 2, 0 $$", "[rank1]: 1 of 2, 1 $$"]
    assert sorted(out.splitlines()) == lines
    assert sorted(errors.splitlines()) == ["[rank0]: bad", "[rank1]: bad"]


@pytest.mark.parametrize(("end", "code"), [("exit 64", 64), ("kill -ABRT $$", -signal.SIGABRT)])
def test_one_rank_that_fails_ends_all_with_its_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], end: str, code: int
) -> None:
    script = f"""
        cd {tmp_path}
        if [ $RANK = 1 ]; then
            while [ ! -e ready ]; do sleep 0.02; done
            echo the cause; ulimit -c 0; {end}
        fi
        trap 'echo stopped; exit 75' TERM
        touch ready
        while :; do sleep 0.02; done
    """
    assert launch(script, "--max-restarts", "0" if code < 0 else "5") == code  # 64 is for good
    out, errors = capfd.readouterr()
    assert "[rank0]: stopped\n" in out
    assert errors.endswith("what rank 1 said last:\n[rank1]: the cause\n")


def test_a_rank_that_had_ended_before_another_one_failed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "log", told := _Silent())
    script = f"""
        cd {tmp_path}
        [ $RANK = 1 ] && echo $$ > new && mv new pid && exit 0
        while [ ! -e pid ]; do sleep 0.02; done
        while [ -e /proc/$(cat pid) ]; do sleep 0.02; done  # until the agent has seen its end
        exit 3
    """
    assert launch(script) == 3
    assert told.said == [
        f"rank 0 on {socket.gethostname()} has ended (exit code 3), and all ranks with it; "
        "rank 1 had ended before it (exit code 0)"
    ]


def test_a_rank_that_is_killed_is_a_kill_and_is_named_with_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "log", told := _Silent())
    monkeypatch.setenv(Env.HOST, "1")
    assert launch("[ $RANK = 0 ] && exec sleep 600; kill -9 $$") == -signal.SIGKILL
    host = f"host 1 ({socket.gethostname()})"
    assert told.said == [f"rank 1 on {host} has ended (SIGKILL), and all ranks with it"]
    assert told.fields == [{RANK_ENDED: 1}]


def test_a_rank_that_ends_with_another_one_is_not_called_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "log", told := _Silent())
    assert launch("[ $RANK = 0 ] && exec sleep 600; exit 75") == 75
    assert told.fields == [{"rank": 1}]


def test_what_may_pass_is_started_again_in_place_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Env.INSTANCE, "first")
    script = f"cd {tmp_path}; echo $ATOLL_INSTANCE >> $RANK; [ $RANK = 0 ] || exit 75"
    assert launch(script, "--max-restarts", "1") == 75
    assert (tmp_path / "1").read_text().split() == ["first", "first-again-1"]


def test_a_signal_reaches_the_ranks_alone_and_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"""
        cd {tmp_path}
        (trap 'echo never' TERM; while [ ! -e left-$RANK ]; do sleep 0.02; done) &
        trap 'touch left-$RANK; wait; echo left; exit 0' TERM
        touch ready-$RANK
        while :; do sleep 0.02; done
    """

    def terminate() -> None:
        while len([*tmp_path.glob("ready-*")]) < 2 and not over.wait(0.02):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    over = threading.Event()
    thread = threading.Thread(target=terminate)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the agent takes it
    thread.start()
    try:
        assert launch(script) == 0
    finally:
        over.set()
        thread.join()
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank0]: left", "[rank1]: left"]


def test_another_signal_changes_nothing_once_it_is_known_how_a_launcher_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = Lines.finish

    def again() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def finish_late(lines: Lines) -> None:
        if lines.thread is not None:  # its processes have begun
            again()
        finish(lines)

    def leave_late(handler: RendezvousHandler) -> None:
        again()
        meeting.leave(handler)

    def terminated(*_: object) -> Any:
        raise SignalException("told to end", sigval=signal.SIGTERM)

    with monkeypatch.context() as late:
        late.setattr(Lines, "finish", finish_late)
        assert launch("exit 0") == 0
    monkeypatch.setattr(agent, "leave", leave_late)
    monkeypatch.setattr(agent.Agent, "_monitor_workers", terminated)
    assert launch("exec sleep 600") == -signal.SIGTERM


def test_ranks_that_wait_for_a_host_0_that_is_gone_are_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "STOP_SECONDS", 600.0)
    monkeypatch.setattr(agent, "AGAIN_STOP_SECONDS", 0.1)

    def gone(self: agent.Agent, group: object) -> Any:
        if len(list(tmp_path.iterdir())) == 2:
            raise RendezvousConnectionError("the store of host 0 is gone")
        return monitored(self, group)

    monitored: Any = agent.Agent._monitor_workers
    monkeypatch.setattr(agent.Agent, "_monitor_workers", gone)
    deaf = f"trap '' TERM; touch {tmp_path}/$RANK; while :; do sleep 0.05; done"
    assert launch(deaf) == 75
