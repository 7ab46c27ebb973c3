import time

import pytest
import torch

from atoll_protos.errors import SpecError
from atoll_worker.link.messages import Adopt, Finished, Start, Tick
from bytegpt import train
from bytegpt.data import Batches
from bytegpt.model import ByteGPT
from bytegpt.train import TrainOptions, length, shard_of, warmup_then_cosine
from unit.worker.fake_transport import RUN_FILE, FakeTransport, job_of, playing

SMALL = ["--layers", "2", "--heads", "2", "--width", "16", "--context", "8"]


def begin_from_seed(fake: FakeTransport, cursor: int = 0) -> None:
    """Every slice is adopted as the learner has seeded it."""
    for key in fake.end.memory.plan.slices:
        fake.end.memory.adopt(*key)[:] = fake.end.memory.capture(*key)  # both are f32
        fake.send(Adopt(shard=key[0], fragment=key[1], number=0, blend=0.0))
    count = 0
    while count < len(fake.end.memory.plan.slices):
        count += len(fake.boundary().adopted)
    fake.send(Start(incarnation=1, cursor=cursor, tick=0))


def test_training_learns_and_ends_when_the_job_is_final(data: str) -> None:
    losses = []

    def script(fake: FakeTransport) -> None:
        begin_from_seed(fake)
        for tick in range(1, 61):
            boundary = fake.boundary()
            losses.append(boundary.loss)
            assert boundary.tokens == 4 * 2 * 8
            assert boundary.cursor == boundary.own_steps
            fake.send(Tick(tick=tick))
        fake.send(Finished())
        assert fake.until_leaving().reason == "finished"

    arguments = [*SMALL, "--batch", "4", "--accumulate", "2", "--data", data]
    with playing(script):
        train.main([*arguments, "--learning-rate", "0.02"])
    assert losses[0] > 5
    assert losses[-1] < losses[0] - 1.5


def test_two_micro_batches_are_one_step_on_the_batch_of_both(data: str) -> None:
    def losses(arguments: list[str]) -> list[float]:
        found: list[float] = []

        def script(fake: FakeTransport) -> None:
            begin_from_seed(fake, cursor=3)
            found.extend(fake.boundary().loss for _ in range(3))
            fake.send(Finished())
            fake.until_leaving()

        with playing(script):
            train.main([*SMALL, "--data", data, *arguments])
        return found

    once = losses(["--batch", "8"])
    assert losses(["--batch", "4", "--accumulate", "2"]) == pytest.approx(once, rel=1e-4)
    assert losses(["--batch", "8"]) == once, "the same seed, slot and cursor"
    assert losses(["--batch", "8", "--dtype", "bf16"]) == pytest.approx(once, rel=0.02)


def test_processes_of_a_learner_average_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, frozen = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    model = torch.nn.Sequential(trained, frozen)
    for number, each in enumerate(trained.parameters()):
        each.grad = torch.full_like(each, float(number))

    def of_both(values: torch.Tensor) -> None:
        values += torch.arange(len(values))  # what the other process has

    monkeypatch.setattr(torch.distributed, "all_reduce", of_both)
    train.average_gradients(model, 2)
    weight, bias = trained.weight.grad, trained.bias.grad
    assert weight is not None
    assert bias is not None
    assert weight.flatten().tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert bias.tolist() == [3.5, 4, 4.5]
    assert frozen.weight.grad is None
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert train.group(torch.device("cpu")) == (0, 1)  # one process is no group
    assert not torch.distributed.is_initialized()


def test_a_floor_on_a_steps_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 10.5)
    train.pace(begun=10.0, seconds_min=0.75)
    train.pace(begun=10.0, seconds_min=0.25)
    assert slept == [0.25]


def test_the_learning_rate_warms_up_and_then_falls_to_its_floor() -> None:
    share = warmup_then_cosine(1000)
    assert share(0) == pytest.approx(0.02, rel=0.01)
    assert max(share(tick) for tick in range(1000)) > 0.99
    assert share(1000) == share(2000) == pytest.approx(0.1)
    assert all(share(tick) >= share(tick + 1) for tick in range(60, 1200))


def test_a_length_in_tokens_becomes_ticks_of_all_slots() -> None:
    text = RUN_FILE.to_json().replace('"steps": 100', '"steps": null')
    run_file = RUN_FILE.from_json(text.replace('"tokens": null', '"tokens": 1001'))
    assert length(job_of(run_file), 100) == 6
    assert length(job_of(), 100) == 100


def test_the_slots_of_a_job_share_no_text(data: str) -> None:
    first, second = (shard_of(job_of(slot=slot), [data]) for slot in RUN_FILE.slots)
    assert not torch.equal(first[:1000], second[:1000])
    with pytest.raises(SpecError, match="there-0 is not a slot of the job; use one of here-0"):
        shard_of(job_of(slot="there-0"), [data])


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="dtype: 'f8' is unknown"):
        TrainOptions(dtype="f8")
    with pytest.raises(SpecError, match="accumulate: is 0"):
        TrainOptions(accumulate=0)
    options = TrainOptions(batch=2, accumulate=3, context=8)
    assert options.tokens == 48
    batches = Batches(text=torch.zeros(100), seed=0, slot="a-0", batch=6, context=8)
    assert batches.at(0).shape == (6, 9)
    assert ByteGPT(options, seed=0).size is options
