"""Where the curves of a run are drawn: TensorBoard's files, and Weights & Biases if asked for.

TensorBoard: every series has a folder of its own, so that all losses lie in one chart. An `atoll
run` that continues a run writes all curves again, in place of the files of the one before. Where a
series goes back (after a kill), a START mark tells TensorBoard to drop what it has from there on.

Weights & Biases has one run for a job; its id and its group are the id of the training. It keeps
what it was given, so an `atoll run` that continues sends only what is new.
"""

import importlib
import importlib.util
import io
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll_operator.local.folder.run_files import Appended
from atoll_operator.local.show.curves import Point

FOLDER = "tensorboard"
START = {"status": "START"}  # TensorBoard drops what it has of a series from this step on


class TensorBoard:
    """Event files in the folder of a run."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER
        self._files: dict[str, Appended] = {}
        self._ticks: dict[str, int] = {}

    def add(self, point: Point) -> None:
        if point.series not in self._files:
            self._begin(point.series)
        file, value = self._files[point.series], {"tag": point.tag, "simple_value": point.value}
        if point.tick < self._ticks.get(point.series, 0):
            _add(file, point.time, step=point.tick, session_log=START)
        self._ticks[point.series] = point.tick
        _add(file, point.time, step=point.tick, summary={"value": [value]})

    def flush(self) -> OSError | None:
        """Write what waits; returns why the disk does not take all of it."""
        troubles = [each.flush() for each in self._files.values()]
        return next(filter(None, troubles), None)

    def _begin(self, series: str) -> None:
        folder, now = self.folder / series, time.time()
        before = list(folder.glob("events.out.tfevents.*"))
        for path in before:
            path.unlink(missing_ok=True)
        name = f"events.out.tfevents.{now:010.0f}.{socket.gethostname()}.{os.getpid()}.0"
        self._files[series] = file = Appended(folder / name)
        _add(file, now, file_version="brain.Event:2")
        if before:  # a TensorBoard that is open has read them
            _add(file, now, step=0, session_log=START)


def _add(file: Appended, at: float, **event: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=at, **event).SerializeToString())
    file.add(record.getvalue())


class WeightsAndBiases:
    """The run of a job at Weights & Biases, or in its offline files."""

    def __init__(self, wandb: Any, out: Path, run: str, project: str) -> None:
        self._run = wandb.init(
            project=project,
            id=run,
            group=run,
            name=out.name,
            dir=str(out),
            resume="allow",
            settings={"console": "off", "silent": True},  # the terminal is the live table's
        )
        self._run.define_metric("tick")
        self._run.define_metric("*", step_metric="tick")
        self._waiting: dict[int, dict[str, float]] = defaultdict(dict)

    def add(self, point: Point) -> None:
        self._waiting[point.tick][f"{point.tag}/{point.series}"] = point.value

    def flush(self) -> None:
        for tick, values in sorted(self._waiting.items()):
            self._run.log({**values, "tick": tick})
        self._waiting.clear()

    def close(self) -> None:
        self._run.finish()


def wandb_asked_for(environment: Mapping[str, str]) -> bool:
    mode = environment.get("WANDB_MODE", "")
    off = mode == "disabled" or environment.get("WANDB_DISABLED", "").lower() in ("true", "1")
    return not off and bool(mode or environment.get("WANDB_API_KEY"))


def wandb_module() -> Any:
    there = importlib.util.find_spec("wandb") is not None
    return importlib.import_module("wandb") if there else None
