"""One pass of `atoll run` over its processes, and the last one."""

import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.runfile import expected
from atoll_operator.api.words import LastWords
from atoll_operator.local import plots, progress, run
from atoll_operator.local.children import ends_of, exit_of
from atoll_operator.local.ends import End, Record
from atoll_operator.local.files import Files
from atoll_operator.local.plan import SLOTS_FILE, Planned
from atoll_operator.local.run import JobFailedError, Training, first_failure, record_of
from atoll_operator.local.summary import Exit
from atoll_operator.local.supervisor import Child
from atoll_protos.expected import Expected
from unit.local.test_progress import NOW, job, reply


class Shards:
    """Two shards of a complete job, each asked once a pass; the evaluator speaks in between."""

    def __init__(self) -> None:
        self.asked = 0
        self.job = job()

    def poll(self, now: float, ends: progress.Ends = progress.NO_ENDS) -> progress.Snapshot:
        self.asked += 1
        replies = [reply("Complete", tick=200), reply("Complete", tick=200)]
        if self.asked > 1:
            replies[0].evaluation.CopyFrom(pb.Evaluation(tick=200, loss=1.5, tokens=10))
        found = progress.status(job(), replies, NOW, ends)
        return progress.Snapshot(job=job(), replies=replies, status=found, bytes_per_second=None)


class Processes:
    """Learners, and an evaluator that has ended by the time that it is looked at."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def supervise(self, now: float, *, final: bool, complete: bool, tick: int) -> None:
        pass

    def in_roles(self, *roles: str) -> list[Any]:
        return [each for each in self.children if each.planned.role in roles]

    def stop(self, roles: tuple[str, ...]) -> None:
        """Learners report what they have trained when they leave."""
        assert roles == ("learner", "evaluator")
        self.has_left = True


def ignored(*_: object) -> None:
    """A view that shows nothing."""


def training_of(
    out: Path, *children: Any, needed: int = 0, say: Callable[[str], None] = ignored
) -> Training:
    """A run of these processes, of which nothing is known yet."""
    processes: Any = Processes(*children)
    shards: Any = Shards()
    return Training(
        needed=needed,
        slots=expected(job()),
        files=Files(out, say),
        supervisor=processes,
        poller=shards,
        view=SimpleNamespace(show=ignored, say=say),
        status=progress.status(job(), [None, None], NOW),
    )


def test_the_last_status_has_what_was_said_until_the_last_process_had_left(tmp_path: Path) -> None:
    training = training_of(tmp_path)
    assert training.advance(1.0)
    metrics = json.loads((tmp_path / "status.json").read_text())["progress"]["metrics"]
    assert {"name": "outer_loss", "value": "1.5000"} in metrics


def test_a_picture_that_cannot_be_drawn_changes_nothing_but_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: Any) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr(plots, "draw", draw)
    said: list[str] = []
    training = training_of(tmp_path, say=said.append)
    run._summarise(training, Exit.COMPLETE, "complete", 3.0)
    assert "ValueError: no such colour" in said[0]
    assert said[-1].startswith("complete: ")
    assert (tmp_path / "summary.json").exists()


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


def test_the_hosts_of_a_learner_are_one_in_what_the_shards_and_people_are_told(
    tmp_path: Path,
) -> None:
    hosts = [host(0), host(1)]
    failed = End(code=1, words=LastWords(text="ValueError: boom"))
    lost = End(code=75)
    hosts[0].record = Record().after(lost, returned=False)
    hosts[1].record = Record().after(failed, returned=False)
    assert first_failure(hosts) is hosts[1]
    assert record_of(hosts).first == failed
    training = training_of(tmp_path, *hosts, learner("b-0"))
    for each in hosts:
        each.ended = "ended (exit code 1) and is started again"
    ends = ends_of(training.supervisor.children, 1.0)
    assert [*ends.started_again] == ["a-1"]
    hosts[1].given_up, hosts[1].ended = "ValueError: boom", "is given up"
    hosts[0].given_up, hosts[0].ended = "ValueError: boom", ""
    hosts[0].given_up_with = "a-1-1"
    assert ends_of(hosts, 1.0).given_up == ["a-1-1 is given up; log: a-1-1.log"]
    training.advance(1.0)
    said = Expected.from_json((tmp_path / SLOTS_FILE).read_text())
    assert said.slots == {"a-0", "b-0"}


def given_up(name: str, code: int) -> Child:
    """A learner that is not started again, and ended with this code."""
    child = learner(name)
    child.record = Record().after(End(code=code), returned=False)
    child.given_up = child.ended = "another model"
    return child


def failed_after(name: str) -> Child:
    """A learner whose script failed behind its loop."""
    child = learner(name)
    child.after = "exit code 1: OSError: no space (train.py:9)"
    return child


@pytest.mark.parametrize(
    ("children", "code", "said"),
    [
        ([], Exit.COMPLETE, ""),
        ([given_up("a-0", 1)], Exit.COMPLETE, ""),
        ([given_up("a-0", 65)], Exit.REFUSED, "refused for good: a-0 (--allow-refused: 0)"),
        (
            [failed_after("a-0"), failed_after("a-1"), given_up("b-0", 64)],
            Exit.FAILED_AFTER,
            "; once the job was over a-0, a-1: exit code 1: OSError: no space (train.py:9);"
            " log: a-0.log; refused for good: b-0; exit code 3; see ",
        ),
    ],
)
def test_a_complete_job_says_in_its_last_line_who_failed_after_it_or_was_refused(
    children: list[Child], code: Exit, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "draw", ignored)
    lines: list[str] = []
    training = training_of(tmp_path, *children, say=lines.append)
    training.complete_at = 1.0
    assert exit_of(children, allow_refused=False) is code
    run._summarise(training, code, "complete", 3.0)
    assert said in lines[-1]
    assert ("exit code" in lines[-1]) == (code is not Exit.COMPLETE)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["result"], found["exit_code"]) == ("Complete", code)
    names = {each.planned.name for each in children if each.after}
    assert found["ended_after"].keys() == names


def test_a_learner_that_was_refused_may_be_allowed() -> None:
    assert exit_of([given_up("a-0", 65)], allow_refused=True) is Exit.COMPLETE
    assert exit_of([failed_after("a-0")], allow_refused=True) is Exit.FAILED_AFTER


def test_nothing_that_learners_do_makes_a_job_fail_that_is_over(tmp_path: Path) -> None:
    lost = given_up("a-0", 1)
    training = training_of(tmp_path, lost, needed=1)
    with pytest.raises(JobFailedError):
        training._check(seen_of("Serving"), final=False)
    training._check(seen_of("Final"), final=True)
    shard = given_up("shard-0", 1)
    shard.planned = replace(shard.planned, role="shard")
    over = training_of(tmp_path, lost, shard, needed=1)
    with pytest.raises(JobFailedError):
        over._check(seen_of("Final"), final=True)  # its part of the export is not there yet
    assert over.advance(1.0)  # complete


def seen_of(state: str) -> progress.Snapshot:
    replies = [reply(state)] * 2
    found = progress.status(job(), replies, NOW)
    return progress.Snapshot(job=job(), replies=replies, status=found, bytes_per_second=None)


def left(out: Path, name: str) -> Child:
    """A learner that has left the job and still runs."""
    child = learner(name)
    child.telemetry = out / f"{name}.jsonl"
    child.telemetry.write_text('{"event": "end", "reason": "finished"}\n')
    return child


def test_a_learner_has_a_minute_to_end_after_the_job_and_is_named_when_it_needs_more(
    tmp_path: Path,
) -> None:
    slow, starting = left(tmp_path, "a-0"), learner("a-1")
    training = training_of(tmp_path, slow, starting)
    assert not training.advance(1.0)
    assert not training.advance(60.0)
    assert training.advance(61.0)
    assert slow.after == "stopped, since it still ran after 60 s"
    assert not starting.after


def test_an_interrupt_of_a_job_that_is_complete_leaves_it_complete(tmp_path: Path) -> None:
    training = training_of(tmp_path, left(tmp_path, "a-0"))
    training.advance(1.0)

    said: list[str] = []

    class Interrupted:
        say = said.append

        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            pass

    training.view = Interrupted()  # type: ignore[assignment]
    assert run._outcome(training) == (Exit.COMPLETE, "complete")
    assert said == [run.STOPPING]
    conditions = json.loads((tmp_path / "status.json").read_text())["conditions"]
    assert {each["type"]: each["status"] for each in conditions}["Complete"] == "True"
    assert training.supervisor.children[0].after == "stopped by Ctrl-C"


@pytest.mark.parametrize(
    ("stops", "state"), [(KeyboardInterrupt(), "Suspended"), (JobFailedError("R", "m"), "Failed")]
)
def test_the_last_status_of_a_run_that_stops_has_all_tokens_rule_35(
    stops: BaseException, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those too that learners have trained between the last look at the shards and their end."""
    training = training_of(tmp_path, learner("a-0"))
    processes = training.supervisor

    def poll(now: float, ends: progress.Ends = progress.NO_ENDS) -> progress.Snapshot:
        said = reply("Serving", tick=60)
        if getattr(processes, "has_left", False):
            said = reply("Serving", tick=61, training=())
            said.trained = 1234
        found = progress.status(job(), [said, said], NOW, ends)
        return progress.Snapshot(
            job=job(), replies=[said, said], status=found, bytes_per_second=None
        )

    monkeypatch.setattr(training.poller, "poll", poll)
    training.advance(1.0)
    assert training.status.progress is not None
    assert training.status.progress.tokens == 1200

    def stopped() -> None:
        raise stops

    class Quiet(contextlib.nullcontext[None]):
        say = staticmethod(ignored)

    training.view = Quiet()  # type: ignore[assignment]
    monkeypatch.setattr(Training, "run", lambda _: stopped())
    run._outcome(training)
    written = json.loads((tmp_path / "status.json").read_text())
    assert (written["progress"]["step"], written["progress"]["tokens"]) == (61, 1234)
    assert written["progress"]["loss"] == "2.0000"
    conditions = {each["type"]: each["status"] for each in written["conditions"]}
    assert conditions[state] == "True"


def host(number: int, needed: int = 2) -> Child:
    """A host of a learner of two, which trains with so many."""
    name = f"a-1-{number}"
    one = Planned(role="learner", name=name, command=(), env={}, slot="a-1", host=number)
    planned = replace(one, hosts_needed=needed)
    return Child(planned=planned, log=Path(f"{name}.log"))


def test_a_learner_that_goes_on_with_fewer_hosts_is_not_lost(tmp_path: Path) -> None:
    hosts = [host(0, needed=1), host(1, needed=1)]
    training = training_of(tmp_path, *hosts, learner("b-0"), needed=2)
    failed = End(code=64, words=LastWords(text="ValueError: boom"))
    hosts[1].record = Record().after(failed, returned=False)
    hosts[1].given_up = hosts[1].ended = "ValueError: boom"
    training.advance(1.0)
    assert not (tmp_path / SLOTS_FILE).exists()
    assert ends_of(hosts, 1.0).given_up == ["a-1-1 ValueError: boom; log: a-1-1.log"]
    hosts[0].record = Record().after(failed, returned=False)
    hosts[0].given_up = hosts[0].ended = "ValueError: boom"
    with pytest.raises(JobFailedError, match="a-1-0: ValueError: boom"):
        training._check(seen_of("Serving"), final=False)


def test_learners_whose_processes_run_for_the_first_time_start_for_ten_minutes() -> None:
    hosts, other = [host(0), host(1)], learner("b-0")
    running: Any = object()
    for each in (*hosts, other):
        each.process, each.started_at = running, 5.0
    shard = Child(planned=replace(other.planned, role="shard", name="shard-0"), log=Path("log"))
    shard.process = running
    found = [*hosts, other, shard]
    assert ends_of(found, 600.0).starting == {"a-1": 595.0, "b-0": 595.0}
    assert ends_of(found, 605.0).starting == {}
    hosts[1].record = Record().after(End(code=-9), returned=False)
    assert ends_of(found, 600.0).starting == {"b-0": 595.0}
    other.process = None  # it has yet to be started
    assert ends_of(found, 600.0).starting == {}


def test_chaos_kills_only_when_all_have_trained_for_a_while_whatever_the_machine(
    tmp_path: Path,
) -> None:
    """Kills at fixed times left a slow machine no time between the starts in which to train."""
    replies: list[pb.StatusReply | None] = []
    killed: list[Child] = []

    def poll(now: float, ends: progress.Ends = progress.NO_ENDS) -> progress.Snapshot:
        found = progress.status(job(), replies, NOW, ends)
        return progress.Snapshot(job=job(), replies=replies, status=found, bytes_per_second=None)

    processes: Any = Processes(learner("a-0"), learner("a-1"))
    processes.children[0].process = object()
    processes.kill = killed.append
    training = Training(
        needed=0,
        slots=expected(job()),
        files=Files(tmp_path, ignored),
        supervisor=processes,
        poller=SimpleNamespace(poll=poll),  # type: ignore[arg-type]
        view=SimpleNamespace(show=lambda seen, now: None, say=lambda text: None),
        status=progress.status(job(), [None, None], NOW),
        chaos=True,
    )

    def kills(at: float, *now_said: pb.StatusReply | None) -> int:
        replies[:] = now_said
        training.advance(at)
        return len(killed)

    some, every = reply(training=("a-0", "b-0")), reply()
    for second in range(0, 100, 10):
        assert kills(second, some, some) == 0
        assert kills(second + 5, every, None) == 0
    assert kills(100.0, every, every) == 0
    assert kills(114.9, every, every) == 0
    assert kills(115.0, every, every) == 1  # 20 s after the last that was not so
    assert kills(134.9, every, every) == 1
    processes.children[1].given_up = "ValueError: boom"
    assert kills(135.0, some, some) == 2  # who is given up is not waited for


def test_the_first_interrupt_ends_the_run_and_the_second_says_that_it_is_being_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with run.terminated_like_interrupted():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert not capsys.readouterr().err
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:  # it would end pytest, and no test would have failed
        pytest.fail("an interrupt cuts the end short")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err.splitlines() == [run.STOPPING] * 2


def test_the_summary_does_not_count_steps_beyond_the_length_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "draw", ignored)
    training = training_of(tmp_path)
    training.status = progress.status(job(), [reply("Complete", tick=203)] * 2, NOW)
    training.steps_max = 200
    run._summarise(training, Exit.COMPLETE, "complete", 1.0)
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 200
