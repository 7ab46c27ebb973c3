"""The supervisor goes on with other processes, as an edit of the run asks for."""

import json
import sys
import time
from dataclasses import replace

import pytest

from atoll_operator.local.child import tail
from unit.local.supervised import SLEEP, Start, python, shard

STAYS = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    " print('here', flush=True); time.sleep(600)"
)


def test_who_is_of_the_job_no_more_leaves_and_the_next_of_its_name_waits(run_of: Start) -> None:
    stays, sleeps = python(STAYS), replace(python(SLEEP), name="here-1")
    run = run_of(stays, sleeps)
    run.look()
    (other,) = run.others
    while "here" not in tail(run.child.log, 0):
        time.sleep(0.01)
    run.supervisor.follow([sleeps], run.now)
    run.look()
    assert run.supervisor.children == [other]
    rows = json.loads((run.supervisor.files.out / "processes.json").read_text())
    assert [row["slot"] for row in rows] == ["here-1", "here-0"]  # as long as it is there
    run.supervisor.follow([sleeps, stays], run.now)
    run.look()
    new = run.supervisor.children[1]
    assert new.process is None
    run.now += 7.9
    run.look()
    assert run.child.process is not None
    assert run.child.process.poll() is None, "it has 8 s to leave"
    run.now += 0.2
    run.look()
    run.wait()
    run.look()
    assert new.process is not None
    assert run.supervisor.leaving == []
    assert other.restarts == 0
    assert run.said == []


def test_who_leaves_when_all_stop_does_not_stay(
    run_of: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_operator.local.supervisor.STOP_SECONDS", 0.1)
    run = run_of(python(STAYS), replace(python(SLEEP), name="here-1"))
    run.look()
    while "here" not in tail(run.child.log, 0):
        time.sleep(0.01)
    left = run.child.process
    run.supervisor.follow([each.planned for each in run.others], run.now)
    run.supervisor.stop()
    assert left is not None
    assert left.poll() is not None
    assert run.supervisor.leaving == []


def test_a_job_that_begins_again_counts_its_starts_on(run_of: Start) -> None:
    """Only the first start of a new run has --new, and no failure from before counts."""
    words = (sys.executable, "-c", "import sys; sys.exit('--new' not in sys.argv[1:])", "--new")
    run = run_of(replace(shard(0, 0), command=words))
    run.look()
    run.wait()
    run.supervisor.suspend()
    run.supervisor.resume()
    (again,) = run.supervisor.children
    assert (again.restarts, again.record.failures) == (0, 0)
    run.look()
    run.wait(again)
    assert again.process is not None
    assert (again.process.returncode, again.restarts) == (1, 1)
