"""`Learner` against a script that plays its transport: values, boundaries, lock-step, clock."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll_protos.exits import ExitCode
from atoll_worker.errors import TransportLostError
from atoll_worker.link.messages import Adopt, Capture, Finished, Proceed, Tick
from atoll_worker.training import replica
from unit.worker.fake_transport import LOCKSTEP, FakeTransport, Gate, playing
from unit.worker.fixtures import entered, learner_of, model_and_optimizer, train_for_ever

torch.set_num_threads(1)


def values(model: nn.Module) -> set[float]:
    return {value for each in model.parameters() for value in each.flatten().tolist()}


def test_entering_takes_the_jobs_values_its_cursor_and_its_tick() -> None:
    model, optimizer = model_and_optimizer()
    learner = learner_of(model, optimizer)
    with entered(learner, "loop ended", value=2.0, cursor=7, tick=5):
        assert values(model) == {2.0}
        assert (learner.cursor, learner.tick, learner.own_steps) == (7, 5, 0)
        assert (learner.slot, learner.seed, learner.total_ticks) == ("here-1", 5, 100)
        assert learner.progress == 0.05
        assert not learner.finished


def test_the_seed_is_the_model_as_it_was_before_entering() -> None:
    model, optimizer = model_and_optimizer()
    for each in model.parameters():
        each.data.fill_(3.0)
    with entered(learner_of(model, optimizer)) as fake:
        assert set(fake.captures().tolist()) == {3.0}
        assert all(fake.end.memory.counter(*key) == 2 for key in fake.end.memory.plan.slices)


def test_every_step_is_one_boundary_with_its_counters() -> None:
    learner = learner_of(*model_and_optimizer())
    with entered(learner, cursor=9) as fake:
        learner.step(tokens=1)
        learner.step(tokens=8, loss=1.5)
        learner.step(tokens=8, loss=torch.tensor(2.5, requires_grad=True))
        learner.step(tokens=8, cursor=20)
        learner.step(tokens=9, loss=torch.tensor([0.25], dtype=torch.bfloat16))
        assert (learner.own_steps, learner.cursor) == (5, 21)
        assert math.isnan(fake.boundary().loss)  # the first step gives none
        boundaries = [fake.boundary() for _ in range(4)]
    assert [each.own_steps for each in boundaries] == [2, 3, 4, 5]
    assert [each.tokens for each in boundaries] == [8, 8, 8, 9]
    assert [each.cursor for each in boundaries] == [11, 12, 20, 21]
    assert [each.loss for each in boundaries] == [1.5, 2.5, 2.5, pytest.approx(0.25)]
    assert not any(each.again or each.adopted or each.captured for each in boundaries)
    assert all(each.step_seconds >= 0 and each.blocked_seconds >= 0 for each in boundaries)


def test_a_boundary_adopts_before_it_captures_whatever_came_first() -> None:
    model, optimizer = model_and_optimizer()
    learner = learner_of(model, optimizer)
    with entered(learner, value=4.0) as fake:
        keys = fake.end.memory.plan.slices
        fake.send(Capture(slices=keys))
        for shard, fragment in keys:
            fake.adopt(shard, fragment).fill_(2.0)
            fake.send(Adopt(shard=shard, fragment=fragment, number=1, blend=0.25))
        assert values(model) == {4.0}  # they change at a boundary only
        learner.step(tokens=1)
        assert values(model) == {2.5}
        boundary = fake.boundary()
        assert boundary.own_steps == 1
        assert boundary.adopted == tuple((*key, 1) for key in keys)
        assert boundary.captured == keys
        assert set(fake.captures().tolist()) == {2.5}
        assert all(fake.end.memory.counter(*key) % 2 == 0 for key in keys)


def test_step_never_waits_for_a_transport_that_does_not_answer() -> None:
    done = Gate()

    def script(fake: FakeTransport) -> None:
        fake.begin()
        done.pass_()  # reads nothing meanwhile
        boundaries = [fake.boundary().own_steps for _ in range(3000)]
        assert boundaries == list(range(1, 3001))
        fake.until_leaving()

    with playing(script), learner_of(*model_and_optimizer()) as learner:
        for _ in range(3000):
            learner.step(tokens=1)
        done.open()


def test_in_lockstep_step_waits_for_proceed_and_reports_what_it_does_meanwhile() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin(value=1.0)
        keys = fake.end.memory.plan.slices
        for steps in (1, 2):
            boundary = fake.boundary()
            assert (boundary.own_steps, boundary.again) == (steps, False)
            fake.send(Capture(slices=keys))
            handed_over = fake.boundary()
            assert (handed_over.own_steps, handed_over.again) == (steps, True)
            assert handed_over.captured == keys
            assert set(fake.captures().tolist()) == {float(steps)}
            fake.offer_values(steps + 1.0, number=steps)
            adopted: list[tuple[int, int, int]] = []
            while len(adopted) < len(keys):
                adopted += fake.boundary().adopted
            fake.send(Tick(tick=steps), Proceed())
        fake.until_leaving()

    model, optimizer = model_and_optimizer()
    with playing(script), learner_of(model, optimizer, LOCKSTEP) as learner:
        for steps in (1, 2):
            learner.step(tokens=1)
            assert values(model) == {steps + 1.0}
            assert learner.tick == steps


PROGRAM = """
import argparse
import numpy
from atoll_worker.link.socket import open_transport_end, outlive_signals
from atoll_worker.link.messages import Adopt, Boundary, Leaving, Start
outlive_signals()
parser = argparse.ArgumentParser()
parser.add_argument("--link-fd", type=int)
parser.add_argument("--memory-fd", type=int)
options = parser.parse_args()
end = open_transport_end(options.link_fd, options.memory_fd)
for key in end.memory.plan.slices:
    ours = numpy.frombuffer(end.memory.capture(*key), numpy.float32)
    end.memory.adopt(*key)[:] = (ours + 1).tobytes()
    end.send(Adopt(shard=key[0], fragment=key[1], number=0, blend=0.0))
left = len(end.memory.plan.slices)
leaving = False
while not leaving:
    end.link.wait(60)
    for message in end.link.receive():
        left -= len(getattr(message, "adopted", ()))
        if isinstance(message, Boundary) and not left and not message.own_steps:
            end.send(Start(incarnation=1, cursor=0, tick=0))
        if getattr(message, "own_steps", 0) == 2:
            raise SystemExit(3)
        leaving = isinstance(message, Leaving)
"""


def test_the_transport_is_a_process_with_inherited_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(replica, "PROGRAM", (sys.executable, str(path)))
    model, optimizer = model_and_optimizer()
    before = [each.detach().clone() for each in model.parameters()]
    learner = learner_of(model, optimizer)

    def train() -> None:
        for old, new in zip(before, model.parameters(), strict=True):
            assert torch.equal(old + 1, new)
        train_for_ever(learner)

    ended = r"the transport process has ended \(exit code 3\); start this one again"
    with pytest.raises(TransportLostError, match=ended) as caught, learner:
        train()
    assert caught.value.exit_code == ExitCode.TRY_AGAIN


def test_steps_past_the_end_leave_the_final_values_in_the_model() -> None:
    model, optimizer = model_and_optimizer()
    told: list[tuple[str, ...]] = []
    learner = learner_of(model, optimizer, LOCKSTEP)
    learner.on_adopt(told.append)
    with entered(learner, "finished", value=1.0) as fake:
        for key in fake.end.memory.plan.slices:
            fake.adopt(*key).fill_(7.0)
        fake.send(Tick(tick=100), Finished(again=fake.end.memory.plan.slices))
        for _ in range(3):
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
            done = learner.step(tokens=1)
            assert (values(model), done.finished, learner.own_steps) == ({7.0}, True, 1)
            assert set(done.adopted) == {name for name, _ in model.named_parameters()}
    assert len(told) == 4


def test_on_adopt_is_told_on_entering_or_at_once_and_at_each_adoption() -> None:
    early: list[tuple[str, ...]] = []
    late: list[tuple[str, ...]] = []
    model, optimizer = model_and_optimizer()
    every = {name for name, _ in model.named_parameters()}
    learner = learner_of(model, optimizer)
    learner.on_adopt(early.append)
    with entered(learner, value=1.0) as fake:
        learner.on_adopt(late.append)
        assert [set(names) for names in early] == [set(names) for names in late] == [every]
        shard, fragment = fake.end.memory.plan.slices[0]
        fake.adopt(shard, fragment).fill_(3.0)
        fake.send(Adopt(shard=shard, fragment=fragment, number=1, blend=0.0))
        done = learner.step(tokens=1)
        changed = {name for name, each in model.named_parameters() if (each == 3.0).any()}
        assert set(done.adopted) == changed < every
        assert learner.step(tokens=1).adopted == ()
    assert early[1:] == late[1:] == [done.adopted]


def test_an_error_in_on_adopt_ends_the_step_and_leaves_the_job() -> None:
    def fail(names: tuple[str, ...]) -> None:
        raise KeyError("mine")

    learner = learner_of(*model_and_optimizer())
    learner.on_adopt(fail)
    with pytest.raises(KeyError), entered(learner, "KeyError: 'mine'"):
        pytest.fail("entered")
