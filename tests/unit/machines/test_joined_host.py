"""The passes of a machine that is one host of a learner, and how it knows of the end."""

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atoll_operator.local.child import Child, end_of
from atoll_operator.local.local_status import JobNow, JobState
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files
from atoll_operator.local.supervisor import Supervisor
from atoll_operator.machines.joined.joining import JoinedHost, JoinedRun
from atoll_operator.machines.joined.learners import Wanted
from atoll_protos.environment import Torchrun
from atoll_protos.exits import ExitCode
from unit.machines.test_learners import MACHINE

HOST = replace(
    MACHINE, slots=("eu-0",), host=1, hosts=2, hosts_min=2, container='{"command": ["sleep", "60"]}'
)


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
