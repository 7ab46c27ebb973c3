"""One pass of `atoll run` over its processes, and the last one."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import expected
from atoll_operator.api.status.crash_reason import LastWords
from atoll_operator.local import atoll_run, local_status
from atoll_operator.local.atoll_run import JobFailedError, LocalRun, first_failure, record_of
from atoll_operator.local.child import Child, End, EndRecord
from atoll_operator.local.local_status import NO_REPORTS, ProcessReports, RunSnapshot
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import ASKED_FILE, SLOTS_FILE, Files, shown
from atoll_operator.local.show import plots
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.startable import exit_of, reports_of
from atoll_protos.job.run_file import Expected
from unit.local.supervised import IdleSupervisor
from unit.local.test_local_status import MANIFEST, NOW, job, reply, snapshot


class Shards:
    """Two shards of a complete job, each asked once a pass; the evaluator speaks in between."""

    def __init__(self) -> None:
        self.asked = 0
        self.job = job()

    def poll(
        self, now: float, ends: ProcessReports = NO_REPORTS, *, wait: bool = False
    ) -> RunSnapshot:
        self.asked += 1
        replies = [reply("Complete", tick=200), reply("Complete", tick=200)]
        if self.asked > 1 and wait:  # it may take long until a shard that is busy says so
            replies[0].evaluation.CopyFrom(pb.Evaluation(tick=200, loss=1.5, tokens=10))
        return snapshot(replies, ends)


def ignored(*_: object) -> None:
    """A view that shows nothing."""


def training_of(
    out: Path, *children: Any, needed: int = 1, say: Callable[[str], None] = ignored
) -> LocalRun:
    """A run of these processes, of which nothing is known yet."""
    shards: Any = Shards()
    shards.job = parse(MANIFEST, (f"spec.sync.quorum={needed}",))
    view: Any = SimpleNamespace(show=ignored, say=say)
    return LocalRun(
        slots=expected(job()),
        files=Files(out, say),
        supervisor=IdleSupervisor(children),
        poller=shards,
        view=view,
        status=local_status.status(job(), [None, None], NOW),
    )


def test_the_last_status_has_what_was_said_until_the_last_process_had_left(tmp_path: Path) -> None:
    assert training_of(tmp_path).advance(1.0)
    metrics = written(tmp_path, "status")["progress"]["metrics"]
    assert {"name": "outer_loss", "value": "1.5000"} in metrics


def test_a_failure_to_draw_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes nothing else. No step of the summary is beyond the length of the job."""

    def draw(*_: Any) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr(plots, "draw", draw)
    said: list[str] = []
    training = training_of(tmp_path, say=said.append)
    training.status = local_status.status(job(), [reply("Complete", tick=203)] * 2, NOW)
    atoll_run._summarise(training, RunResult.COMPLETE, "complete", 3.0)
    assert "ValueError: no such colour" in said[0]
    assert said[-1].startswith("complete: ")
    assert written(tmp_path, "summary")["steps"] == 200


def written(out: Path, file: str) -> Any:
    return json.loads((out / f"{file}.json").read_text())


def states(out: Path) -> dict[str, str]:
    """The conditions of status.json."""
    return {each["type"]: each["status"] for each in written(out, "status")["conditions"]}


def test_a_checkpoint_that_is_asked_for_is_told_to_the_shards(tmp_path: Path) -> None:
    training = training_of(tmp_path, learner("a-0"), learner("a-1"))
    (tmp_path / ASKED_FILE).write_text("spoilt")
    training.advance(1.0)
    assert not (tmp_path / SLOTS_FILE).exists()
    (tmp_path / ASKED_FILE).write_text("51\n")
    training.advance(2.0)
    assert Expected.from_json((tmp_path / SLOTS_FILE).read_text()).checkpoint == 51


def test_a_learner_that_is_given_up_is_told_to_the_shards_once(tmp_path: Path) -> None:
    one = learner("a-1")
    training = training_of(tmp_path, learner("a-0"), one)
    file = tmp_path / SLOTS_FILE
    training.advance(1.0)
    assert not file.exists()  # it says what it said
    one.given_up = "ValueError: boom"
    training.advance(2.0)
    said = Expected.from_json(file.read_text())
    assert said.slots == {"a-0", "b-0"}
    file.unlink()
    training.advance(3.0)
    assert not file.exists()


def learner(name: str) -> Child:
    """One that runs."""
    planned = Planned(role="learner", name=name, command=(), env={})
    return Child(planned=planned, log=Path(f"{name}.log"))


def shard(name: str) -> Child:
    """A process of shard 0 that does not run."""
    planned = Planned(role="shard", name=name, command=(), env={}, shard=0)
    return Child(planned=planned, log=Path(f"{name}.log"))


def test_the_hosts_of_a_learner_are_one_to_shards_and_people(tmp_path: Path) -> None:
    hosts = [host(0), host(1)]
    failed = End(code=1, words=LastWords(text="ValueError: boom"))
    for each, end in zip(hosts, (End(code=75), failed), strict=True):
        each.record = EndRecord().after(end, returned=False)
        each.ended = "ended (exit code 1) and is started again"
    assert first_failure(hosts) is hosts[1]
    assert record_of(hosts).first == failed
    training = training_of(tmp_path, *hosts, learner("b-0"))
    assert [*reports_of(training.supervisor.children, 1.0).started_again] == ["a-1"]
    hosts[1].given_up, hosts[1].ended = "ValueError: boom", "is given up"
    hosts[0].given_up, hosts[0].ended = "ValueError: boom", ""
    hosts[0].given_up_with = "a-1-1"
    assert reports_of(hosts, 1.0).given_up == ["a-1-1 is given up; log: a-1-1.log"]
    training.advance(1.0)
    said = Expected.from_json((tmp_path / SLOTS_FILE).read_text())
    assert said.slots == {"a-0", "b-0"}


def lose(child: Child, code: int, why: str) -> Child:
    """It ended with this code, and is not started again."""
    child.record = EndRecord().after(End(code=code), returned=False)
    child.given_up = child.ended = why
    return child


def given_up(name: str, code: int) -> Child:
    return lose(learner(name), code, "another model")


def failed_after(name: str) -> Child:
    """A learner whose script failed behind its loop."""
    child = learner(name)
    child.after = "exit code 1: OSError: no space (train.py:9)"
    return child


@pytest.mark.parametrize(
    ("children", "code", "said"),
    [
        ([], RunResult.COMPLETE, ""),
        ([given_up("a-0", 1)], RunResult.COMPLETE, ""),
        ([given_up("a-0", 65)], RunResult.REFUSED, "refused for good: a-0 (--allow-refused: 0)"),
        (
            [failed_after("a-0"), failed_after("a-1"), given_up("b-0", 64)],
            RunResult.FAILED_AFTER,
            "; once the job was over a-0, a-1: exit code 1: OSError: no space (train.py:9);"
            " log: a-0.log; refused for good: b-0; exit code 3; see ",
        ),
    ],
)
def test_a_complete_job_says_in_its_last_line_who_failed_after_it_or_was_refused(
    children: list[Child], code: RunResult, said: str, tmp_path: Path, lines: list[str]
) -> None:
    training = training_of(tmp_path, *children, say=lines.append)
    training.supervisor.complete_at = 1.0
    assert exit_of(children, allow_refused=False) is code
    allowed = RunResult.COMPLETE if code is RunResult.REFUSED else code
    assert exit_of(children, allow_refused=True) is allowed
    atoll_run._summarise(training, code, "complete", 3.0)
    assert said.removesuffix("; see ") in lines[-1]
    lost = "the script of a-0 did not come to its end, so it may have saved no model: the values"
    assert (f"{lost} are in {shown(tmp_path / 'export')}" in lines[-1]) == bool(children)
    assert ("exit code" in lines[-1]) == (code is not RunResult.COMPLETE)
    found = written(tmp_path, "summary")
    assert (found["result"], found["exit_code"]) == ("Complete", code)
    assert found["ended_after"].keys() == {each.planned.name for each in children if each.after}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run says, which draws nothing."""
    monkeypatch.setattr(plots, "draw", ignored)
    return []


def test_nothing_that_learners_do_makes_a_job_fail_that_is_over(tmp_path: Path) -> None:
    lost, final = given_up("a-0", 1), snapshot([reply("Final")] * 2)
    training = training_of(tmp_path, lost, needed=3)
    with pytest.raises(JobFailedError):
        training._check(snapshot([reply()] * 2), final=False)
    training._check(final, final=True)
    shard = given_up("shard-0", 1)
    shard.planned = replace(shard.planned, role="shard")
    over = training_of(tmp_path, lost, shard, needed=3)
    with pytest.raises(JobFailedError):
        over._check(final, final=True)  # its part of the export is not there yet
    assert over.advance(1.0)  # complete


def left(out: Path, name: str) -> Child:
    """A learner that has left the job and still runs."""
    child = learner(name)
    child.telemetry = out / f"{name}.jsonl"
    child.telemetry.write_text('{"event": "end", "reason": "finished"}\n')
    return child


def test_a_learner_has_ten_minutes_to_end_after_the_job(tmp_path: Path) -> None:
    slow, starting = left(tmp_path, "a-0"), learner("a-1")
    training = training_of(tmp_path, slow, starting)
    assert not training.advance(1.0)
    said: list[str] = []
    view, training.view = training.view, Stopped(KeyboardInterrupt(), said.append)  # type: ignore[assignment]
    assert atoll_run._outcome(training, lambda: None) == (RunResult.COMPLETE, "complete")
    assert said == [atoll_run.STOPPING]
    assert states(tmp_path)["Complete"] == "True"
    assert slow.after == "stopped by Ctrl-C"
    training.view, slow.after = view, ""
    assert not training.advance(600.0)
    assert training.advance(601.0)
    assert slow.after == "stopped, since it still ran after 600 s"
    assert not starting.after


class Stopped(contextlib.nullcontext[None]):
    """A view in which a run is stopped by an error."""

    def __init__(self, error: BaseException, say: Callable[[str], None] = ignored) -> None:
        super().__init__()
        self.error, self.say = error, say

    def __enter__(self) -> None:
        raise self.error


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(
    ("stops", "state"), [(KeyboardInterrupt(), "Suspended"), (JobFailedError("R", "m"), "Failed")]
)
def test_the_last_status_of_a_run_that_stops_has_all_tokens_rule_35(
    stops: BaseException,
    state: str,
    seen: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those too that learners have trained between the last look at the shards and their end.

    That may be all of them: a small model trains many steps a second. What they sent is merged
    while they leave.
    """
    monkeypatch.setattr("atoll_operator.local.atoll_run.POLL_SECONDS", 0.0)
    left = shard("shard-0")
    left.process = SimpleNamespace(poll=ignored)  # type: ignore[assignment]
    training = training_of(tmp_path, learner("a-0"), left)
    looks = iter(range(1, 100))

    def poll(now: float, ends: ProcessReports = NO_REPORTS, *, wait: bool = False) -> RunSnapshot:
        said = reply("Serving", tick=60)
        if ("stop", ("learner", "evaluator")) in training.supervisor.done:  # type: ignore[attr-defined]
            assert wait, "a shard that was not reached yet may serve by now"
            said = reply("Serving", tick=61, training=())
            said.commits = min(next(looks), 3)
            said.trained = 1231 + said.commits
        return snapshot([said, said], ends)

    links = SimpleNamespace(say=ignored)
    training.poller = SimpleNamespace(poll=poll, job=job(), links=links)  # type: ignore[assignment]
    if seen:
        training.advance(1.0)
        assert training.status.progress is not None
        assert training.status.progress.tokens == 1200
    training.view = Stopped(stops)  # type: ignore[assignment]
    atoll_run._outcome(training, lambda: None)
    progress = written(tmp_path, "status")["progress"]
    assert (progress["step"], progress["tokens"]) == (61, 1234)
    assert progress.get("loss") == ("2.0000" if seen else None)
    assert states(tmp_path)[state] == "True"


def test_a_run_that_stops_while_a_shard_is_away_keeps_what_was_known(tmp_path: Path) -> None:
    training = training_of(tmp_path, learner("a-0"), shard("shard-0"))
    said: list[pb.StatusReply | None] = [reply("Serving", tick=60), reply("Serving", tick=60)]

    def poll(now: float, ends: ProcessReports = NO_REPORTS, *, wait: bool = False) -> RunSnapshot:
        return snapshot(said, ends)

    links = SimpleNamespace(say=ignored)
    training.poller = SimpleNamespace(poll=poll, job=job(), links=links)  # type: ignore[assignment]
    training.advance(1.0)
    said[1] = None
    training.advance(2.0)
    training.view = Stopped(KeyboardInterrupt())  # type: ignore[assignment]
    atoll_run._outcome(training, lambda: None)
    assert written(tmp_path, "status")["progress"]["tokens"] == 1200


def host(number: int, needed: int = 2) -> Child:
    """A host of a learner of two, which trains with so many."""
    name = f"a-1-{number}"
    one = Planned(role="learner", name=name, command=(), env={}, slot="a-1", host=number)
    planned = replace(one, hosts_needed=needed)
    return Child(planned=planned, log=Path(f"{name}.log"))


def test_a_learner_that_goes_on_with_fewer_hosts_is_not_lost(tmp_path: Path) -> None:
    hosts = [host(0, needed=1), host(1, needed=1)]
    training = training_of(tmp_path, *hosts, learner("b-0"), needed=3)
    lose(hosts[1], 64, "ValueError: boom")
    training.advance(1.0)
    assert not (tmp_path / SLOTS_FILE).exists()
    assert reports_of(hosts, 1.0).given_up == ["a-1-1 ValueError: boom; log: a-1-1.log"]
    lose(hosts[0], 64, "ValueError: boom")
    with pytest.raises(JobFailedError, match="a-1-0: ValueError: boom"):
        training._check(snapshot([reply()] * 2), final=False)


def test_learners_whose_processes_run_for_the_first_time_start_for_ten_minutes() -> None:
    hosts, other = [host(0), host(1)], learner("b-0")
    running: Any = object()
    for each in (*hosts, other):
        each.process, each.started_at = running, 5.0
    shard = Child(planned=replace(other.planned, role="shard", name="shard-0"), log=Path("log"))
    shard.process = running
    found = [*hosts, other, shard]
    assert reports_of(found, 600.0).starting == {"a-1": 595.0, "b-0": 595.0}
    assert reports_of(found, 605.0).starting == {}
    hosts[1].record = EndRecord().after(End(code=-9), returned=False)
    assert reports_of(found, 600.0).starting == {"b-0": 595.0}
    other.process = None  # it has yet to be started
    assert reports_of(found, 600.0).starting == {}
