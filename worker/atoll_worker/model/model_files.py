"""The small files of an export: config.json, a tokenizer, an adapter's configuration.

None of transformers, diffusers and PEFT is imported: a model of theirs says by its attributes what
it is.
"""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import structlog
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.companion import FILE_BYTES_MAX, OWN_SUFFIXES, check_file

CONFIG = "config.json"
NATIVE_PREFIX = "base_model.model."  # of PEFT's keys, which transformers' own adapters lack

log = structlog.get_logger()


def adapter_of(model: nn.Module) -> str:
    """The name of the adapter that is trained, of PEFT's or transformers' own; empty for none."""
    if not isinstance(getattr(model, "peft_config", None), dict):
        return ""
    if getattr(model, "_hf_peft_config_loaded", False):
        names: list[str] = model.active_adapters()  # type: ignore[operator]
        return names[0]
    active = getattr(model, "active_adapter", "")
    return active if isinstance(active, str) else ""


def adapter_state(model: nn.Module, adapter: str) -> dict[str, Tensor]:
    """An adapter's tensors under the keys that PEFT reads; in the memory of the model's own."""
    from peft import get_peft_model_state_dict  # noqa: PLC0415 - a model of PEFT's is here

    found: dict[str, Tensor] = get_peft_model_state_dict(
        model, adapter_name=adapter, save_embedding_layers=False
    )
    if getattr(model, "_hf_peft_config_loaded", False):
        return {f"{NATIVE_PREFIX}{key}": value for key, value in found.items()}
    return found


def model_files(model: nn.Module, adapter: str, extra: Sequence[object]) -> dict[str, bytes]:
    """The files by their path in the export. Raises SpecError for what cannot be one."""
    with tempfile.TemporaryDirectory(prefix="atoll-files-") as name:
        folder = Path(name)
        if adapter:
            _save_adapter_config(model, adapter, folder)
        else:
            _save_config(model, folder)
        for each in extra:
            _save(each, folder)
        found = dict(_read(folder))
    size = sum(len(content) for content in found.values())
    if size > FILE_BYTES_MAX:
        remedy = f"give at most {FILE_BYTES_MAX >> 20} MiB of small files"
        raise SpecError("export_files", f"have {size >> 20} MiB", remedy)
    return found


def _save_adapter_config(model: nn.Module, adapter: str, folder: Path) -> None:
    """As PEFT's own save_pretrained: for use, not for training."""
    config: Any = copy.deepcopy(model.peft_config[adapter])  # type: ignore[index]
    config.inference_mode = True
    if config.base_model_name_or_path is None:
        base = getattr(model, "base_model", model)
        inner = getattr(base, "model", base)
        config.base_model_name_or_path = getattr(inner, "name_or_path", "") or None
    config.save_pretrained(str(folder))


def _save_config(model: nn.Module, folder: Path) -> None:
    """As their own save_pretrained, if it is a model of transformers or of diffusers."""
    config: Any = getattr(model, "config", None)
    of_diffusers = hasattr(model, "register_to_config")
    if not of_diffusers and not hasattr(config, "to_json_string"):
        return
    try:
        if of_diffusers:
            model.save_config(str(folder))  # type: ignore[operator]
            return
        named = copy.deepcopy(config)
        named.architectures = [type(model).__name__.removeprefix("FSDP")]
        dtype = getattr(model, "dtype", None)
        if dtype is not None:
            attribute = "dtype" if hasattr(named, "dtype") else "torch_dtype"
            setattr(named, attribute, str(dtype).removeprefix("torch."))
        (folder / CONFIG).write_text(named.to_json_string(), encoding="utf-8")
        generation: Any = getattr(model, "generation_config", None)
        if generation is not None and hasattr(generation, "to_json_string"):
            text = generation.to_json_string()
            (folder / "generation_config.json").write_text(text, encoding="utf-8")
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        log.warning("the export will have no config.json", reason=repr(error))


def _save(each: object, folder: Path) -> None:
    if isinstance(each, str | Path):
        path = Path(each)
        check_file(path.name)  # `_read` would leave out what has a name of weights
        try:
            (folder / path.name).write_bytes(path.read_bytes())
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror}"
            raise SpecError("export_files", problem, "give paths of readable files") from error
    elif save := getattr(each, "save_pretrained", None):  # tokenizers, processors
        save(str(folder))
    else:
        remedy = "give tokenizers, other objects with save_pretrained, or paths of files"
        raise SpecError("export_files", f"has a {type(each).__name__}", remedy)


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = path.relative_to(folder).as_posix()
        if not name.endswith(OWN_SUFFIXES):
            check_file(name)
            yield name, path.read_bytes()
