"""What an export needs beside the values that travel, as the learner makes it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load
from torch import nn

from atoll_protos.errors import SpecError
from atoll_protos.job import companion as contract
from atoll_protos.job.companion import FILE, METADATA, TENSOR, ExportTable
from atoll_worker.model import companion as module
from atoll_worker.model import described, tensor_sums
from atoll_worker.model.companion import Companion, companion_of
from atoll_worker.model.parameters import travelling
from unit.worker.quantised import Quantised

OFFSET = 64


class Model(nn.Module):
    """Everything that a state dict may have."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.shared = nn.Linear(2, 2)
        self.again = self.shared
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -torch.inf), 1))
        self.register_buffer("spectrum", torch.fft.fft(torch.arange(4.0)))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("wide", torch.zeros(2, dtype=torch.complex128))
        self.register_buffer("temporary", torch.zeros(2, dtype=torch.int32), persistent=False)


def written(companion: Companion, *, changed: bool = False) -> tuple[ExportTable, dict[str, Any]]:
    """The table and the tensors of what a learner gives."""
    with tempfile.NamedTemporaryFile() as file:
        count = companion.write(file.fileno(), OFFSET, changed=changed)
        data = Path(file.name).read_bytes()[OFFSET:]
        assert len(data) == count
        file.seek(0)
        file.truncate()
        file.write(data)
        file.flush()
        with safe_open(file.name, "pt") as opened:
            table = ExportTable.from_json(opened.metadata()[METADATA])
        return table, load(data)


def made(model: nn.Module, *files: object) -> Companion:
    return companion_of([model], travelling(model), files)


def test_every_key_of_the_state_dict_is_in_the_table_kept_or_absent() -> None:
    model = Model()
    table, tensors = written(made(model))
    kept = {key.removeprefix(TENSOR) for key in tensors}
    assert table.keys.keys() | kept | table.absent.keys() == model.state_dict().keys()
    assert table.keys["again.weight"] == table.keys["shared.weight"]
    assert table.absent == {"wide": "is torch.complex128"}
    for key in kept:
        assert torch.equal(tensors[TENSOR + key], model.state_dict()[key])
    assert kept == {"frozen.weight", "frozen.bias", "mask", "spectrum", "flag",
                    "norm.num_batches_tracked"}  # fmt: skip


def test_at_the_end_only_what_training_has_changed_is_given() -> None:
    model = Model()
    companion = made(model)
    model.norm(torch.randn(4, 2))
    _, tensors = written(companion, changed=True)
    assert tensors == {f"{TENSOR}norm.num_batches_tracked": torch.tensor(1)}


def test_what_changed_and_is_too_large_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGED_BYTES_MAX", described.HEADER_ROOM_BYTES + 8)
    model = Model()
    companion = made(model)
    model.norm(torch.randn(4, 2))
    model.frozen.weight.fill_(7.0)
    _, tensors = written(companion, changed=True)
    assert tensors.keys() == {f"{TENSOR}norm.num_batches_tracked"}
    assert companion.warning.endswith("do not travel: frozen.weight")


def test_of_a_huge_frozen_part_only_a_part_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described, "BYTES_MAX", described.HEADER_ROOM_BYTES + 72)
    model = Model()
    companion = made(model)
    table, tensors = written(companion)
    assert f"{TENSOR}flag" in tensors
    assert table.absent.keys() == {"wide", "spectrum", "mask"}
    assert "does not travel has more than" in table.absent["spectrum"]
    assert "the export will lack tensors" in companion.warning
    assert "spectrum" in companion.warning


def test_values_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    expected = made(model).frozen_digest
    monkeypatch.setattr(tensor_sums, "CHUNK_BYTES", 4)
    assert made(model).frozen_digest == expected
    _, tensors = written(made(model))
    assert torch.equal(tensors[f"{TENSOR}frozen.weight"], model.frozen.weight)


def test_the_frozen_digest_is_of_frozen_parameters_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = Model()
    first = made(model).frozen_digest
    with torch.no_grad():
        model.shared.weight += 1
        for buffer in model.norm.buffers():
            buffer.add_(1)
    assert made(model).frozen_digest == first
    with torch.no_grad():
        model.frozen.bias[0] += 1e-6
    assert made(model).frozen_digest != first
    assert made(nn.DataParallel(model)).frozen_digest == made(model).frozen_digest


def test_files_are_given_by_path_and_by_save_pretrained(tmp_path: Path) -> None:
    class Tokenizer:
        def save_pretrained(self, folder: str) -> None:
            (Path(folder) / "vocabulary").mkdir()
            (Path(folder) / "vocabulary" / "words.json").write_text("{}")
            (Path(folder) / "model.safetensors").write_bytes(b"weights are not copied")

    (tmp_path / "notes.txt").write_text("mine")
    _, tensors = written(made(Model(), Tokenizer(), tmp_path / "notes.txt"))
    files = {key.removeprefix(FILE): bytes(each.tolist()) for key, each in tensors.items()
             if key.startswith(FILE)}  # fmt: skip
    assert files == {"vocabulary/words.json": b"{}", "notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "export_files: has a int"),
        ("nowhere.txt", "export_files: nowhere.txt cannot be read"),
        ("tokenizer.bin", r"tokenizer\.bin"),  # a name of weights: it would be left out
    ],
)
def test_what_is_no_file_is_refused_at_once_with_a_remedy(wrong: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        made(Model(), wrong)


PATHS = ["../x", "/x", "a/../b", "model.safetensors", ".hidden", "x.tmp", "parts", "Parts/x"]


@pytest.mark.parametrize("path", [*PATHS, "x" * 201])
def test_a_file_never_leaves_the_export_or_takes_the_place_of_weights(path: str) -> None:
    with pytest.raises(SpecError):
        contract.check_file(path)


def test_a_file_and_a_folder_of_one_name_are_refused_together() -> None:
    contract.check_files(["x.json", "x", "y/z", "y/w"])
    with pytest.raises(SpecError, match="x is a file, and a folder of x/y"):
        contract.check_files(["x/y", "x"])


def test_a_table_that_is_none_is_refused() -> None:
    for text in ("[]", "{}", json.dumps({"stem": "../x", "keys": {}, "absent": {}}), "nonsense"):
        with pytest.raises(ValueError):  # noqa: PT011 - of JSON, or ours
            ExportTable.from_json(text)


class Odd(torch.Tensor):
    """As quantised tensors are: no plain bytes behind it."""

    error: type[RuntimeError] = NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "view":
            raise cls.error("no bytes")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Full(Odd):
    """On a device without room for a copy, which is no tensor without bytes."""

    error = torch.OutOfMemoryError


def test_a_tensor_without_plain_bytes_is_absent_and_damages_nothing() -> None:
    model = Model()
    model.register_buffer("odd", torch.ones(3, dtype=torch.int8).as_subclass(Odd))
    model.register_buffer("conjugate", torch.fft.fft(torch.arange(4.0)).conj())
    table, tensors = written(made(model))
    assert table.absent["odd"] == "is a Odd"
    assert torch.equal(tensors[f"{TENSOR}conjugate"], model.state_dict()["conjugate"])
    model.register_buffer("full", torch.ones(3, dtype=torch.int8).as_subclass(Full))
    with pytest.raises(torch.OutOfMemoryError):
        made(model)


def test_a_plain_tensor_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    model = Model()
    companion = made(model)
    monkeypatch.setattr(tensor_sums, "_flat", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        written(companion)


def in_8_bits(value: int, scale: float) -> torch.Tensor:
    return Quantised(torch.full((3,), value, dtype=torch.int8), torch.tensor(scale))


@pytest.mark.parametrize(
    ("frozen", "kind", "different"),
    [
        ([(torch.eye(3) * value).to_sparse() for value in (1.0, 2.0)], "torch.sparse_coo", 2),
        ([in_8_bits(1, 1.0), in_8_bits(2, 1.0), in_8_bits(1, 2.0)], "a Quantised", 3),
        ([torch.ones(3).as_subclass(Odd)], "a Odd", 1),
    ],
)
def test_a_frozen_parameter_without_plain_bytes_is_named_as_absent_and_is_in_the_digest(
    frozen: list[torch.Tensor], kind: str, different: int
) -> None:
    digests = set()
    for value in frozen:
        model = nn.Linear(2, 2)
        for name, each in (("one", frozen[0]), ("two", value)):
            model.register_parameter(name, nn.Parameter(each, requires_grad=False))
        found = made(model)
        assert f"one (is {kind}), two (is {kind})" in found.warning
        unread = "their values cannot be read: one, two"
        assert (unread in found.warning) == (kind == "a Odd")
        digests.add(found.frozen_digest)
    assert len(digests) == different


class Fused(nn.Module):
    """One matrix, which is saved as two."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(3, 4, bias=False)
        self.register_state_dict_post_hook(self.split)  # type: ignore[no-untyped-call]

    @staticmethod
    def split(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
        state[f"{prefix}one"], state[f"{prefix}two"] = state.pop(f"{prefix}both.weight").chunk(2)
        state[f"{prefix}two"] = state[f"{prefix}two"].clone()


def test_a_parameter_that_a_hook_replaces_by_copies_is_exported_and_the_copies_are_not() -> None:
    fused = Fused()
    model = nn.Sequential(fused, nn.Linear(4, 2).requires_grad_(False))
    companion = made(model)
    table, tensors = written(companion)
    assert table.keys == {"0.both.weight": "0.both.weight"}
    assert tensors.keys() == {f"{TENSOR}1.weight", f"{TENSOR}1.bias"}
    assert model.state_dict().keys() == {"0.one", "0.two", "1.weight", "1.bias"}  # the hook is back
    with torch.no_grad():
        fused.both.weight.add_(1)
    assert not written(companion, changed=True)[1]


def test_keys_are_those_of_a_state_dict_that_the_user_has_written() -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
            return {f"new.{key}": value for key, value in self.inner.state_dict().items()}

    table, _ = written(made(Renamed()))
    assert table.keys == {"new.weight": "inner.weight", "new.bias": "inner.bias"}
