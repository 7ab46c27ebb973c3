"""A causal language model with transformers' Trainer, as its documentation trains one.

    python trainer.py                                      # alone
    atoll run examples/libraries/trainer.py --learners 3 --steps 200
    atoll run examples/libraries/trainer.py --steps 200 --processes-per-learner 2

Nothing is downloaded: the text is Python's own library, the weights are random.
"""

import argparse
import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from atoll_integrations.transformers import AtollCallback


def read_files() -> list[str]:
    """Python's own sources."""
    return [file.read_text() for file in sorted(Path(os.__file__).parent.glob("*.py"))[:60]]


def make_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=special[0], pad_token=special[0]
    )


def group(texts: list[str], tokenizer: PreTrainedTokenizerFast, length: int) -> list[dict]:  # type: ignore[type-arg]
    """All texts one after the other, cut into pieces of equal length."""
    joined = [token for text in texts for token in tokenizer(text)["input_ids"]]
    starts = range(0, len(joined) - length, length)
    return [{"input_ids": joined[start : start + length]} for start in starts]


def main() -> None:
    """Tokenize, train, evaluate, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", default="trainer_output")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--schedule", default="cosine")
    arguments = parser.parse_args()
    set_seed(42)
    texts = read_files()
    tokenizer = make_tokenizer(texts, size=512)
    pieces = group(texts, tokenizer, length=32)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,  # no text is seen twice
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.output_dir,
            max_steps=arguments.max_steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=max(1, 2 // int(os.environ.get("WORLD_SIZE", "1"))),
            learning_rate=5e-3,
            lr_scheduler_type=arguments.schedule,
            warmup_steps=10,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=50,
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=pieces[64:],
        eval_dataset=pieces[:64],
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[AtollCallback()],
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
