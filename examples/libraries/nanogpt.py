"""A loop in the form of nanoGPT's train.py, with a GPT that reads bytes.

python nanogpt.py                                      # alone
atoll run examples/libraries/nanogpt.py --learners 3 --steps 200
"""

import math
import os
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import atoll

# The schedule is as long as the training: the same number as in --steps.
max_iters, warmup_iters, learning_rate, min_lr = 200, 20, 3e-3, 3e-4
gradient_accumulation_steps, batch_size, block_size = 2, 8, 32
eval_interval, eval_iters, log_interval = 50, 5, 10
n_layer, n_head, n_embd = 2, 2, 32
dtype = "bfloat16" if os.environ.get("BF16") else "float32"
seed_offset = 0


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, n_embd] -> the same."""
        heads = (*x.shape[:2], n_head, n_embd // n_head)
        q, k, v = (
            each.view(heads).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Bytes int64 [batch, time] -> logits [batch, time, 256] and the loss in nats per byte."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, 256, bias=False)
        self.wte.weight = self.lm_head.weight  # tied

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Every position predicts the byte after it."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_data() -> tuple[Tensor, Tensor]:
    """Python's own sources as bytes, to train on and held out."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:60]
    content = bytearray().join(file.read_bytes() for file in files)
    data = torch.frombuffer(content, dtype=torch.uint8)
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
    """Random pieces, and the same one byte later."""
    ix = torch.randint(len(data) - block_size - 1, (batch_size, 1)) + torch.arange(block_size)
    return data[ix].long(), data[ix + 1].long()


def get_lr(it: int) -> float:
    """A warm-up and a cosine."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (max_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model: GPT, data: Tensor) -> float:
    """The mean of a few held-out batches."""
    model.eval()
    losses = torch.tensor([model(*get_batch(data))[1] for _ in range(eval_iters)])
    model.train()
    return float(losses.mean())


def main() -> None:
    """Train."""
    train_data, val_data = read_data()
    torch.manual_seed(1337 + seed_offset)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    ctx = torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    tokens_per_iter = gradient_accumulation_steps * batch_size * block_size
    with atoll.Learner(model, optimizer) as learner:
        iter_num, local_iter_num = 0, 0
        torch.manual_seed(1337 + 1_000_003 * atoll.job().index + learner.cursor)
        X, Y = get_batch(train_data)
        while True:
            lr = get_lr(iter_num)
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
            if local_iter_num % eval_interval == 0:
                print(f"step {iter_num}: val loss {estimate_loss(model, val_data):.4f}")
            for _ in range(gradient_accumulation_steps):
                with ctx:
                    _, loss = model(X, Y)
                    loss = loss / gradient_accumulation_steps
                X, Y = get_batch(train_data)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            loss = loss * gradient_accumulation_steps
            if local_iter_num % log_interval == 0:
                print(f"iter {iter_num}: loss {loss.item():.4f}")
            iter_num = learner.step(tokens=tokens_per_iter, loss=loss).tick
            local_iter_num += 1
            if learner.finished:
                break


if __name__ == "__main__":
    main()
