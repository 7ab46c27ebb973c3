"""A byte-level GPT for the examples: rotary positions, pre-norm, tied embedding, any size.

The initial value is a function of (size, seed) alone, with the same bits on every processor, so
that any learner can seed the shared parameters. The output of each block starts at zero.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from atoll import SpecError
from bytegpt.options import option

BYTES = 256
ROTARY_BASE = 10_000.0
EMBEDDING_GAIN = 0.5  # 1.68 nats per byte after 500 steps of 16 x 96; 1.0 gives 1.71, 0.1 1.76


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a ByteGPT is; the default has 427 thousand parameters."""

    layers: int = option(2, "blocks of the model")
    heads: int = option(4, "attention heads in each")
    width: int = option(128, "values that stand for one byte")
    context: int = option(96, "bytes that a prediction may look back on")

    def __post_init__(self) -> None:
        for field in ("layers", "heads", "width", "context"):
            if getattr(self, field) < 1:
                raise SpecError(field, f"is {getattr(self, field)}", "give 1 or more")
        if self.width % (2 * self.heads):
            problem = f"{self.width} does not divide into {self.heads} heads of even size"
            raise SpecError("width", problem, f"give a multiple of {2 * self.heads}")


class Block(nn.Module):
    """Attention, then a perceptron of four times the width, each behind a LayerNorm (pre-norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.perceptron_norm = nn.LayerNorm(width, bias=False)
        self.perceptron_in = nn.Linear(width, 4 * width, bias=False)
        self.perceptron_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, stream: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Stream [batch, length, width] -> the same; cosine, sine: [length, head size / 2]."""
        batch, length, width = stream.shape
        joint: Tensor = self.attention_in(self.attention_norm(stream))
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in joint.chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cosine, sine), rotate(key, cosine, sine), value, is_causal=True
        )
        stream = stream + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = functional.gelu(
            self.perceptron_in(self.perceptron_norm(stream)), approximate="tanh"
        )
        return stream + self.perceptron_out(hidden)  # type: ignore[no-any-return]


class ByteGPT(nn.Module):
    """Next-byte logits; its initial value is a function of `size` and `seed` alone."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, size: Size, *, seed: int) -> None:
        super().__init__()
        self.size = size
        with torch.random.fork_rng(devices=[]):  # the caller's generator is left as it was
            self.embedding = nn.Embedding(BYTES, size.width)
            self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        half = size.width // size.heads // 2
        frequency = ROTARY_BASE ** (-torch.arange(half) / half)
        angle = torch.arange(size.context)[:, None] * frequency
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)
        initialise(self, seed)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, length <= context], int64 -> logits [batch, length, 256]."""
        length = tokens.shape[1]
        cosine, sine = self.cosine[:length], self.sine[:length]
        stream: Tensor = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream, cosine, sine)
        return functional.linear(self.norm(stream), self.embedding.weight)

    def loss(self, windows: Tensor, *, reduction: str = "mean") -> Tensor:
        """Windows [batch, length + 1], int64 -> cross entropy in nats per byte (or their sum)."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction=reduction
        )


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864): rotate pairs of [..., length, head size] by angle."""
    left, right = heads.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Draw matrices uniformly with standard deviation 1/sqrt(columns); outputs of blocks are zero.

    Unlike those of a normal draw, the bits of a uniform one are the same on every processor.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim <= 1:
            continue
        if name.endswith(("attention_out.weight", "perceptron_out.weight")):
            parameter.zero_()
        else:
            deviation = 1 / math.sqrt(parameter.shape[1])
            if name.endswith("embedding.weight"):
                deviation *= EMBEDDING_GAIN
            draw = torch.rand(parameter.shape, generator=generator)
            parameter.copy_((2 * draw - 1) * math.sqrt(3) * deviation)
