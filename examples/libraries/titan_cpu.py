"""Lets torchtitan, which knows GPUs alone, train on CPUs: import it before torchtitan."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torch.nn.attention.flex_attention import create_mask


def attention(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, **given: Any) -> Any:
    """Attend as flex_attention, which has no gradients on CPUs: [batch, heads, length, width]."""
    lengths = q.shape[-2], k.shape[-2]
    mask = create_mask(block_mask.mask_mod, q.shape[0], 1, *lengths, device="cpu")
    scale, grouped = given["scale"], given["enable_gqa"]
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped
    ), None


def uncompiled(function: Any = None, **_: Any) -> Any:
    """Stand in for torch.compile, which needs a C++ compiler for CPUs."""
    return function or uncompiled


fsdp: Any = FSDPModule
sum_and_divide = fsdp.set_gradient_divide_factor


def divide(module: Any, factor: float) -> None:
    """Divide gradients after their sum, since gloo cannot do both at once."""
    sum_and_divide(module, factor)
    module.set_force_sum_reduction_for_comms(True)


if not torch.accelerator.is_available():
    found: Any = torch
    found.compile = uncompiled
    found._utils._get_available_device_type = lambda: "cpu"
    found.cpu.get_device_name = lambda *_: "CPU"
    found.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1)
    found.cpu.memory_stats = lambda *_: {}
    found.cpu.reset_peak_memory_stats = found.cpu.empty_cache = lambda: None

    from torchtitan.distributed import utils
    from torchtitan.models.common.attention import FlexAttention

    FlexAttention._compiled_flex_attn = staticmethod(attention)
    fsdp.set_gradient_divide_factor = divide
    utils.set_pg_timeouts = lambda **_: None  # those of NCCL
