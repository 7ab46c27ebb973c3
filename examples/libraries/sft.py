"""Fine-tuning with TRL's SFTTrainer, packed and with loss on completions; whole, or an adapter.

    python sft.py                                          # alone
    atoll run examples/libraries/sft.py --learners 3 --steps 200
    atoll run examples/libraries/sft.py --steps 200 --processes-per-learner 2 -- --lora

Nothing is downloaded: the prompts are first lines of functions in Python's own library, and the
completions what follows them.
"""

import argparse
import os
import re

import torch
from datasets import Dataset
from peft import LoraConfig
from trainer import make_tokenizer, read_files
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

from atoll_integrations.transformers import AtollCallback

FUNCTION = re.compile(r"^(def .*:)(\n(?: +\S.*\n){1,3})", re.MULTILINE)


def main() -> None:
    """Tokenize, pack, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", default="sft_output")
    parser.add_argument("--lora", action="store_true")
    arguments = parser.parse_args()
    set_seed(42)
    texts = read_files()
    tokenizer = make_tokenizer(texts, size=512)
    functions = [each for text in texts for each in FUNCTION.findall(text)]
    special = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=128, **special,
        )
    )  # fmt: skip
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=arguments.output_dir,
            max_steps=200,
            max_length=128,
            packing=True,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=max(1, 2 // int(os.environ.get("WORLD_SIZE", "1"))),
            learning_rate=5e-3,
            save_strategy="no",
            report_to="none",
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Dataset.from_list([{"prompt": p, "completion": c} for p, c in functions]),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules="all-linear") if arguments.lora else None,
        callbacks=[AtollCallback()],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
