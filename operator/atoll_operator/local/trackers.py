"""Where the curves of a run are drawn: TensorBoard's files, and Weights & Biases if asked for.

TensorBoard. Every series has a folder of its own, tensorboard/SERIES, so that the losses of all
learners and the held-out loss lie in one chart. An `atoll run` that goes on with a run writes all
curves again from their beginning, in place of the files of the one before. Where a series goes back
(after a kill a run goes on from its last commits, a few ticks before the last step), a START mark
tells TensorBoard to drop what it has from there on; writers call that `purge_step`.

Weights & Biases has one run for a job; its id and its group are the id of the training. It keeps
what it was given, so an `atoll run` that goes on sends only what is new. It is asked for by
WANDB_API_KEY or WANDB_MODE, and is no dependency of Atoll.
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

from atoll_operator.local.curves import Point
from atoll_operator.local.files import Appended

FOLDER = "tensorboard"


class TensorBoard:
    """Event files in the folder of a run."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER
        self._files: dict[str, Appended] = {}
        self._ticks: dict[str, int] = {}

    def add(self, point: Point) -> None:
        """Write it to the file of its series."""
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        file = self._files.get(point.series) or self._begun(point.series)
        if point.tick < self._ticks.get(point.series, 0):
            _mark(file, point.tick, point.time)
        self._ticks[point.series] = point.tick
        value = Summary.Value(tag=point.tag, simple_value=point.value)
        summary = Summary(value=[value])
        _add(file, Event(wall_time=point.time, step=point.tick, summary=summary))

    def flush(self) -> OSError | None:
        """Write what waits; returns why the disk does not take all of it."""
        troubles = [each.flush() for each in self._files.values()]
        return next((each for each in troubles if each is not None), None)

    def _begun(self, series: str) -> Appended:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415

        folder, now = self.folder / series, time.time()
        before = list(folder.glob("events.out.tfevents.*"))
        for path in before:
            path.unlink(missing_ok=True)
        name = f"events.out.tfevents.{now:010.0f}.{socket.gethostname()}.{os.getpid()}.0"
        self._files[series] = file = Appended(folder / name)
        _add(file, Event(wall_time=now, file_version="brain.Event:2"))
        if before:  # a TensorBoard that is open has read them
            _mark(file, 0, now)
        return file


def _add(file: Appended, event: Any) -> None:
    """One event, in the form of TensorFlow's records."""
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

    record = io.BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    file.add(record.getvalue())


def _mark(file: Appended, tick: int, at: float) -> None:
    """Let TensorBoard drop what it has of this series from a tick on."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # noqa: PLC0415

    start = SessionLog(status=SessionLog.START)
    _add(file, Event(wall_time=at, step=tick, session_log=start))


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
        """Note it, under its tag and series."""
        self._waiting[point.tick][f"{point.tag}/{point.series}"] = point.value

    def flush(self) -> None:
        """Send what was noted, tick by tick."""
        for tick, values in sorted(self._waiting.items()):
            self._run.log({**values, "tick": tick})
        self._waiting.clear()

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def wandb_asked_for(environment: Mapping[str, str]) -> bool:
    """Whether the variables of Weights & Biases ask for it."""
    mode = environment.get("WANDB_MODE", "")
    off = mode == "disabled" or environment.get("WANDB_DISABLED", "").lower() in ("true", "1")
    return not off and bool(mode or environment.get("WANDB_API_KEY"))


def wandb_module() -> Any:
    """The library of Weights & Biases, or None where it is not installed."""
    if importlib.util.find_spec("wandb") is None:
        return None
    return importlib.import_module("wandb")
