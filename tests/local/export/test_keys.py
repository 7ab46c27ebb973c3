"""The export has the keys and files that the libraries' own save_pretrained writes.

Not so a mixture of experts, whose save_pretrained splits what the model holds as one tensor: the
export has the model's own keys, and from_pretrained reads both (test_loads.py).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import IA3Config, LoraConfig, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from atoll_protos.job.companion import ExportTable
from atoll_worker.model.companion import companion_of
from atoll_worker.model.described import describe
from atoll_worker.model.parameters import travelling
from local.export.models import gpt2

LORA = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}


def lora() -> Any:
    task = LoraConfig(task_type="CAUSAL_LM", modules_to_save=["ln_f"], **LORA)
    return get_peft_model(gpt2(), task)


def lora_of_the_embedding() -> Any:
    changes = {**LORA, "target_modules": ["c_attn", "wte"]}
    return get_peft_model(gpt2(), LoraConfig(task_type="CAUSAL_LM", **changes))


def ia3() -> Any:
    task = IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["c_attn", "mlp.c_proj"],
        feedforward_modules=["mlp.c_proj"],
        fan_in_fan_out=True,
    )
    return get_peft_model(gpt2(), task)


def prefix_tuning() -> Any:
    return get_peft_model(gpt2(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


def transformers_own_adapter() -> Any:
    model: Any = gpt2()
    model.add_adapter(LoraConfig(**LORA))
    return model


def bert() -> Any:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(intermediate_size=16, vocab_size=32, **small))


def t5() -> Any:
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=32, **small))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # the libraries' own
@pytest.mark.parametrize(
    ("make", "stem"),
    [
        *((make, "model") for make in (gpt2, bert, t5)),
        *((make, "adapter_model") for make in (lora, lora_of_the_embedding, ia3, prefix_tuning)),
        (transformers_own_adapter, "adapter_model"),
    ],
)
def test_keys_and_files_are_those_of_save_pretrained(
    make: Callable[[], Any], stem: str, tmp_path: Path
) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    own = load_file(tmp_path / f"{stem}.safetensors").keys()
    companion = companion_of([model], travelling(model))
    found = describe([model], companion.places, companion.adapters)
    table: ExportTable = found.table
    assert table.stem == stem
    assert table.absent == {}
    tied = {key for key, name in table.keys.items() if key != name and name in table.keys}
    assert {*table.keys, *found.kept} - tied == set(own) - tied
    assert bool(tied) == (make in (gpt2, t5)), "only a loader of its own does without tied keys"
    written = {path.name for path in tmp_path.glob("*.json")}
    beside = {"generation_config.json"} if make is transformers_own_adapter else set[str]()
    assert companion.files.keys() == written - beside
    trained = {place.spec.name for place in companion.places} - set(table.keys.values())
    assert make is prefix_tuning or not trained, "a trained tensor that the library does not load"
