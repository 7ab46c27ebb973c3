"""torchtitan trains its debug model (Llama 3, 6 million parameters) with the other learners.

    atoll run titan_llama.py --steps 200 --learners 2 --processes-per-learner 2
    atoll-worker launch --nproc-per-node 2 -- titan_llama.py    # alone; on CPUs if there is no GPU

What follows goes to torchtitan: `--training.seq_len 256 --parallelism.tensor_parallel_degree 2`.
Its own words for the same, in a container whose PYTHONPATH has this folder:

    atoll-worker launch --nproc-per-node 8 -- \
        python -m torchtitan.train --module titan_llama --config debugmodel
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import titan_cpu  # noqa: F401  (before torchtitan)
from datasets import Dataset
from titan_trainer import LearnerTrainer, learner
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.train import main

END = 256  # after the bytes


class Bytes(BaseTokenizer):  # type: ignore[misc]
    """A byte is a token, so that nothing must be downloaded."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        """Nothing to choose."""

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()
        self.eos_id = END

    def encode(self, text: str, add_bos: bool, add_eos: bool) -> list[int]:
        """Text -> tokens."""
        return [*text.encode(), *([END] if add_eos else [])]

    def decode(self, tokens: list[int]) -> str:
        """Tokens -> text."""
        return bytes(each for each in tokens if each < END).decode(errors="replace")

    def get_vocab_size(self) -> int:
        """Fewer than the debug model has."""
        return END + 1


def python_sources(folder: str) -> Dataset:
    """A document for each file."""
    files = sorted(Path(folder).glob("*.py"))[:60]
    return Dataset.from_list([{"text": file.read_text()} for file in files])


def debugmodel() -> LearnerTrainer.Config:
    """llama3_debugmodel of torchtitan, with shorter sequences and other data."""
    DATASETS["python"] = DatasetConfig(
        path=os.path.dirname(os.__file__),
        loader=python_sources,
        sample_processor=lambda document: document["text"],
    )
    config = llama3_debugmodel()
    config.hf_assets_path, config.tokenizer = ".", Bytes.Config()
    config.dataloader.dataset = "python"
    config.training.local_batch_size, config.training.seq_len = 2, 128
    config.lr_scheduler.warmup_steps = 20
    return learner(config)


if __name__ == "__main__":
    sys.argv[1:1] = ["--module", "titan_llama", "--config", "debugmodel"]
    main()
