"""Optimizers of a script: compared between ranks, followed step by step."""

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, AdamW, Muon

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.model.parameters import travelling
from atoll_worker.script.optimizers import Settings, check_alike, settings
from unit.worker.fixtures import learn, tiny_model


def of(optimizer: torch.optim.Optimizer, model: nn.Module) -> Settings:
    return settings([optimizer], travelling(model))


def test_equal_settings_pass_also_where_a_rate_is_a_tensor_and_stages_differ() -> None:
    model = nn.Linear(2, 2)
    one = of(AdamW(model.parameters(), lr=0.5), model)
    rate = torch.tensor(0.5)
    other = of(AdamW(model.parameters(), lr=rate, foreach=False), model)
    stage = {"elsewhere": {"class": "SGD", "lr": 3.0}}
    check_alike([one, other, stage, {}])


Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda own: AdamW(own, lr=0.25), "another lr: 0.5 on rank 0, 0.25 on 2"),
        (lambda own: AdamW(own, lr=0.5, betas=(0.9, 0.95)),
         "another betas: (0.9, 0.999) on rank 0, (0.9, 0.95) on 2"),
        (lambda own: AdamW(own, lr=0.5, weight_decay=0.0),
         "another weight_decay: 0.01 on rank 0, 0.0 on 2"),
        (lambda own: SGD(own, lr=0.5), "another class: AdamW on rank 0, SGD on 2"),
    ],
)  # fmt: skip
def test_other_settings_are_refused_with_both_values(make: Make, said: str) -> None:
    model = nn.Linear(2, 2)
    one, other = of(AdamW(model.parameters(), lr=0.5), model), of(make(model.parameters()), model)
    with pytest.raises(SpecError) as caught:
        check_alike([one, one, other])
    assert caught.value.field == "optimizer"
    assert f"the ranks step weight with {said}" in caught.value.problem


torch.set_num_threads(1)


@pytest.fixture
def made() -> Iterator[tuple[nn.Linear, SGD, Learner]]:
    """A model, its optimizer and an open learner that is alone."""
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Learner(model) as learner:
        yield model, optimizer, learner


def test_each_step_of_the_optimizer_is_one_step_of_the_learner(
    made: tuple[nn.Linear, SGD, Learner],
) -> None:
    model, optimizer, learner = made
    asked: list[str] = []

    def tokens() -> int:
        asked.append("tokens")
        return 4

    def loss() -> float:
        asked.append("loss")
        return 2.0

    learner.follow(optimizer, tokens=tokens, loss=loss)
    for _ in range(3):
        learn(model, optimizer)
    assert (learner.own_steps, learner.cursor, learner.tick) == (3, 3, 3)
    assert asked == ["tokens", "loss"] * 3
    assert (learner._counts.tokens, learner._counts.loss) == (12, 2.0)


def test_a_data_state_is_followed_too(made: tuple[nn.Linear, SGD, Learner]) -> None:
    model, optimizer, learner = made
    asked: list[int] = []

    def state() -> bytes:
        asked.append(learner.cursor)
        return b"here"

    learner.follow(optimizer, tokens=4, state=state)
    for _ in range(3):
        learn(model, optimizer)
    assert asked == [1]  # to see that it is right; alone, nothing is captured and nothing kept
    assert learner.cursor == 3


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_grad_scaler_skips_count_for_nothing(fused: bool) -> None:
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.1, fused=fused)
    scaler = GradScaler("cpu", init_scale=2.0)
    with Learner(model) as learner:
        learner.follow(optimizer, tokens=4)
        for finite in (True, False, True, False, False):
            before = model.weight.detach().clone()
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            if not finite:
                assert model.weight.grad is not None
                model.weight.grad[0, 0] = torch.inf
            steps = learner.own_steps
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert (learner.own_steps - steps, torch.equal(before, model.weight)) == (
                int(finite),
                not finite,
            )
    assert learner.own_steps == 2


def test_muon_and_adamw_together_are_one_step_by_the_last_of_them() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    matrices = [each for each in model.parameters() if each.ndim == 2]
    vectors = [each for each in model.parameters() if each.ndim == 1]
    muon, adamw = Muon(matrices, lr=1e-3), AdamW(vectors, lr=1e-3)
    with Learner(model, [muon, adamw]) as learner:
        learner.follow(adamw, tokens=4)
        learner.schedule(lambda progress: 1 - progress)
        for _ in range(5):
            model(torch.ones(2, 3)).sum().backward()
            muon.step()  # type: ignore[no-untyped-call]
            adamw.step()
        assert learner.own_steps == 5
        rates = [group["lr"] for each in (muon, adamw) for group in each.param_groups]
        assert rates == pytest.approx([0.95e-3, 0.95e-3])
        with pytest.raises(SpecError, match=r"follow: an optimizer is followed already"):
            learner.follow(muon, tokens=4)


def test_accelerates_optimizer_is_followed_through_its_wrapper() -> None:
    model = tiny_model()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    with Learner(model, optimizer) as learner:
        learner.follow(optimizer, tokens=4)
        for _ in range(6):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 3)).sum())
                optimizer.step()
                optimizer.zero_grad()
        assert learner.own_steps == 3


def test_a_trainer_that_steps_on_after_the_end_or_after_closing_is_not_disturbed(
    made: tuple[nn.Linear, SGD, Learner],
) -> None:
    model, optimizer, learner = made
    learner.follow(optimizer, tokens=4)
    for _ in range(105):
        learn(model, optimizer)
    assert (learner.finished, learner.own_steps) == (True, 100)
    learner.close()
    learn(model, optimizer)
    assert learner.own_steps == 100


def test_what_is_no_torch_optimizer_is_refused_with_what_to_do_instead() -> None:
    class Sharded:
        """Such as DeepSpeed's engine."""

    with pytest.raises(SpecError, match=r"Sharded is no torch.optim.Optimizer; .*on_adopt"):
        Learner(tiny_model(), Sharded()).open()  # type: ignore[arg-type]


def test_an_optimizer_that_steps_only_copies_needs_on_adopt() -> None:
    model = tiny_model()
    copies = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
    optimizer = SGD(copies, lr=0.1)
    with pytest.raises(SpecError, match=r"steps none of the model's parameters; .*on_adopt\(fn\)"):
        Learner(model, optimizer).open()
    with pytest.raises(SpecError, match="steps none of the model's"):
        Learner(model, [SGD(model.parameters(), lr=0.1), optimizer]).open()
    learner = Learner(model, optimizer)
    learner.on_adopt(print)
    with learner:
        learner.step(tokens=1)


def test_a_script_that_follows_and_steps_would_count_twice_and_is_refused(
    made: tuple[nn.Linear, SGD, Learner],
) -> None:
    model, optimizer, learner = made
    learner.follow(optimizer, tokens=4)
    learn(model, optimizer)
    with pytest.raises(SpecError, match=r"step: the learner follows an optimizer.*leave out"):
        learner.step(tokens=4)
    assert learner.own_steps == 1
