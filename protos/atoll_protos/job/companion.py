"""The companion of a model: what an export needs beside the values that travel (rule 36).

One learner gives it, as one safetensors file:

    metadata "atoll"     the ExportTable, as JSON
    tensor "tensor/KEY"  a tensor that does not travel, under its key in the export
    tensor "file/PATH"   a small file of the export, as uint8

It travels in parts of PART_BYTES, the most of it that either side holds in memory. It comes twice:
whole, and at the end with only those tensors that training has changed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Final

from atoll_protos import json_text
from atoll_protos.errors import SpecError

PART_BYTES: Final = 16 << 20
BYTES_MAX: Final = 4 << 30  # of a companion; what is above is named as absent
CHANGED_BYTES_MAX: Final = PART_BYTES  # of what training has changed, at the end
WAITS_SECONDS: Final = 60.0  # of an export for it, and of a finished learner until it is taken
FILE_BYTES_MAX: Final = 64 << 20  # of all files together
METADATA: Final = "atoll"
TENSOR: Final = "tensor/"
FILE: Final = "file/"
MODEL: Final = "model"
ADAPTER: Final = "adapter_model"  # of PEFT
STEMS: Final = (MODEL, ADAPTER)
SAFE_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*){0,3}")
PARTS: Final = "parts"  # the folder of what shards write, until the export is whole
PATH_LETTERS_MAX: Final = 200
OWN_SUFFIXES: Final = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTable:
    """How the export names the tensors: `stem` is the name of its files before ".safetensors".

    `keys` are the export's keys of values that travel, tied ones under each of their names, with
    the name in the layout. `absent`: keys that the model has and the export lacks, with the reason.
    """

    stem: str = MODEL
    keys: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ExportTable":
        """Raises ValueError for anything else; fields that are not known are ignored."""
        try:
            found = json_text.mapping(text)
            table = cls(
                stem=str(found["stem"]),
                keys={str(key): str(name) for key, name in found["keys"].items()},
                absent={str(key): str(why) for key, why in found["absent"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no table of a companion: {error!r}") from error
        if table.stem not in STEMS:
            raise ValueError(f"no table of a companion: stem {table.stem!r}")
        return table


def part_count(companion_bytes: int) -> int:
    return -(-companion_bytes // PART_BYTES)


def part_bytes(companion_bytes: int, part: int) -> int:
    return min(PART_BYTES, companion_bytes - part * PART_BYTES)


def check_file(path: str) -> None:
    """Raises SpecError for a path that a file beside the model must not have."""
    if SAFE_PATH.fullmatch(path) is None:
        raise SpecError(
            "export_files", f"{path!r} is no plain relative path", "use letters, digits, . _ + -"
        )
    if path.endswith(OWN_SUFFIXES):
        raise SpecError("export_files", f"{path} holds weights", "give small files only")
    if path.partition("/")[0].lower() == PARTS or len(path) > PATH_LETTERS_MAX:
        problem = f"{path[:PATH_LETTERS_MAX]} is a name that the export needs itself, or too long"
        raise SpecError("export_files", problem, "give the file another name")


def check_files(paths: Iterable[str]) -> None:
    """Raises SpecError for paths that cannot lie beside the model together."""
    known = set(paths)
    for path in sorted(known):
        check_file(path)
        above = [parent.as_posix() for parent in PurePosixPath(path).parents]
        if both := known.intersection(above):
            problem = f"{min(both)} is a file, and a folder of {path}"
            raise SpecError("export_files", problem, "give one of them another name")
