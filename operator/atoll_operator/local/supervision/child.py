"""One process of a run: its present start, how that ended, and its row in processes.json."""

import contextlib
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll_operator.api.status.crash_reason import last_words
from atoll_operator.local.folder.run_files import Growing, read_lines, size_of
from atoll_operator.local.planning.process_plan import Planned
from atoll_operator.local.supervision.giving_up import End, EndRecord
from atoll_protos.exits import ExitCode

LOG_SECONDS_MAX = 2.0  # for the rest of a log, which others who write to it may hold open
LOG_BYTES = 64 * 1024  # of the end of a log that are read for the last words
REFUSED = ("refused", "disconnected")  # lines of a learner that is not welcome, and dials again
TELEMETRY_BYTES = 1 << 20  # of the end of the telemetry of a start, which may have lasted for days


@dataclass(slots=True)
class Child:
    """One planned process and its present start. Times are monotonic seconds."""

    planned: Planned
    log: Path
    telemetry: Path | None = None  # what it writes of its steps or evaluations
    process: subprocess.Popen[bytes] | None = None
    keeper: subprocess.Popen[bytes] | None = None  # of its log
    closing: list[subprocess.Popen[bytes]] = field(default_factory=list)  # keepers that still write
    instance: str = ""
    restarts: int = -1
    started_at: float = 0.0
    start_at: float = 0.0
    log_bytes: int = 0  # of the log, and of the telemetry, that are of earlier starts
    telemetry_bytes: int = 0
    lines: Growing | None = None  # of the log, as far as they were looked at
    exit_code: int | None = None  # of the last start
    record: EndRecord = field(default_factory=EndRecord)
    ended: str = ""  # how its last start ended, in words; empty if that is no trouble
    given_up: str = ""  # why it is not started again
    given_up_with: str = ""  # the host of its learner that was given up, if it was another one
    after: str = ""  # how it ended otherwise than in order, once the job was final

    @property
    def done(self) -> bool:
        ended = bool(self.given_up or self.after) or self.exit_code == ExitCode.FINAL
        return self.process is None and ended

    def row(self, *, waits: bool) -> dict[str, Any]:
        planned = self.planned
        found: dict[str, Any] = {"role": planned.role}
        if planned.role == "shard":
            found |= {"name": planned.name, "shard": planned.shard, "endpoint": planned.endpoint}
            found["standby"] = waits
        else:
            found["slot"] = planned.whole
        if planned.slot:
            found["host"] = planned.host
        pid = self.process.pid if self.process else None
        return found | {"pid": pid, "instance": self.instance, "restarts": self.restarts}

    def close_log(self) -> None:
        """Wait for its last words, but not long: what it has left may hold the log open."""
        if self.keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.keeper.wait(LOG_SECONDS_MAX)
            self.closing.append(self.keeper)
            self.keeper = None
        self.closing = [each for each in self.closing if each.poll() is None]


def by_slot(children: Iterable[Child]) -> dict[str, list[Child]]:
    found: dict[str, list[Child]] = {}
    for child in children:
        found.setdefault(child.planned.whole, []).append(child)
    return found


def cannot_train(hosts: Sequence[Child]) -> bool:
    """Whether so many hosts of one learner are given up that those which are left are too few."""
    left = [each for each in hosts if not each.given_up]
    needed = hosts[0].planned.hosts_needed
    return len(left) < needed or all(each.planned.host for each in left)


def end_of(child: Child, code: int, seconds: float) -> End:
    lines = _telemetry(child)
    # A learner's lines count its own steps; an evaluator's do not, and each is an evaluation.
    steps = [line.get("t_m", 1) for line in lines if "event" not in line]
    lefts = [str(line.get("reason", "")) for line in lines if line.get("event") == "end"]
    return End(
        code=code,
        words=last_words(tail(child.log, child.log_bytes)),
        worked=any(steps),
        own_steps=max(steps, default=0),
        left=lefts[-1] if lefts else _elsewhere(child, code),
        seconds=seconds,
    )


def _elsewhere(child: Child, code: int) -> str:
    """Of a host whose learner writes on the machine of host 0 alone: it ends well with all."""
    alone = child.planned.host > 0 and not size_of(child.telemetry)
    return "finished" if alone and code == ExitCode.FINAL else ""


def refused(child: Child) -> str:
    """Why what runs was not let in at its last attempt; empty: it was, or has made none yet."""
    last = (_telemetry(child) or [{}])[-1]
    return str(last.get("reason", "")) if last.get("event") in REFUSED else ""


def _telemetry(child: Child) -> list[dict[str, Any]]:
    """Of the present start, the last of it."""
    start = max(child.telemetry_bytes, size_of(child.telemetry) - TELEMETRY_BYTES)
    return read_lines(child.telemetry, start) if child.telemetry else []


def has_left(child: Child) -> bool:
    """Whether what runs is code behind the learner's loop."""
    return bool(end_of(child, ExitCode.FINAL, 0.0).left)


def telemetry_of(planned: Planned, out: Path) -> Path | None:
    if planned.role == "learner":
        return out / "learners" / f"{planned.whole}.jsonl"
    return out / "evaluations.jsonl" if planned.role == "evaluator" else None


def tail(path: Path, start: int) -> str:
    """The text of a log from this byte on, or its end if that is long; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, size_of(path) - LOG_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
