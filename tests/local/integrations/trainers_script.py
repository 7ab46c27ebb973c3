"""An example with TRL or diffusers that notes its batches.

    trainers_script.py sft|diffusion NOTES [ARGUMENT]...

Each rank adds a number for each batch to a file in the folder NOTES. The noise of a batch of images
is a function of them alone, whichever rank has them.
"""

import os
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NOTES = Path(sys.argv[2], os.environ.get("RANK", "0"))
draw = torch.randn_like


def note(batch: Tensor) -> int:
    number = zlib.crc32(batch.contiguous().numpy().tobytes())
    with NOTES.open("a") as file:
        file.write(f"{number}\n")
    return number


def noise_of(images: Tensor) -> Tensor:
    torch.manual_seed(note(images))
    return draw(images)


def main() -> None:
    example = sys.argv[1]
    del sys.argv[1:3]
    if example == "diffusion":
        import diffusion  # noqa: PLC0415

        torch.randn_like = noise_of  # type: ignore[assignment]
        diffusion.main()
        return
    import sft  # noqa: PLC0415
    from trl import SFTTrainer  # noqa: PLC0415

    step = SFTTrainer.training_step

    def noted_step(trainer: Any, model: Any, inputs: Any, *more: Any) -> Any:
        note(inputs["input_ids"])
        return step(trainer, model, inputs, *more)

    SFTTrainer.training_step = noted_step
    sft.main()


if __name__ == "__main__":
    main()
