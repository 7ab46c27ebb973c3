"""Draws the curves of a run while it continues, and shows warnings, in a thread of `atoll run`.

A trouble with a library or with the network is reported once and ends the curves, never the run.
"""

import heapq
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll_operator.local.folder.run_files import Growing, Say
from atoll_operator.local.show.curves import Curves, Point, Writer
from atoll_operator.local.show.trackers import (
    TensorBoard,
    WeightsAndBiases,
    wandb_asked_for,
    wandb_module,
)

LOOK_SECONDS = 2.0  # shards tell their state when they are asked
END_SECONDS_MAX = 60.0  # for the last points, when the run is over
FILES = {
    "learners/*.jsonl": Writer.LEARNER,
    "syncer/*.tape.jsonl": Writer.SHARD,
    "evaluations.jsonl": Writer.EVALUATOR,
}


class CurveRecorder:
    """Reads the files of a run folder, and draws what is new in them."""

    def __init__(self, out: Path, say: Say, environment: Mapping[str, str], began: float) -> None:
        """`began`: what is older (Unix seconds) was sent to W&B, or shown, already."""
        self.out, self.say, self.environment, self.began = out, say, environment, began
        self.curves = Curves()
        self.tensorboard = TensorBoard(out)
        self.wandb: WeightsAndBiases | None = None
        self._files: dict[Path, Growing] = {}
        self._run = ""
        self._waits = False  # for room on the disk
        self._shown: set[tuple[str, str]] = set()  # slots and warnings

    def look(self) -> None:
        new = (  # of every file the lines that have come since the last look, as they are read
            _timed(writer, self._files.setdefault(path, Growing(path)))
            for pattern, writer in FILES.items()
            for path in sorted(self.out.glob(pattern))
        )
        for writer, line in heapq.merge(*new, key=lambda each: float(each[1]["time"])):
            self._warn(line)
            if not self._run and line.get("run"):
                self._run = line["run"]
                self.wandb = self._wandb()
            self._draw(self.curves.feed(writer, line))
        self._flush()

    def close(self) -> None:
        self.look()
        self._draw(self.curves.rest())
        self._flush()
        if self.wandb is not None:
            self.wandb.close()

    def _warn(self, line: dict[str, Any]) -> None:
        warning = (line.get("slot", ""), line.get("reason", ""))
        new = line.get("event") == "warning" and warning not in self._shown
        if new and line["time"] >= self.began:
            self._shown.add(warning)
            self.say(f"{warning[0]}: {warning[1]}")

    def _draw(self, points: list[Point]) -> None:
        for point in points:
            self.tensorboard.add(point)
            if self.wandb is not None and point.time >= self.began:
                self.wandb.add(point)

    def _flush(self) -> None:
        trouble = self.tensorboard.flush()
        if trouble is not None and not self._waits:
            self.say(f"the curves wait: {trouble}; they are tried again")
        self._waits = trouble is not None
        if self.wandb is not None:
            self.wandb.flush()

    def _wandb(self) -> WeightsAndBiases | None:
        if not wandb_asked_for(self.environment):
            return None
        if (wandb := wandb_module()) is not None:
            project = self.environment.get("WANDB_PROJECT") or "atoll"
            return WeightsAndBiases(wandb, self.out, self._run, project)
        self.say("Weights & Biases gets nothing: wandb is not installed")
        return None


@contextmanager
def recording(out: Path, say: Say, began: float) -> Iterator[Curves]:
    recorder, over = CurveRecorder(out, say, os.environ, began), threading.Event()
    thread = threading.Thread(target=_record, args=(recorder, over), daemon=True)
    thread.start()
    try:
        yield recorder.curves
    finally:
        over.set()
        thread.join(END_SECONDS_MAX)


def _record(recorder: CurveRecorder, over: threading.Event) -> None:
    try:
        while not over.wait(LOOK_SECONDS):
            recorder.look()
        recorder.close()
    except ModuleNotFoundError as error:
        recorder.say(f"the curves are not drawn: {error}; pip install tensorboard")
    except Exception as error:  # the top of a loop: no trouble here ends the run
        recorder.say(f"the curves are not drawn any more: {type(error).__name__}: {error}")


def _timed(writer: Writer, file: Growing) -> Iterator[tuple[Writer, dict[str, Any]]]:
    return ((writer, line) for line in file.read_json() if "time" in line)
