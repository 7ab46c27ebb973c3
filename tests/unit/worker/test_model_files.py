"""The small files beside an exported model."""

import json
from pathlib import Path

import pytest
from torch import nn

from atoll_protos.errors import SpecError
from atoll_worker.model import model_files
from atoll_worker.model.model_files import model_files as files_of


class Config:
    """That of an adapter, as PEFT's behaves."""

    inference_mode = False
    base_model_name_or_path: str | None = None

    def save_pretrained(self, folder: str) -> None:
        """Write what it has now."""
        has = {"inference": self.inference_mode, "base": self.base_model_name_or_path}
        Path(folder, "adapter_config.json").write_text(json.dumps(has))


def test_an_exported_adapter_is_for_use_and_names_its_base() -> None:
    model, config = nn.Linear(2, 2), Config()
    model.peft_config = {"mine": config}  # type: ignore[assignment]
    model.name_or_path = "somebody/base"  # type: ignore[assignment]
    found = files_of(model, "mine", [])
    assert json.loads(found["adapter_config.json"]) == {"inference": True, "base": "somebody/base"}
    assert not config.inference_mode


class OfDiffusers(nn.Linear):
    """Its configuration is a plain dictionary, which it writes itself."""

    config = {"in_features": 2}  # noqa: RUF012

    def register_to_config(self, **more: object) -> None: ...

    def save_config(self, folder: str) -> None:
        Path(folder, "config.json").write_text(json.dumps(self.config))


def test_a_model_of_diffusers_brings_its_configuration() -> None:
    found = files_of(OfDiffusers(2, 2), "", [])
    assert json.loads(found["config.json"]) == {"in_features": 2}


def test_files_are_small_all_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "FILE_BYTES_MAX", 3)
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in paths:
        path.write_bytes(b"12")
    assert files_of(nn.Linear(2, 2), "", paths[:1]) == {"a.txt": b"12"}
    with pytest.raises(SpecError, match="small files"):
        files_of(nn.Linear(2, 2), "", paths)
