"""learners/SLOT.jsonl, a line per step and event, and an observer's evaluations.jsonl."""

import json
import time
from pathlib import Path
from typing import Any, Final

import structlog

FLUSH_SECONDS: Final = 0.5
LOGGED: Final = "logged"  # the event of what a script logs, as often as it steps
WAITING_BYTES_MAX: Final = 1 << 20  # of lines that a disk without room takes later

log = structlog.get_logger()


class Telemetry:
    """Appends JSON lines with their `time`, written out twice a second; without a folder none.

    What an offer counts is written out before it leaves: a machine that loses its power has the
    lines of all that can be merged. Without a slot it is an observer's. What the disk does not take
    is tried again, up to WAITING_BYTES_MAX, and what comes after that is left out.
    """

    def __init__(self, folder: str, slot: str) -> None:
        name = f"learners/{slot}.jsonl" if slot else "evaluations.jsonl"
        self._path = Path(folder) / name if folder else None
        self._waiting = bytearray()
        self._flushed_at = 0.0
        self._trouble = ""

    def write(self, fields: dict[str, Any]) -> None:
        if self._path is None:
            return
        now = time.time()
        line = (json.dumps({"time": now, **fields}) + "\n").encode()
        if len(self._waiting) + len(line) <= WAITING_BYTES_MAX:
            self._waiting += line
        often = "t_m" in fields or fields.get("event") == LOGGED
        if now - self._flushed_at >= FLUSH_SECONDS or not often:
            self.flush()

    def flush(self) -> None:
        if self._path is None or not self._waiting:
            return
        path, trouble = self._path, ""
        self._flushed_at = time.time()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                while self._waiting:
                    del self._waiting[: file.write(self._waiting)]
        except OSError as error:
            trouble = str(error)
        if trouble and not self._trouble:
            log.warning("telemetry waits", reason=trouble)
        self._trouble = trouble
