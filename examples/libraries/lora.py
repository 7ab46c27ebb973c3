"""An adapter with peft, as its quick tour trains one: a frozen model and low-rank matrices.

    python lora.py                                         # alone
    atoll run examples/libraries/lora.py --learners 3 --steps 200

Only the adapter travels between the learners. The frozen model must be the same for all of them:
here it is random values of a fixed seed, in practice it is read from the same checkpoint.
"""

import argparse
import os
from pathlib import Path

from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from atoll_integrations.transformers import AtollCallback


def base_model() -> GPT2LMHeadModel:
    """The model that stays as it is."""
    set_seed(42)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def pieces() -> list[dict[str, list[int]]]:
    """Python's own sources as bytes, in pieces of equal length."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:20]
    content = b"".join(file.read_bytes() for file in files)
    found = [list(content[start : start + 32]) for start in range(0, len(content) - 32, 32)]
    return [{"input_ids": piece, "labels": piece} for piece in found]


def main() -> None:
    """Train the adapter and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", default="lora_output")
    parser.add_argument("--max-steps", type=int, default=200)
    arguments = parser.parse_args()
    model = base_model()
    peft_config = LoraConfig(
        task_type=TaskType.CAUSAL_LM, inference_mode=False, r=4, lora_alpha=16, lora_dropout=0.1,
        target_modules=["c_attn"], fan_in_fan_out=True,
    )  # fmt: skip
    model = get_peft_model(model, peft_config)
    model.print_trainable_parameters()

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.output_dir,
            max_steps=arguments.max_steps,
            learning_rate=1e-2,
            per_device_train_batch_size=16,
            save_strategy="no",
            logging_steps=20,
            report_to="none",
        ),
        train_dataset=pieces(),
        data_collator=default_data_collator,
        callbacks=[AtollCallback()],
    )
    trainer.train()
    model.save_pretrained(arguments.output_dir)


if __name__ == "__main__":
    main()
