"""A learner of several hosts on this machine: one learner, whichever host is lost."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.run_files import read_lines
from atoll_operator.local.show.run_summary import RunResult
from local.background import Running, running
from local.hosts.launched import BATCH, DDP, FOR_EVER, incarnations, ranks_of
from local.law import check_law

HOSTS = ("--learners", "1", "--set", "spec.learner.hosts=2")
SLOT = "local-0"
STEPS = 3  # of an incarnation: it trains
SILENCE = {"ATOLL_RANKS_SILENCE_SECONDS": "15"}  # a busy machine is silent for some seconds


def row(run: Running, host: int) -> dict[str, Any]:
    """The line of processes.json with this host."""
    rows: list[dict[str, Any]] = json.loads((run.out / "processes.json").read_text())
    return next(each for each in rows if each.get("host") == host)


def everything(launcher: int) -> list[int]:
    """The processes of a host, the launcher first."""
    return [launcher, *ranks_of(launcher).values()]


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def missed(run: Running, host: int) -> None:
    """Wait until the other host says that this one stands still."""
    log = run.out / "logs" / f"{SLOT}-{1 - host}.log"
    said = f"rank {host} has said nothing"
    run.until(lambda: said in log.read_text(), said)


@pytest.mark.long  # launchers start seven times
def test_a_host_that_is_killed_or_stands_still_is_one_new_incarnation_of_its_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SILENCE.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    with running(DDP, out, *HOSTS, *FOR_EVER) as run:

        def back(number: int) -> None:
            run.until(lambda: incarnations(run, SLOT) == {*range(1, number + 1)}, "it is back")

        back(1)
        first = [row(run, host) for host in range(2)]
        os.kill(ranks_of(first[1]["pid"])[1], signal.SIGKILL)  # a process of one host
        back(2)
        assert [row(run, host) for host in range(2)] == first  # in place
        os.kill(first[1]["pid"], signal.SIGKILL)
        back(3)
        assert row(run, 0) == first[0]
        assert row(run, 1)["restarts"] == 1
        os.kill(first[0]["pid"], signal.SIGKILL)
        back(4)
        assert row(run, 0)["restarts"] == 1
        for number, host in ((5, 1), (6, 0)):
            frozen = everything(row(run, host)["pid"])
            signal_all(frozen, signal.SIGSTOP)
            missed(run, host)
            os.kill(frozen[0], signal.SIGKILL)  # a new one comes in its place
            back(number)
        code, stderr = run.finish(signal.SIGINT)
    assert code == RunResult.INTERRUPTED, stderr
    lines = [line for line in read_lines(out / "learners" / f"{SLOT}.jsonl") if line.get("t_m")]
    assert {line["tokens"] for line in lines} == {BATCH * 2}
    cursors = [line["cursor"] for line in lines if "cursor" in line]
    assert cursors == sorted(cursors)
    for host in range(2):
        log = (out / "logs" / f"{SLOT}-{host}.log").read_text()
        assert f"[rank{host}]: " in log
        assert f"[rank{1 - host}]: " not in log


@pytest.mark.long  # launchers start five times
def test_a_learner_that_needs_one_host_goes_on_without_the_other_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SILENCE.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    with running(DDP, out, *HOSTS, "--set", "spec.learner.hostsMin=1", *FOR_EVER) as run:

        def newest() -> dict[str, Any]:
            """The last step that the learner has made."""
            lines = read_lines(out / "learners" / f"{SLOT}.jsonl")
            return next((line for line in reversed(lines) if line.get("t_m", 0) > STEPS), {})

        def with_hosts(count: int) -> dict[str, Any]:
            run.until(lambda: newest().get("tokens") == BATCH * count, f"steps of {count} hosts")
            return newest()

        whole = with_hosts(2)
        head, other = (row(run, host) for host in range(2))
        frozen = everything(other["pid"])
        lost_at = time.time()
        signal_all(frozen, signal.SIGSTOP)
        fewer = with_hosts(1)
        os.kill(frozen[0], signal.SIGKILL)  # its processes end with it
        killed_at = time.time()
        grown = with_hosts(2)
        assert row(run, 0) == head  # all in place
        assert row(run, 1)["restarts"] == other["restarts"] + 1
        code, stderr = run.finish(signal.SIGINT)
    assert code == RunResult.INTERRUPTED, stderr
    numbers = [line["incarnation"] for line in (whole, fewer, grown)]
    assert numbers == [*range(numbers[0], numbers[0] + 3)], "each change is one new incarnation"
    steps = [line for line in read_lines(out / "learners" / f"{SLOT}.jsonl") if line.get("t_m")]
    for number, hosts in zip(numbers, (2, 1, 2), strict=True):
        own = {line["tokens"] for line in steps if line["incarnation"] == number}
        assert own == {BATCH * hosts}
    cursors = [line["cursor"] for line in steps if "cursor" in line]
    assert cursors == sorted(cursors)
    check_law(out)
    firsts = [next(e["time"] for e in steps if e["incarnation"] == each) for each in numbers[1:]]
    waits = [round(firsts[0] - lost_at, 1), round(firsts[1] - killed_at, 1)]
    sys.stderr.write(f"\ntrains with one host after {waits[0]} s, with two after {waits[1]} s\n")


@pytest.mark.fresh
def test_a_learner_of_two_hosts_trains_to_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running(DDP, out, *HOSTS, "--steps", "100") as run:
        code, stderr = run.finish()
    assert code == RunResult.COMPLETE, stderr
    lines = read_lines(out / "learners" / f"{SLOT}.jsonl")
    assert {line["tokens"] for line in lines if line.get("t_m")} == {BATCH * 2}
    assert not list((out / "logs").glob(f"{SLOT}.log"))
    assert (out / "export" / "model.safetensors").exists()
    rows = [row(run, host) for host in range(2)]
    assert [each["restarts"] for each in rows] == [0, 0]
