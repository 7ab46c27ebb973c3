"""A tensor in 8 bits, as those of torchao and other libraries: it seems to be float32."""

from typing import Any

import torch


class Quantised(torch.Tensor):
    """Made of int8 values and a scale; no operation is implemented but `detach`."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> "Quantised":
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.whole, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["whole", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, *others: Any) -> "Quantised":
        return Quantised(parts["whole"], parts["scale"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].whole, args[0].scale)
        raise NotImplementedError(f"{func} is not implemented for a quantised tensor")
