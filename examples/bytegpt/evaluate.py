"""`python -m bytegpt.evaluate`: the held-out loss of an exported byte model.

It reads safetensors in the layout of Hugging Face, and prints one line of JSON: {"loss": nats per
byte, "bytes": how many were predicted}.
"""

import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atoll import SpecError
from bytegpt import data
from bytegpt.model import ByteGPT, Size
from bytegpt.options import option, parse

INDEX = "model.safetensors.index.json"
BATCH = 64
CHARACTERS_MAX = 200  # of what torch says of a model of another size


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions(Size):
    """Held-out loss of an exported byte model, as JSON: {"loss": nats per byte, "bytes": n}."""

    export: str = option("export", "folder of the exported model, or one .safetensors file")
    data: tuple[str, ...] = option((), "files, folders or globs; Python's library without any")
    heldout_bytes: int = option(1 << 20, "at most so many bytes, evenly spread")


@torch.no_grad()
def heldout_loss(model: ByteGPT, windows: Tensor) -> float:
    """The mean cross entropy, in nats per byte, on windows: int64 [k, context + 1]."""
    was_training = model.training
    model.eval()
    device = model.embedding.weight.device
    total = 0.0
    for batch in torch.split(windows, BATCH):
        total += model.loss(batch.to(device), reduction="sum").item()
    model.train(was_training)
    return total / windows[:, 1:].numel()


def load(model: torch.nn.Module, export: Path) -> None:
    """Fill a model from an export in Hugging Face layout, or one safetensors file; SpecError."""
    tensors: dict[str, Tensor] = {}
    for path in files_of(export):
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise unreadable(path, error) from error
    if not model.state_dict().keys() & tensors.keys():
        names = sorted(tensors)
        found = f"{names[0]} and {len(names) - 1} other tensors" if names else "no tensor"
        problem = f"{export} holds another model than the built-in byte-level GPT: {found}"
        raise SpecError("export", problem, "measure it with a script that builds its own model")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        different = textwrap.shorten(str(error).splitlines()[1], CHARACTERS_MAX)
        problem = f"{export} holds a byte-level GPT of another size: {different}"
        remedy = "give --layers, --width, --heads and --context as it was trained"
        raise SpecError("export", problem, remedy) from error


def files_of(export: Path) -> list[Path]:
    """The safetensors files that an export's index names; SpecError if there is no index."""
    if export.is_file():
        return [export]
    index = export / INDEX
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(index, error) from error
    return [export / name for name in sorted(names)]


def unreadable(path: Path, error: Exception) -> SpecError:
    """The error for a file that is missing or is not part of an export."""
    return SpecError(
        "export", f"{path} cannot be read: {error}", "give the folder of a finished job's export"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        options = parse(EvaluateOptions, given, "python -m bytegpt.evaluate")
        model = ByteGPT(options, seed=0)
        load(model, Path(options.export))
        windows = data.windows(
            data.read(options.data).heldout(),
            context=options.context,
            byte_count_max=options.heldout_bytes,
        )
        source = ", ".join(options.data) or "Python's library"
        sys.stderr.write(f"{options.export}: the loss on held-out bytes of {source}\n")
        loss = heldout_loss(model, windows)
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_USAGE
    sys.stdout.write(json.dumps({"loss": loss, "bytes": windows[:, 1:].numel()}) + "\n")
    return os.EX_OK


if __name__ == "__main__":
    raise SystemExit(main())
