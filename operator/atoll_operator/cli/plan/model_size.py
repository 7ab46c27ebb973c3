"""How many parameters of a model travel: from its files, or from the function that builds it."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from atoll_protos.errors import SpecError

COUNTER: Final = (sys.executable, "-m", "atoll_worker", "count")  # needs torch, and this does not
SECONDS_MAX: Final = 300.0  # of the child; importing a library of models takes some seconds


def in_files(folder: Path) -> int:
    """A file begins with the length of a JSON table of its tensors, in 8 bytes, and the table."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                table = json.loads(file.read(min(length, path.stat().st_size)))
            shapes = [each["shape"] for name, each in table.items() if name != "__metadata__"]
            count += sum(int(math.prod(shape)) for shape in shapes)
        except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
            raise SpecError(str(path), f"is no model ({error!r})", "give whole files") from error
    if not count:
        remedy = "give a folder of *.safetensors"
        raise SpecError("--safetensors", f"{folder} has no values", remedy)
    return count


def of_function(name: str, seconds_max: float = SECONDS_MAX) -> int:
    """MODULE:FUNCTION builds the model, without values, in a process of its own."""
    try:
        done = subprocess.run(
            [*COUNTER, name], capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except subprocess.TimeoutExpired as error:
        remedy = "let it only build the model, or give --parameters"
        raise SpecError("--model", f"{name} takes over {seconds_max:g} s", remedy) from error
    if done.returncode == 0 and (lines := done.stdout.split()):
        return int(lines[-1])
    raise _refusal(name, done.returncode, done.stderr)


def _refusal(name: str, code: int, text: str) -> SpecError:
    """What the child has said last: a log line, or the end of a traceback."""
    last = (text.strip().splitlines() or [f"ended with {code}"])[-1]
    if "No module named 'torch'" in text or "No module named atoll_worker" in text:
        return SpecError("--model", "needs torch", "install atoll[worker], or give --parameters")
    remedy = "give MODULE:FUNCTION of a function without arguments that only builds the model"
    said = _document(last)
    if said.get("field") not in {None, "command"}:  # the model's own
        remedy = str(said["remedy"])
    trace = str(said.get("exception") or said.get("problem") or last)
    return SpecError("--model", f"{name}: {trace.strip().splitlines()[-1]}", remedy)


def _document(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
