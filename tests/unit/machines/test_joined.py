"""The passes of a machine that has joined, and what the server's run waits for."""

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.parsing import parse
from atoll_operator.local import atoll_run
from atoll_operator.local.atoll_run import Elsewhere, JobFailedError
from atoll_operator.local.child import Child, End, EndRecord, end_of
from atoll_operator.local.local_status import JobNow, JobState, RunSnapshot
from atoll_operator.local.poller import Poller
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.supervisor import ROLES, Supervisor
from atoll_operator.machines.joined.joining import JoinedHost, JoinedRun
from atoll_operator.machines.joined.learners import Wanted
from atoll_protos.environment import Torchrun
from atoll_protos.exits import ExitCode
from unit.local.supervised import IdleSupervisor
from unit.local.test_atoll_run import training_of
from unit.local.test_local_status import MANIFEST, reply
from unit.machines.test_learners import MACHINE

HOST = replace(
    MACHINE, slots=("eu-0",), host=1, hosts=2, hosts_min=2, container='{"command": ["sleep", "60"]}'
)


def joined(said: list[str] | None = None, **of_watcher: Any) -> tuple[JoinedRun, Any, Any]:
    """The passes of a machine, its supervisor, and what its watcher knows."""
    supervisor = IdleSupervisor(
        [Child(Planned(role="learner", name="eu-0", command=(), env={}), Path("log"))]
    )
    known = {"refusal": None, "bundle": MACHINE, "fails": False, "heard_at": 0.0, **of_watcher}
    watcher: Any = SimpleNamespace(**known)
    say = said.append if said is not None else lambda _: None
    return JoinedRun(watcher, supervisor, say), supervisor, watcher


def test_learners_leave_and_start_again_as_the_server_says() -> None:
    run, supervisor, watcher = joined()

    def passes_with(*states: JobState) -> list[Any]:
        supervisor.done.clear()
        for now, state in enumerate(states):
            watcher.now = JobNow(state=state, tick=5)
            assert run.advance(float(now)) is None
        return list(supervisor.done)

    assert passes_with(JobState.TRAINING) == ["pass"]
    assert passes_with(JobState.SUSPENDED, JobState.SUSPENDED) == [("stop", ROLES)]
    assert passes_with(JobState.UNKNOWN, JobState.TRAINING) == ["resume", "pass", "pass"]


def test_an_answer_from_before_a_learner_ended_says_nothing_of_its_end() -> None:
    """A learner that had finished was started again, and dialled shards that had gone."""
    run, supervisor, watcher = joined(now=JobNow(state=JobState.TRAINING, tick=5))
    for now, heard_at in enumerate([None, 0.5, 0.5, 0.5, 3.5, 3.5]):
        watcher.heard_at = heard_at
        assert run.advance(float(now)) is None
    assert supervisor.new == [False, True, False, False, True, False]


def test_a_machine_says_the_length_that_the_server_has_said_last() -> None:
    said: list[str] = []
    run, _, watcher = joined(said)
    for now, length in ((100.0, 0), (200.0, 60), (300.0, 90), (400.0, 0)):
        watcher.now = JobNow(state=JobState.TRAINING, tick=7, length=length)
        assert run.advance(now) is None
    # Of a server that was away at the start, and of a job that was edited while it ran.
    assert said == ["tick 7", "tick 7 of 60", "tick 7 of 90", "tick 7 of 90"]


def test_a_machine_ends_at_once_when_its_learners_have_finished_and_the_server_has_gone() -> None:
    run, supervisor, watcher = joined(now=JobNow(state=JobState.FINAL, tick=5))
    (learner,) = supervisor.children
    learner.process = SimpleNamespace(poll=lambda: None)
    assert run.advance(1.0) is None
    watcher.fails = True
    assert run.advance(2.0) is None  # its learner runs
    learner.process, learner.exit_code = None, 0
    learner.record = EndRecord(last=End(code=0, left="finished"))
    assert run.advance(3.0) is RunResult.COMPLETE


class Machines(Elsewhere):
    """Machines whose learners take some looks to leave."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def leaving(self, seen: RunSnapshot) -> bool:
        self.done.append("leaving")
        return self.done.count("leaving") < 3


def test_machines_hear_of_it_and_have_left_before_the_shards_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atoll_run, "POLL_SECONDS", 0.0)
    training, machines = training_of(tmp_path), Machines()
    asked = Poller(parse(MANIFEST), ("127.0.0.1:1", "127.0.0.1:1"))
    monkeypatch.setattr(asked.links, "ask", lambda **_: [reply(), reply()])
    training.poller, training.elsewhere = asked, machines

    def word(intent: pb.Intent, why: str = "") -> None:
        machines.done.append(pb.Intent.Name(intent))

    monkeypatch.setattr(asked.links, "say", word)

    def stop(roles: object = ROLES) -> None:
        machines.done.append(f"stop {roles}")

    monkeypatch.setattr(training.supervisor, "stop", stop)
    training._suspend()
    learners = "stop ('learner', 'evaluator')"
    assert machines.done == ["INTENT_SUSPEND", learners, *["leaving"] * 3, f"stop {ROLES}"]
    machines.done.clear()
    training.fail(JobFailedError("QuorumLost", "why"))
    assert machines.done == ["INTENT_FAIL", learners, *["leaving"] * 3]


def host_of(tmp_path: Path, job: JobNow, said: list[str]) -> tuple[JoinedRun, Any]:
    watcher: Any = SimpleNamespace(refusal=None, now=job, bundle=HOST, heard_at=0.0, fails=False)
    place = JoinedHost(tmp_path, HOST, Wanted(command=("sleep", "60")), "")
    supervisor = Supervisor(place.known(), Files(tmp_path, said.append), said.append)
    return JoinedRun(watcher, supervisor, said.append, place), watcher


def test_a_host_starts_when_it_hears_of_host_0_and_moves_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    run, watcher = host_of(tmp_path, JobNow(state=JobState.TRAINING), said)
    assert run.advance(0.0) is None
    assert run.supervisor.children == []
    try:
        for now, place in ((1.0, "10.0.0.2:29400"), (2.0, "10.0.0.3:29400")):
            watcher.bundle = replace(HOST, rendezvous=place)
            before = [each.process for each in run.supervisor.children]
            assert run.advance(now) is None
            (child,) = run.supervisor.children
            assert child.planned.env[Torchrun.ENDPOINT] == place
            assert f"host 0 of this learner is at {place}" in said
        assert before[0] is not None
        assert before[0].wait(10.0) == -signal.SIGTERM  # it waited at the former place
    finally:
        run.supervisor.stop()


def test_a_job_that_ends_while_a_host_still_waits_is_complete_there(tmp_path: Path) -> None:
    said: list[str] = []
    run, _ = host_of(tmp_path, JobNow(state=JobState.COMPLETE), said)
    assert run.advance(0.0) == 0


def test_a_host_whose_learner_writes_elsewhere_has_finished_when_all_end_well(
    tmp_path: Path,
) -> None:
    planned = Planned(role="learner", name="eu-0-1", command=(), env={}, slot="eu-0", host=1)
    child = Child(planned, tmp_path / "log", tmp_path / "eu-0.jsonl")
    assert end_of(child, ExitCode.FINAL, 1.0).left == "finished"
    assert end_of(child, ExitCode.TRY_AGAIN, 1.0).left == ""
    (tmp_path / "eu-0.jsonl").write_text('{"t_m": 1}\n')
    assert end_of(child, ExitCode.FINAL, 1.0).left == ""
    first = Child(replace(planned, host=0), tmp_path / "log", tmp_path / "none")
    assert end_of(first, ExitCode.FINAL, 1.0).left == ""
