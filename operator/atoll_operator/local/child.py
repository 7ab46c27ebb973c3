"""One process of a run: its present start, how that ended, and its row in processes.json.

What the end of a process means: whether another start can help, and why not; pure.

Most ends are worth another start. A mistake in the user's script is not, so a process is given up

    at once           with a permanent exit code (`atoll_protos.exits`)
    the second time   when it failed twice in a row with the same last words, or returned twice
                      before the job was final, and made no step
    the third time    when it returned three times before the job was final
    the fifth time    when it failed five times in a row, however

Failures are exits with an error, and signals that a process brings upon itself, such as SIGSEGV. A
kill is none. A start that lasted a minute begins the counts of failures again; returns are counted
in all starts, since an epoch may take hours.

Where all learners fail with the same words there is nothing to wait for, and the job ends: at once
if no start made a step, else when each has failed twice in a row at the same own step (`alike`).
"""

import contextlib
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals
from typing import Any, Final

from atoll_operator.api.status.crash_reason import NOTHING, LastWords, last_words
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Growing, read_lines, size_of
from atoll_protos import documents
from atoll_protos.exits import RANK_ENDED, ExitCode, is_failure, is_permanent, returned_early

STEADY_SECONDS: Final = 60.0  # after a start that lasted so long, counts and back-off begin again
FAILURES_MAX: Final = 5  # exits with an error in a row, not kills
ALIKE_MAX: Final = 2  # of them with the same last words, before any step
RETURNS_MAX: Final = 3  # exits with code 0 before the job is final


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How one start ended. `left` is why its Learner left the job, empty if it did not say so."""

    code: int
    words: LastWords = NOTHING
    worked: bool = False  # it made a step, or an evaluation
    own_steps: int = 0  # that the start made
    left: str = ""
    seconds: float = 0.0  # that the start lasted

    @property
    def failed(self) -> bool:
        return is_failure(self.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """What is known of all ends of one process."""

    first: End | None = None
    last: End | None = None
    worked: bool = False  # any start made a step
    attempt: int = 0  # of starting again, in a row
    failures: int = 0  # in a row
    alike: int = 0  # of these, in a row, with the same words after as many own steps
    returns: int = 0  # before the job was final

    def after(self, end: End, *, returned: bool) -> "EndRecord":
        """Add one more end; `returned`: with exit code 0, before the job was final."""
        before = 0 if end.seconds > STEADY_SECONDS else 1
        same = (
            self.last is not None
            and self.last.failed
            and end.words.same_as(self.last.words)
            and end.own_steps == self.last.own_steps
        )
        return replace(
            self,
            first=self.first or end,
            last=end,
            worked=self.worked or end.worked,
            attempt=1 + before * self.attempt,
            failures=1 + before * self.failures if end.failed else 0,
            alike=1 + same * self.alike if end.failed else 0,
            returns=self.returns + returned,
        )


def why_given_up(record: EndRecord, returned: str) -> str:
    """Why a process is not started again; empty if it is. `returned` as of `returned_early`."""
    end = record.last
    if end is None:
        return ""
    if returned and record.returns >= (RETURNS_MAX if record.worked else ALIKE_MAX):
        return returned
    if not end.failed:
        return ""
    for_good = is_permanent(end.code) or (record.alike >= ALIKE_MAX and not record.worked)
    return words_of(end) if for_good or record.failures >= FAILURES_MAX else ""


def returned(end: End, role: str, tick: int, steps: int) -> str:
    """Why a process returned too early; empty: it did not, or says that it has finished."""
    if role == "shard" or end.code != ExitCode.FINAL or end.left in ("finished", "terminated"):
        return ""
    said = returned_early(tick, steps, "learner" if role == "learner" else "observer")
    return said if end.worked or role != "learner" else f"{said}. It made no step"


def alike(records: Sequence[EndRecord]) -> End | None:
    """Return the end that the starts of all these learners have in common, if they have one."""
    if not any(record.worked for record in records):
        return _common([record.first for record in records])
    again = all(record.alike >= ALIKE_MAX for record in records)
    return _common([record.last for record in records]) if again else None


def _common(ends: Sequence[End | None]) -> End | None:
    first = ends[0] if ends else None
    same = first and all(end and end.failed and end.words.same_as(first.words) for end in ends)
    return first if same else None


def ranks_ended(lines: Iterable[str]) -> Iterator[str]:
    """Yield what a launcher says of ranks that have ended; it may start them again in place."""
    for line in lines:
        if line.startswith("{") and RANK_ENDED in line:
            with contextlib.suppress(ValueError):
                value = documents.mapping(line)
                if RANK_ENDED in value:
                    yield str(value.get("event", ""))


def words_of(end: End) -> str:
    return str(end.words) or "its log is empty"


def why_ended(end: End) -> str:
    return f"{exit_text(end.code)}: {words_of(end)}" if end.failed else exit_text(end.code)


def exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else Signals(-code).name


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

    def row(self) -> dict[str, Any]:
        planned = self.planned
        found: dict[str, Any] = {"role": planned.role}
        if planned.role == "shard":
            found |= {"name": planned.name, "shard": planned.shard, "endpoint": planned.endpoint}
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
        self.closing = [keeper for keeper in self.closing if keeper.poll() is None]


def by_slot(children: Iterable[Child]) -> dict[str, list[Child]]:
    found: dict[str, list[Child]] = {}
    for child in children:
        found.setdefault(child.planned.whole, []).append(child)
    return found


def cannot_train(hosts: Sequence[Child]) -> bool:
    """Whether so many hosts of one learner are given up that those which are left are too few."""
    left = [host for host in hosts if not host.given_up]
    needed = hosts[0].planned.hosts_needed
    return len(left) < needed or all(host.planned.host for host in left)


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
    """Read a log from this byte on, or its end if that is long; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, size_of(path) - LOG_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
