"""learners/SLOT.jsonl, a line per step and event, and an observer's evaluations.jsonl."""

import json
import time
from pathlib import Path
from typing import Any, TextIO

FLUSH_SECONDS = 0.5


class Telemetry:
    """Appends JSON lines with their `time`, written out twice a second; without a folder none.

    Without a slot it is an observer's.
    """

    def __init__(self, folder: str, slot: str) -> None:
        name = f"learners/{slot}.jsonl" if slot else "evaluations.jsonl"
        self._path = Path(folder) / name if folder else None
        self._file: TextIO | None = None
        self._flushed_at = 0.0

    def open(self) -> None:
        """Make the folder and open the file at its end."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")

    def write(self, fields: dict[str, Any]) -> None:
        """Add one line."""
        if self._file is None:
            return
        now = time.time()
        self._file.write(json.dumps({"time": now, **fields}) + "\n")
        if now - self._flushed_at >= FLUSH_SECONDS or "t_m" not in fields:
            self._file.flush()
            self._flushed_at = now

    def close(self) -> None:
        """Write out what is left."""
        if self._file is not None:
            self._file.close()
