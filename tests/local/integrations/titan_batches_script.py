"""titan_llama.py, with a note of every batch of a rank in NOTES/RANK.jsonl.

KILL_STEP: the process ends by SIGKILL when it is about to train this step.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import titan_cpu  # noqa: F401  (before torchtitan)
import titan_llama
from titan_trainer import LearnerTrainer
from torchtitan.train import main


class Noting(LearnerTrainer):
    """Notes of each batch which step trains it, and of which bytes it is."""

    @dataclass(kw_only=True, slots=True)
    class Config(LearnerTrainer.Config):
        """The same."""

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        path = Path(os.environ["NOTES"]) / f"{os.environ['RANK']}.jsonl"
        for inputs, labels in super().batch_generator(data_iterable):
            with path.open("a") as file:
                file.write(json.dumps({"step": self.step, "batch": labels.tolist()}) + "\n")
            if self.step == int(os.environ.get("KILL_STEP", "0")):
                os.kill(os.getpid(), signal.SIGKILL)
            yield inputs, labels


def noting() -> Noting.Config:
    config = titan_llama.debugmodel()
    return Noting.Config(**{each.name: getattr(config, each.name) for each in fields(config)})


if __name__ == "__main__":
    sys.argv[1:1] = ["--module", "titan_batches_script", "--config", "noting"]
    main()
