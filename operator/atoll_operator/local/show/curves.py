"""Draws the curves of a run for TensorBoard while it trains (docs/run-folder.md, Curves).

A curve is a series of points over the job's tick, and a function of the lines that processes write
alone: an `atoll run` that continues a run writes all curves again, in place of the former files.
Every series has a folder of its own, so that all losses lie in one chart. Where a series goes back
(after a kill), a START mark makes TensorBoard drop what it has from there on.

A thread of `atoll run` draws, and shows warnings. A trouble is reported once, and never ends a run.
"""

import heapq
import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from atoll_operator.local.run_files import Appended, Growing, Say

HELD_OUT, JOB = "held-out", "job"

Line = dict[str, Any]


class Writer(StrEnum):
    """Who wrote a line."""

    LEARNER = "learner"
    SHARD = "shard"
    EVALUATOR = "evaluator"


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a curve; `time` is in Unix seconds."""

    series: str
    tag: str
    tick: int
    value: float
    time: float


@dataclass(slots=True)
class Mean:
    """The steps of a learner in one tick, which more may follow."""

    tick: int
    time: float = 0.0
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    logged: dict[str, list[float]] = field(default_factory=dict)

    def points(self, slot: str) -> Iterator[Point]:
        known = {"loss": sum(self.losses) / len(self.losses)} if self.losses else {}
        if self.seconds:
            known["tokens_per_second"] = self.tokens / self.seconds
        known |= {tag: sum(values) / len(values) for tag, values in self.logged.items()}
        for tag, value in known.items():
            yield Point(slot, tag, self.tick, value, self.time)


@dataclass(slots=True)
class Curves:
    """Lines come in the order of their times; a tick's points come when it is over."""

    means: dict[str, Mean] = field(default_factory=dict)  # by slot
    counts: dict[int, Line] = field(default_factory=dict)  # of tokens: the newest of each shard
    tick: int = 0
    commits: int = 0

    def feed(self, writer: Writer, line: Line) -> list[Point]:
        event = line.get("event")
        # At t_m 0 it has joined, at a tick that may lie before its last one, and made no step.
        if writer is Writer.LEARNER and (line.get("t_m") or event == "logged"):
            return self._step(line)
        if writer is Writer.SHARD and event == "commit":
            return list(self._commit(line))
        if writer is Writer.EVALUATOR and line.get("loss") is not None:
            return [Point(HELD_OUT, "loss", line["tick"], line["loss"], line["time"])]
        return []

    def rest(self) -> list[Point]:
        """Return the points of the ticks that are not over, when no line follows."""
        found = [point for slot, mean in self.means.items() for point in mean.points(slot)]
        self.means.clear()
        return found

    def _step(self, line: Line) -> list[Point]:
        """End a tick at a line of another one: TensorBoard drops points that come out of order."""
        slot, tick = line["slot"], line["tick"]
        mean, points = self.means.setdefault(slot, Mean(tick)), list[Point]()
        if mean.tick != tick:
            points = [*mean.points(slot)]
            mean = self.means[slot] = Mean(tick)
        mean.time = line["time"]
        for name, value in line.get("values", {}).items():
            mean.logged.setdefault(name, []).append(value)
        if "t_m" in line:
            if line["loss"] is not None:
                mean.losses.append(line["loss"])
            mean.tokens += line["tokens"]
            mean.seconds += line["step_seconds"] + line["blocked_seconds"]
        return points

    def _commit(self, line: Line) -> Iterator[Point]:
        self.commits += 1
        self.tick = max(self.tick, line["tick"])  # shards are not at the same tick
        time = line["time"]
        yield Point(JOB, "commits", self.tick, self.commits, time)
        if line["participants"]:  # else it gives back what was lost, or a last version its bits
            yield Point(JOB, "learners", self.tick, len(line["participants"]), time)
        if "counts" in line:
            self.counts[line["shard"]] = line["counts"]
            slices, trained, merged = (
                sum(count[name] for count in self.counts.values())
                for name in ("slices", "trained", "merged")
            )
            yield Point(JOB, "tokens", self.tick, trained / slices, time)
            if trained:
                yield Point(JOB, "goodput", self.tick, merged / trained, time)


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
        troubles = [file.flush() for file in self._files.values()]
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


LOOK_SECONDS = 2.0  # shards tell their state when they are asked
END_SECONDS_MAX = 60.0  # for the last points, when the run is over
FILES = {
    "learners/*.jsonl": Writer.LEARNER,
    "syncer/*.tape.jsonl": Writer.SHARD,
    "evaluations.jsonl": Writer.EVALUATOR,
}


class CurveRecorder:
    """Reads the files of a run folder, and draws what is new in them."""

    def __init__(self, out: Path, say: Say, began: float) -> None:
        """`began`: warnings that are older (Unix seconds) were shown already."""
        self.out, self.say, self.began = out, say, began
        self.curves = Curves()
        self.tensorboard = TensorBoard(out)
        self._files: dict[Path, Growing] = {}
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
            self._draw(self.curves.feed(writer, line))
        self._flush()

    def close(self) -> None:
        self.look()
        self._draw(self.curves.rest())
        self._flush()

    def _warn(self, line: dict[str, Any]) -> None:
        warning = (line.get("slot", ""), line.get("reason", ""))
        new = line.get("event") == "warning" and warning not in self._shown
        if new and line["time"] >= self.began:
            self._shown.add(warning)
            self.say(f"{warning[0]}: {warning[1]}")

    def _draw(self, points: list[Point]) -> None:
        for point in points:
            self.tensorboard.add(point)

    def _flush(self) -> None:
        trouble = self.tensorboard.flush()
        if trouble is not None and not self._waits:
            self.say(f"the curves wait: {trouble}; they are tried again")
        self._waits = trouble is not None


@contextmanager
def recording(out: Path, say: Say, began: float) -> Iterator[None]:
    recorder, over = CurveRecorder(out, say, began), threading.Event()
    thread = threading.Thread(target=_record, args=(recorder, over), daemon=True)
    thread.start()
    try:
        yield
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
