"""Draws the curves of a run while it goes on, and tells warnings, in a thread of `atoll run`.

Every 2 s the thread reads what the processes have appended to their files, in the order of the
lines' times, and hands the points to the trackers. It has nothing to do with the run itself: the
libraries that it needs are slow to import, Weights & Biases waits for a network, and a trouble
with either is told once and ends the curves, never the run.
"""

import heapq
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll_operator.local.curves import Curves, Point, Writer
from atoll_operator.local.files import Growing
from atoll_operator.local.trackers import (
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


class Recorder:
    """Reads the files of a run folder, and draws what is new in them."""

    def __init__(
        self,
        out: Path,
        say: Callable[[str], None],
        environment: Mapping[str, str],
        began: float,
        curves: Curves | None = None,
    ) -> None:
        """`began`: what is of before this time (Unix seconds) was sent to W&B, or told, already."""
        self.out, self.say, self.environment, self.began = out, say, environment, began
        self.curves = curves or Curves()
        self.tensorboard = TensorBoard(out)
        self.wandb: WeightsAndBiases | None = None
        self._files: dict[Path, Growing] = {}
        self._run = ""
        self._waits = False  # for room on the disk
        self._told: set[tuple[str, str]] = set()  # slots and warnings

    def look(self) -> None:
        """Draw what is new."""
        for writer, line in heapq.merge(*self._new(), key=lambda each: float(each[1]["time"])):
            self._tell(line)
            if not self._run and line.get("run"):
                self._run = line["run"]
                self.wandb = self._wandb()
            self._draw(self.curves.feed(writer, line))
        self._flush()

    def close(self) -> None:
        """Draw the last points."""
        self.look()
        self._draw(self.curves.rest())
        self._flush()
        if self.wandb is not None:
            self.wandb.close()

    def _new(self) -> Iterator[Iterator[tuple[Writer, dict[str, Any]]]]:
        """For every file the lines that have come since the last look, as they are read."""
        for pattern, writer in FILES.items():
            for path in sorted(self.out.glob(pattern)):
                yield _lines(writer, self._files.setdefault(path, Growing(path)))

    def _tell(self, line: dict[str, Any]) -> None:
        """A warning of a learner is on the screen at once, the same one once."""
        warning = (line.get("slot", ""), line.get("reason", ""))
        new = line.get("event") == "warning" and warning not in self._told
        if new and line["time"] >= self.began:
            self._told.add(warning)
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
        wandb = wandb_module()
        if wandb is None:
            self.say("Weights & Biases gets nothing: wandb is not installed")
            return None
        project = self.environment.get("WANDB_PROJECT") or "atoll"
        return WeightsAndBiases(wandb, self.out, self._run, project)


@contextmanager
def recording(out: Path, say: Callable[[str], None], began: float) -> Iterator[Curves]:
    """Draw the curves of the run in a folder, which it yields, until the end of the `with`."""
    curves = Curves()
    over = threading.Event()
    thread = threading.Thread(target=_record, args=(out, say, began, over, curves), daemon=True)
    thread.start()
    try:
        yield curves
    finally:
        over.set()
        thread.join(END_SECONDS_MAX)


def _record(
    out: Path, say: Callable[[str], None], began: float, over: threading.Event, curves: Curves
) -> None:
    try:
        recorder = Recorder(out, say, os.environ, began, curves)
        while not over.wait(LOOK_SECONDS):
            recorder.look()
        recorder.close()
    except ModuleNotFoundError as error:
        say(f"the curves are not drawn: {error}; pip install tensorboard")
    except Exception as error:  # the top of a loop: no trouble here ends the run
        say(f"the curves are not drawn any more: {type(error).__name__}: {error}")


def _lines(writer: Writer, file: Growing) -> Iterator[tuple[Writer, dict[str, Any]]]:
    for text in file.read():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # a kill has cut it short
        if "time" in line:
            yield writer, line
