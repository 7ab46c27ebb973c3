"""A script that no job has started: everything works the same, with one learner and no syncer."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

import atoll
from atoll_protos.environment import VARIABLES
from atoll_protos.errors import SpecError
from atoll_worker import job, learner
from atoll_worker.training import replica
from unit.worker.fixtures import learn, tiny_model, train

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setattr(job, "_said_alone", [])
    yield
    assert not job._open


def test_a_process_without_a_launcher_is_the_only_learner_of_a_job_of_100_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = atoll.job()
    assert (job.alone, job.slot, job.slots, job.index) == (True, "alone-0", ("alone-0",), 0)
    assert (job.seed, job.steps, job.regions) == (0, 100, ("alone",))
    atoll.job()
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.count("alone for 100 steps (ATOLL_STEPS")) == ("", 1, 1)


def test_the_whole_loop_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_STEPS", "7")
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    told: list[tuple[str, ...]] = []
    learner = atoll.Learner(model, optimizer)
    learner.on_adopt(told.append)
    learner.schedule(lambda progress: 1 - progress)
    with learner:
        assert (learner.cursor, learner.tick, learner.progress) == (0, 0, 0)
        assert learner.data_state is None
        seen = []
        while not learner.finished:
            learn(model, optimizer)
            seen.append(learner.step(tokens=4, loss=torch.tensor(1.0), state=b"here"))
        assert learner.data_state is None  # with which it began
    assert seen[-1] == atoll.Step(adopted=(), tick=7, finished=True)
    assert [each.tick for each in seen] == list(range(1, 8))
    assert (learner.cursor, learner.own_steps, learner.total_ticks) == (7, 7, 7)
    assert (learner.progress, told) == (1.0, [])
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_a_loop_over_epochs_begins_with_that_of_the_cursor_and_ends_with_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATOLL_STEPS", "7")
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with atoll.Learner(model, optimizer) as learner:
        with pytest.raises(SpecError, match="a pass of 0"):
            next(learner.epochs(0))
        numbers = []
        for epoch in learner.epochs():
            numbers.append(epoch)
            for _ in range(3):
                learn(model, optimizer)
                learner.step(tokens=4)
        assert numbers == [0, 1, 2]
        assert learner._replica is not None
        learner._replica.state.finished = False
        learner._counts.cursor = 7  # as after a restart
        assert next(learner.epochs(3)) == 2


def test_alone_no_process_is_started_and_the_model_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "begin", lambda: pytest.fail("a transport process was started"))
    model = tiny_model()
    before = model.weight.detach().clone()
    with atoll.Learner(model) as learner:
        assert torch.equal(model.weight, before)
        learner.step(tokens=1)
        assert torch.equal(model.weight, before)


class OtherRanks:
    """A learner of two ranks, of which this one enters."""

    def __init__(self) -> None:
        self.left: list[bool] = []
        self.early: list[bool] = []

    def agree(self, make: Callable[[], object]) -> object:
        return make()

    def same(self, what: str, value: object) -> None:
        """The other rank was started for the same."""

    def told(self, value: object) -> list[object]:
        return [value, value]

    def open(self, *given: object) -> tuple[()]:
        return ()

    def leave(self, *, in_order: bool, early: bool = False, told: bool = False) -> None:
        self.left.append(in_order)
        self.early.append(early)


def test_alone_no_rank_waits_for_another_one_or_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 may still write the model when the others have ended for long."""
    ranks = OtherRanks()
    monkeypatch.setattr(learner, "open_group", lambda group, cut: ranks)
    with atoll.Learner(tiny_model()) as alone:
        assert ranks.left == [True]
        assert alone.step(tokens=1).tick == 1
    assert ranks.left == [True]


def test_a_rank_whose_loop_ends_before_the_job_does_leaves_early() -> None:
    ranks = OtherRanks()
    for reason in ("loop ended", "finished", "ValueError: of the user"):
        opened = atoll.Learner(tiny_model())
        opened._ranks = ranks  # type: ignore[assignment]
        opened._leave(reason)
    assert (ranks.left, ranks.early) == ([True, True, False], [True, False, False])


def test_open_and_close_are_the_two_ends_of_the_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_STEPS", "2")
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = atoll.Learner(model).open()
    with learner:  # what is open may be entered
        train(learner, model, optimizer)
    learner.close()
    learner.close(ValueError("twice is right"))
    with pytest.raises(RuntimeError, match="inside `with"):
        learner.step(tokens=1)
    with pytest.raises(RuntimeError, match="opened once"):
        learner.open()


def test_a_second_open_learner_is_refused_and_one_after_the_other_is_right() -> None:
    model = tiny_model()
    with (
        atoll.Learner(model) as first,
        pytest.raises(SpecError, match="another one is open in this process"),
        atoll.Learner(tiny_model()),
    ):
        pytest.fail("a second Learner was opened")
    first.close()
    with atoll.Learner(model) as after:
        after.step(tokens=1)


@pytest.mark.parametrize("steps", ["0", "many", "-3", "1.5"])
def test_a_wrong_length_is_named(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    monkeypatch.setenv("ATOLL_STEPS", steps)
    with pytest.raises(SpecError, match="; give the number of steps"):
        atoll.job()


@pytest.mark.parametrize(
    "variable", ["ATOLL_RUN_FILE", "ATOLL_ENDPOINTS", "ATOLL_SLOT", "ATOLL_REGION", "ATOLL_UID"]
)
def test_a_half_set_environment_is_an_error_and_not_alone(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "us-east-0")
    with pytest.raises(SpecError, match=r"ATOLL_(RUN_FILE|ENDPOINTS): "):
        atoll.job()


def test_an_observer_is_never_alone() -> None:
    with pytest.raises(SpecError, match="ATOLL_RUN_FILE: is not set"), atoll.Observer(tiny_model()):
        pass


SCRIPT = """
import torch, atoll
learner = atoll.Learner(torch.nn.Linear(2, 2)).open()
learner.step(tokens=1)
"""


def test_a_script_that_never_closes_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("atoll: no job has started this process")
    assert done.stderr.count("\n") == 1
