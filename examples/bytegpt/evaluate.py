"""`python -m bytegpt.evaluate`: the held-out loss of an exported byte model; also `atoll eval`.

It reads what a finished job has exported, safetensors in the layout of Hugging Face, and prints one
line of JSON: {"loss": nats per byte, "bytes": how many were predicted}. What it measures, and how
far it is, goes to standard error. The held-out text is the same that no learner has trained on
(data.py). `heldout_loss` serves the evaluator of a running job
too.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A mean cross entropy in nats per byte, and the number of bytes that were predicted."""

    loss: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions(Size):
    """Held-out loss of an exported byte model, as JSON: {"loss": nats per byte, "bytes": n}."""

    export: str = option("export", "folder of the exported model, or one .safetensors file")
    data: tuple[str, ...] = option((), "files, folders or globs; Python's library without any")
    heldout_bytes: int = option(1 << 20, "at most so many bytes, evenly spread")


@torch.no_grad()
def heldout_loss(
    model: ByteGPT, windows: Tensor, told: Callable[[float], None] = lambda share: None
) -> Measured:
    """The mean loss on windows, int64 [k, context + 1]; the model stays in the mode it was in.

    `told` is called after each batch with the share of the windows that is done, up to 1.0.
    """
    was_training = model.training
    model.eval()
    device = model.embedding.weight.device
    total, done = 0.0, 0
    for batch in torch.split(windows, BATCH):
        total += model.loss(batch.to(device), reduction="sum").item()
        done += len(batch)
        told(done / len(windows))
    model.train(was_training)
    byte_count = windows.shape[0] * (windows.shape[1] - 1)
    return Measured(loss=total / byte_count, bytes=byte_count)


def teller(stream: TextIO) -> Callable[[float], None]:
    """Writes which share is done: one line of percents on a terminal, else a line for a tenth."""
    terminal = stream.isatty()
    parts, last = 100 if terminal else 10, 0

    def tell(share: float) -> None:
        nonlocal last
        part = int(share * parts)
        if part > last:
            last = part
            text = f"{part * 100 // parts:3d}% is measured"
            end = "" if terminal and part < parts else "\n"
            stream.write(f"\r{text}{end}" if terminal else f"{text}{end}")
            stream.flush()

    return tell


def load(model: torch.nn.Module, export: Path) -> None:
    """Fill a model from an export in Hugging Face layout, or from one safetensors file.

    Raises SpecError that names the file or the tensor that does not fit.
    """
    tensors: dict[str, Tensor] = {}
    for path in files_of(export):
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise unreadable(path, error) from error
    wanted = model.state_dict()
    if not wanted.keys() & tensors.keys():
        names = sorted(tensors)
        found = f"{names[0]} and {len(names) - 1} other tensors" if names else "no tensor"
        problem = f"{export} holds another model than the built-in byte-level GPT: {found}"
        raise SpecError("export", problem, "measure it with a script that builds its own model")
    different = _difference(wanted, tensors)
    if different:
        problem = f"{export} holds a byte-level GPT of another size: {different}"
        remedy = "give --layers, --width, --heads and --context as it was trained"
        raise SpecError("export", problem, remedy)
    model.load_state_dict(tensors)


def _difference(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """The first tensor that a model and an export do not have alike; empty: there is none."""
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            return f"it has no {name}"
        if name not in wanted:
            return f"it has {name} besides"
        if wanted[name].shape != found[name].shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(wanted[name].shape)}"
            return f"{name} is {shapes}"
    return ""


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
    """`python -m bytegpt.evaluate --export FOLDER`; returns the exit code."""
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
        byte_count = windows.shape[0] * (windows.shape[1] - 1)
        sys.stderr.write(
            f"{options.export}: the loss on {byte_count:,} held-out bytes of {source}\n"
        )
        measured = heldout_loss(model, windows, teller(sys.stderr))
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_USAGE
    sys.stdout.write(json.dumps({"loss": measured.loss, "bytes": measured.bytes}) + "\n")
    return os.EX_OK


if __name__ == "__main__":
    raise SystemExit(main())
