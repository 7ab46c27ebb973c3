"""torchrun's agent as a job needs it: its codes, its signals, and who is started again."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from atoll_protos.environment import Env
from atoll_protos.exits import RANK_ENDED
from atoll_worker.launcher import meeting
from atoll_worker.launcher.launch import configuration, run
from atoll_worker.launcher.meeting import Lines, OneHost

# torch leaves the pipes of ranks to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def told() -> Iterator[list[Any]]:
    """What the agent says; signals and environment are as before in the end."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    environment = dict(os.environ)
    with capture_logs() as lines:
        yield lines
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)


def launch(script: str, *options: str) -> int:
    """Two ranks of a shell script."""
    config, host = configuration(["--nproc-per-node", "2", *options])
    return run(config, ["sh", "-c", script], host)


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


def test_a_rank_that_had_ended_before_the_failure_is_named(tmp_path: Path, told: list[Any]) -> None:
    script = f"""
        cd {tmp_path}
        [ $RANK = 1 ] && echo $$ > new && mv new pid && exit 0
        while [ ! -e pid ]; do sleep 0.02; done
        while [ -e /proc/$(cat pid) ]; do sleep 0.02; done  # until the agent has seen its end
        exit 3
    """
    assert launch(script) == 3
    assert [each["event"] for each in told] == [
        f"rank 0 on {socket.gethostname()} has ended (exit code 3), and all ranks with it; "
        "1 of this host ended with exit code 0"
    ]


def test_a_rank_that_is_killed_is_named_as_cause(
    monkeypatch: pytest.MonkeyPatch, told: list[Any]
) -> None:
    monkeypatch.setenv(Env.HOST, "1")
    assert launch("[ $RANK = 0 ] && exec sleep 600; kill -9 $$") == -signal.SIGKILL
    host = f"host 1 ({socket.gethostname()})"
    assert told[0]["event"] == f"rank 1 on {host} has ended (SIGKILL), and all ranks with it"
    assert launch("[ $RANK = 0 ] && exec sleep 600; exit 75") == 75
    assert [(each.get(RANK_ENDED), each.get("rank")) for each in told] == [(1, None), (None, 1)]


def test_what_may_pass_begins_again_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    thread.start()
    try:
        assert launch(script) == 0
    finally:
        over.set()
        thread.join()
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank0]: left", "[rank1]: left"]


def test_ranks_that_a_signal_does_not_end_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "STOP_SECONDS", 0.2)
    waiting = OneHost.num_nodes_waiting

    def waiting_late(self: OneHost) -> int:
        if len([*tmp_path.iterdir()]) == 2 and not self.ranks.signal:
            os.kill(os.getpid(), signal.SIGTERM)
        return waiting(self)

    monkeypatch.setattr(OneHost, "num_nodes_waiting", waiting_late)
    deaf = f"trap '' TERM; touch {tmp_path}/$RANK; while :; do sleep 0.05; done"
    assert launch(deaf) == -signal.SIGTERM


def test_a_late_signal_does_not_change_how_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Lines.finish

    def finish_late(lines: Lines) -> None:
        if lines.thread is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        finish(lines)

    monkeypatch.setattr(Lines, "finish", finish_late)
    assert launch("exit 0") == 0


def test_ranks_without_a_store_of_host_0_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: OneHost) -> int:
        if len(list(tmp_path.iterdir())) == 2:
            raise RendezvousConnectionError("the store of host 0 is gone")
        return 0

    monkeypatch.setattr(OneHost, "num_nodes_waiting", gone)
    assert launch(f"touch {tmp_path}/$RANK; exec sleep 600") == 75
