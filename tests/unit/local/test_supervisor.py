"""Local mode starts what a template names, as its image would, and again when it ends."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoll_operator.local import child
from atoll_operator.local.child import Child, End, cannot_train, tail
from atoll_operator.local.local_status import JobNow, JobState
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files
from atoll_operator.local.run_folder import private
from atoll_operator.local.supervisor import Supervisor, backoff_seconds
from atoll_protos.exits import RANK_ENDED
from unit.local.supervised import (
    BOOM,
    FOREVER,
    SLEEP,
    Start,
    exiting,
    hosts,
    learner,
    python,
    shard,
)


def test_back_off_grows_with_every_end(run_of: Start) -> None:
    run = run_of(exiting(75))
    assert run.start()
    waits = []
    for _ in range(4):
        run.end()
        waits.append(run.child.start_at - run.now)
        run.now = run.child.start_at
        if run.child.process is None:  # else it may have ended already
            run.look()
    assert waits == pytest.approx([0.0, 0.5, 1.0, 2.0])
    assert backoff_seconds(8) == backoff_seconds(10_000) == 30.0


def test_the_keeper_of_a_log_that_is_held_open_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or that is slow: Python warns of a process that nobody waits for."""
    monkeypatch.setattr(child, "LOG_SECONDS_MAX", 0.0)
    one = Child(exiting(0), tmp_path / "here-0.log")
    keeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    one.keeper = keeper
    one.close_log()
    assert one.closing == [keeper]
    keeper.communicate(b"\n")
    one.close_log()
    assert one.closing == []


@pytest.mark.parametrize(
    ("planned", "starts", "words", "state"),
    [
        (exiting(64), 1, "(exit code 64)", JobState.TRAINING),
        (exiting(65), 1, "(exit code 65)", JobState.COMPLETE),
        (python(BOOM), 2, "(exit code 1): ValueError: boom", JobState.TRAINING),
    ],
)
def test_what_starting_again_cannot_help_is_given_up(
    planned: Planned, starts: int, words: str, state: JobState, run_of: Start
) -> None:
    run = run_of(planned)
    run.end_again_and_again(starts, state)
    assert not run.start()
    assert (run.child.done, run.child.after) == (True, "")
    assert run.said[-1].startswith(f"here-0 is given up {words}")


def test_what_cannot_be_started_now_is_tried_again(run_of: Start, tmp_path: Path) -> None:
    folder = tmp_path / "away"
    run = run_of(replace(python(SLEEP), folder=str(folder)))
    run.look()
    assert run.child.process is None
    assert run.said[0].startswith("here-0 cannot be started now: [Errno 2]")
    for _ in range(9):  # it counts as no failure: who has made it may bring it back
        run.now += 60.0
        run.look()
    folder.mkdir()
    assert run.start()


def test_who_writes_elsewhere_has_the_umask_of_the_person(tmp_path: Path) -> None:
    script = python("import os; print(os.umask(0))")
    planned = [script, replace(script, name="shard-0", private=True)]
    supervisor = Supervisor(planned, Files(tmp_path, pytest.fail), pytest.fail, umask=0o027)
    with private(tmp_path):
        supervisor.supervise(0.0, JobNow(state=JobState.TRAINING))
        for child in supervisor.children:
            assert child.process is not None
            child.process.wait(60)
        supervisor.stop()
    told = [int(child.log.read_text()) for child in supervisor.children]
    assert told == [0o027, 0o077]


def test_a_kill_is_no_failure_of_its_own(run_of: Start) -> None:
    run = run_of(python(SLEEP))
    for _ in range(7):
        assert run.start()
        run.supervisor.kill(run.child)
        run.end()
    assert run.start()
    assert "SIGKILL" in run.said[-1]


@pytest.mark.parametrize(
    ("code", "state", "after"),
    [
        (1, JobState.FINAL, "exit code 1: its log is empty"),
        (1, JobState.COMPLETE, "exit code 1: its log is empty"),
        (75, JobState.FINAL, ""),  # it may still take the final values
        (75, JobState.COMPLETE, "exit code 75"),
        (0, JobState.COMPLETE, ""),
        (-9, JobState.COMPLETE, "SIGKILL"),
    ],
)
def test_what_fails_once_the_job_is_over_is_not_started_again_nor_told_before_the_last_line(
    code: int, state: JobState, after: str, run_of: Start
) -> None:
    kill = f"import os; os.kill(os.getpid(), {-code})"
    run = run_of(python(kill) if code < 0 else exiting(code))
    assert run.start()
    run.end(state)
    assert run.child.after == after
    assert run.child.done == (bool(after) or code == 0)
    again = code == 75 and state is JobState.FINAL
    assert bool(run.said) == again
    assert run.start(JobState.FINAL) == again


def test_once_a_job_is_complete_a_shard_is_started_again_and_no_learner(run_of: Start) -> None:
    run = run_of(exiting(75), shard(0, 1))
    assert run.start()
    run.end()  # started again at once
    run.wait(*run.others)
    run.end(JobState.FINAL)
    assert not run.child.after
    run.look(JobState.COMPLETE)
    assert run.child.done
    assert (run.child.after, run.child.ended) == ("exit code 75", "")
    assert run.others[0].restarts == 1


def test_processes_json_names_every_process_and_its_start(run_of: Start, tmp_path: Path) -> None:
    run = run_of(shard(3, 75))
    assert run.start()
    assert run.child.process is not None
    (row,) = json.loads((tmp_path / "processes.json").read_text())
    assert row == {
        **{"role": "shard", "name": "shard-3", "shard": 3, "endpoint": "", "restarts": 0},
        **{"pid": run.child.process.pid, "instance": run.child.instance},
    }
    run.end()
    assert run.start()
    (again,) = json.loads((tmp_path / "processes.json").read_text())
    assert again["restarts"] == 1
    assert again["instance"] != row["instance"]


RANK_KILLED = json.dumps({RANK_ENDED: 1, "event": "rank 1 on a has ended (SIGKILL)"})


def test_a_rank_that_was_killed_is_told_while_its_launcher_goes_on(run_of: Start) -> None:
    run = run_of(learner("sh", "-c", f"echo early; echo '{RANK_KILLED}'; exec sleep 600"))
    assert run.start()
    while RANK_KILLED not in tail(run.child.log, 0):
        pass
    for _ in range(2):
        run.look()
    assert run.said == [f"here-0: rank 1 on a has ended (SIGKILL); log: {run.child.log}"]


def test_each_end_is_told_with_its_own_last_words_and_its_log(run_of: Start) -> None:
    run = run_of(learner("sh", "-c", f"echo '{RANK_KILLED}'; kill -9 $$"))
    log = f"log: {run.child.log}"
    said = [
        f"here-0: rank 1 on a has ended (SIGKILL); {log}",
        "here-0 ended (SIGKILL) and is started again",
    ]
    assert run.start()
    run.child.planned = python(f"print('hello')\n{BOOM}")
    run.end()
    assert run.said == said
    run.child.planned = exiting(75)
    run.end_again_and_again(2)
    assert run.said == [  # what an earlier start has said is not told again
        *said,
        f"here-0 ended (exit code 1) and is started again: ValueError: boom (<string>:2); {log}",
        "here-0 ended (exit code 75) and is started again",
    ]


def stepping(tmp_path: Path, own_steps: int, then: str, reason: str) -> Planned:
    """A learner that writes the telemetry of so many steps and of its leaving."""
    folder = tmp_path / "learners"
    folder.mkdir()
    lines = [{"t_m": each + 1, "tokens": 8, "adopted": []} for each in range(own_steps)]
    text = "\n".join(json.dumps(each) for each in [*lines, {"event": "end", "reason": reason}])
    return python(f"open({str(folder / 'here-0.jsonl')!r}, 'a').write({text!r} + chr(10)); {then}")


def test_of_telemetry_and_log_the_end_of_the_present_start_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, telemetry = tmp_path / "log", tmp_path / "a-0.jsonl"
    ended = Child(learner(), log, telemetry)
    assert child.end_of(ended, 1, 0.0) == End(code=1)
    log.write_bytes(b"before\n\xff after\n")
    telemetry.write_text('{"t_m": 9}\n{"t_m": 3}\n{"event": "end", "reason": "x"}\n')
    ended.log_bytes, ended.telemetry_bytes = 7, 11
    end = child.end_of(ended, 1, 0.0)
    assert (str(end.words), end.worked, end.own_steps, end.left) == ("\ufffd after", True, 3, "x")
    monkeypatch.setattr(child, "LOG_BYTES", 100)
    monkeypatch.setattr(child, "TELEMETRY_BYTES", 50)  # of a start that lasted for days
    log.write_bytes(b"x" * 1000 + b"end")
    telemetry.write_text('{"t_m": 9}\n' * 9 + '{"t_m": 3}\n')
    assert child.end_of(ended, 1, 0.0).own_steps == 9
    telemetry.write_text('{"t_m": 9}\n' + '{"t_m": 3}\n' * 9)
    assert child.end_of(ended, 1, 0.0).own_steps == 3
    assert child.tail(log, 0) == "x" * 97 + "end"


@pytest.mark.parametrize("state", [JobState.FINAL, JobState.COMPLETE, JobState.TRAINING])
def test_what_fails_behind_the_loop_waits_for_the_word_of_all_shards(
    state: JobState, run_of: Start, tmp_path: Path
) -> None:
    run = run_of(stepping(tmp_path, 2, "raise OSError('quota')", "finished"))
    assert run.start()
    run.end()
    for _ in range(3):
        run.now += 60.0
        run.look(JobState.UNKNOWN)
        assert run.child.process is None
    run.look(state)
    over = state is not JobState.TRAINING
    assert len(run.said) == (not over)
    assert run.child.after.startswith("exit code 1: OSError: quota") == over
    run.now += 60.0
    run.look(state)
    assert run.child.restarts == (0 if over else 1)


def test_a_wait_ends_when_a_process_ends_when_one_is_due_and_after_its_limit(run_of: Start) -> None:
    run = run_of(python(SLEEP))
    assert run.start()
    run.supervisor.wait(run.now, 0.05)
    for _ in range(2):  # after the first end it is started at once, after the second it waits
        run.supervisor.kill(run.child)
        run.supervisor.wait(run.now, FOREVER)
        run.end()
    assert run.child.process is None
    run.supervisor.wait(run.child.start_at - 0.05, FOREVER)


def test_a_host_that_is_given_up_takes_the_others_along(run_of: Start, tmp_path: Path) -> None:
    run = run_of(*hosts(python(SLEEP), exiting(64)))
    first, second = run.supervisor.children
    assert run.start()
    rows = json.loads((tmp_path / "processes.json").read_text())
    assert [(row["slot"], row["host"]) for row in rows] == [("here-0", 0), ("here-0", 1)]
    assert first.telemetry == second.telemetry == tmp_path / "learners" / "here-0.jsonl"
    run.wait(second)
    run.look()
    run.end()
    assert (first.given_up_with, second.given_up_with) == ("here-0-1", "")
    assert first.given_up == second.given_up == "its log is empty"
    assert (first.done, second.done, first.ended) == (True, True, "")
    assert len(run.said) == 1


@pytest.mark.parametrize("given_up", [0, 1])
def test_a_learner_of_fewer_hosts_needs_no_host_but_host_0(given_up: int, run_of: Start) -> None:
    planned = [python(SLEEP), python(SLEEP)]
    planned[given_up] = exiting(64)
    run = run_of(*hosts(*planned, needed=1))
    assert run.start()
    both = run.supervisor.children
    run.wait(both[given_up])
    run.look()
    assert both[given_up].given_up
    assert bool(both[1 - given_up].given_up) == cannot_train(both) == (given_up == 0)


def test_a_host_that_ends_alone_is_started_again_alone_and_chaos_kills_all(run_of: Start) -> None:
    run = run_of(*hosts(python(SLEEP), exiting(75)))
    assert run.start()
    first, second = run.child, run.others[0]
    run.wait(second)
    run.look()
    assert (first.restarts, second.restarts) == (0, 1)
    assert first.process is not None
    run.supervisor.kill(second)
    assert first.process.wait(60) == -9
    run.supervisor.wait(0.0, FOREVER)  # there is something to look at, though its end was seen


def test_a_learner_is_done_when_one_of_its_hosts_has_ended_in_order(run_of: Start) -> None:
    run = run_of(*hosts(exiting(0), exiting(75)))
    assert run.start(JobState.FINAL)
    run.wait(*run.supervisor.children)
    run.look(JobState.FINAL)
    assert [(each.done, each.restarts) for each in run.supervisor.children] == [(True, 0)] * 2
