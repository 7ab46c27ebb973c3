"""Loops, optimizers and kinds of model that people have, each as the learner of a real shard."""

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer, SparseAdam
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import atoll
from local.integrations.numbers_data import continues
from local.one_shard import OneShard, one_shard

pytestmark = pytest.mark.filterwarnings("default")  # the libraries warn of their own parts
STEPS, WIDTH, WORDS, LENGTH = 16, 16, 64, 12


class Words(nn.Module):
    """Words int64 [batch, LENGTH] -> the loss of the next word: embedding, layers, head."""

    def __init__(self, *layers: nn.Module, sparse: bool = False, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        logits = self.head(self.layers(self.embedding(words[:, :-1])))
        return functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())


class Experts(nn.Module):
    """A mixture of experts: a word goes to one of them, so that some have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = chosen == number
            if here.any():
                y[here] = expert(x[here]) * weight[here, None]
        return x + y


def batch(number: int) -> Tensor:
    """A text in which each word is the one before and 3: there is something to learn."""
    generator = torch.Generator().manual_seed(number)
    start = torch.randint(WORDS, (8, 1), generator=generator)
    return (start + 3 * torch.arange(LENGTH)) % WORDS


def plain(model: nn.Module, optimizers: Sequence[Optimizer]) -> Callable[[Tensor], Tensor]:
    def step(words: Tensor) -> Tensor:
        loss: Tensor = model(words)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


def train(
    shard: OneShard,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    step: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """To the end of the job; then the model is the one that was exported, and it has learned."""
    step = step or plain(model, optimizers)
    losses: list[float] = []
    adopted: set[str] = set()
    with atoll.Learner(model, optimizers) as learner:
        while not learner.finished:
            losses.append(float(step(batch(learner.cursor))))
            done = learner.step(tokens=8 * LENGTH, loss=losses[-1])
            adopted.update(done.adopted)
            shard.breathe()
    check(shard, model)
    assert sum(losses[-3:]) / 3 < losses[0]
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    prefix = "_orig_mod."
    assert adopted >= {name.removeprefix(prefix) for name in trained}


def check(shard: OneShard, model: nn.Module) -> None:
    """The export is what travelled, a tied tensor by one name, and every part was merged."""
    exported = load_file(shard.exported())
    bare = getattr(model, "_orig_mod", model)
    for name, tensor in bare.named_parameters():
        assert torch.equal(exported.pop(name), tensor.detach().contiguous()), name
    assert not exported
    assert {line["slice"] for line in shard.commits} == {0, 1}


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    torch.manual_seed(0)
    with one_shard(tmp_path, steps=STEPS) as found:
        yield found


def test_a_gpt2_of_transformers_with_a_tied_head_and_a_fused_adamw_in_bf16(
    shard: OneShard,
) -> None:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    assert model.lm_head.weight is model.transformer.wte.weight
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)

    def step(words: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=words, labels=words).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    train(shard, model, [optimizer], step)


def test_experts_a_sparse_embedding_and_workers_that_load_the_data(shard: OneShard) -> None:
    model = Words(Experts(), sparse=True, tied=False)
    sparse = SparseAdam([model.embedding.weight], lr=1e-2)
    dense = AdamW([each for each in model.parameters() if each is not model.embedding.weight])
    data = TensorDataset(torch.cat([batch(number) for number in range(4000)]))
    loader = DataLoader(data, batch_size=8, num_workers=2)
    step = plain(model, [sparse, dense])
    with atoll.Learner(model, [sparse, dense]) as learner:
        losses = []
        for (words,) in loader:  # the workers are forked from a process with an open learner
            losses.append(step(words))
            learner.step(tokens=words.numel(), loss=losses[-1])
            shard.breathe()
            if learner.finished:
                break
        assert learner.finished
    check(shard, model)
    assert sum(losses[-3:]) / 3 < losses[0]


def test_a_model_that_torch_has_compiled(shard: OneShard) -> None:
    """The default backend needs a C++ compiler; this one traces in the same way and needs none."""
    model: Any = torch.compile(Words(nn.Linear(WIDTH, WIDTH)), backend="aot_eager")
    train(shard, model, [AdamW(model.parameters(), lr=1e-2)])


def test_a_stateful_loader_goes_on_with_the_state_that_the_job_kept(tmp_path: Path) -> None:
    data: Any = TensorDataset(torch.arange(40_000))

    def run(shard: OneShard, *, stops: bool) -> tuple[int, list[tuple[int, ...]]]:
        """What docs/training-scripts.md shows. Where it began, and the batches."""
        model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        loader: Any = StatefulDataLoader(data, batch_size=4, num_workers=2)
        seen: list[tuple[int, ...]] = []
        with atoll.Learner(model, optimizer) as learner:
            begin = learner.cursor
            if learner.data_state is not None:
                loader.load_state_dict(torch.load(BytesIO(learner.data_state), weights_only=True))
            for (numbers,) in loader:
                model(numbers[:, None].float()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append(tuple(numbers.tolist()))
                torch.save(loader.state_dict(), state := BytesIO())
                learner.step(tokens=4, state=state.getvalue())
                shard.breathe()
                if learner.finished or (stops and len(seen) >= STEPS and shard.has_merged()):
                    break
        return begin, seen

    whole = [tuple(range(start, start + 4)) for start in range(0, 40_000, 4)]
    with one_shard(tmp_path, steps=3 * STEPS) as shard:
        _, first = run(shard, stops=True)
        begin, second = run(shard, stops=False)
    assert continues(first, 0, whole)
    assert 0 < begin <= len(first)
    assert continues(second, begin, whole)
