"""Tiny models of the libraries that people use, made from a seed, for tests of the export."""

# ruff: noqa: PLC0415 - each learner imports the library of its own model only

import os
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 64
MODELS = ("gpt2", "mixtral", "batchnorm", "frozen", "bf16", "lora", "wrapped")


def make(kind: str, seed: int) -> nn.Module:
    """One model, the same for the same seed."""
    torch.manual_seed(seed)
    return MAKERS[kind]()


def loss_of(model: nn.Module, cursor: int) -> Tensor:
    """The loss of a batch, which is a function of the cursor alone."""
    generator = torch.Generator().manual_seed(cursor)
    if isinstance(model, nn.Sequential | Backbone | Wrapped):
        images = torch.randn(8, 3, 8, 8, generator=generator)
        labels = torch.randint(0, 4, (8,), generator=generator)
        return nn.functional.cross_entropy(model(images), labels)
    tokens = torch.randint(0, VOCABULARY, (4, 12), generator=generator)
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def gpt2() -> nn.Module:
    """With a head that is tied to the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def mixtral() -> nn.Module:
    """A mixture of experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=4,
        num_experts_per_tok=2, max_position_embeddings=32,
    )  # fmt: skip
    model: nn.Module = MixtralForCausalLM(config)
    return model


def bf16() -> nn.Module:
    """In 16 bits, with a mask of -inf and a counter beside the values."""
    model: Any = gpt2().to(torch.bfloat16)
    model.register_buffer("mask", torch.triu(torch.full((4, 4), -torch.inf), 1))
    found: nn.Module = model
    return found


def lora() -> nn.Module:
    """An adapter on a frozen model."""
    from peft import LoraConfig, get_peft_model

    base: Any = gpt2()
    config = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    torch.manual_seed(1)
    model: nn.Module = get_peft_model(base, config)
    return model


def batchnorm() -> nn.Module:
    """A small CNN, whose counters of batches do not travel."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


class Backbone(nn.Module):
    """A frozen backbone, with a head that is trained and stands under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3).requires_grad_(False)
        self.head = nn.Linear(8, 4)
        self.last = self.head
        self.register_buffer("spectrum", torch.fft.fft(torch.arange(4.0)))
        self.register_buffer("initialised", torch.zeros((), dtype=torch.bool))

    def forward(self, images: Tensor) -> Tensor:
        self.initialised: Tensor
        self.initialised.fill_(True)
        found: Tensor = self.last(self.backbone(images).mean((2, 3)))
        return found


class Wrapped(nn.Module):
    """Activation checkpointing around a part of it."""

    def __init__(self) -> None:
        super().__init__()
        from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

        self.net = checkpoint_wrapper.checkpoint_wrapper(nn.Linear(3, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(images.mean((2, 3))))
        return found


MAKERS = {
    "gpt2": gpt2,
    "mixtral": mixtral,
    "bf16": bf16,
    "lora": lora,
    "batchnorm": batchnorm,
    "frozen": Backbone,
    "wrapped": Wrapped,
}


def main() -> None:
    """One learner: trains, and saves its state dict, and of the first slot as its library does."""
    import atoll

    kind, folder = sys.argv[1:]
    job = atoll.job()
    model: Any = make(kind, job.seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with atoll.Learner(model, optimizer) as learner:
        while not learner.finished:
            loss = loss_of(model, learner.cursor)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            learner.step(tokens=48, loss=loss)
            time.sleep(float(os.environ.get("PAUSE", "0")))  # a training that takes its time
    torch.save(model.state_dict(), f"{folder}/{job.slot}.pt")
    if job.first and hasattr(model, "save_pretrained"):
        model.save_pretrained(f"{folder}/saved")


if __name__ == "__main__":
    main()
