"""Starts the processes of a local run, starts them again when they end, and stops them all.

Theory of operation
-------------------
The supervisor does for processes what Kubernetes does for a job's pods: a process that ends is
started again, whatever its exit code, for the same slot or shard and as a new instance. So shards
and learners behave the same under both executors. It decides nothing about the job.

A child is in one of these states. `supervise` takes every arrow; the run calls it every 0.5 s, and
`wait` returns earlier when a process has ended or is due to start:

    planned --> running --> waiting (until start_at) --> running ...
                   |           |
                   |           +--> over      the job is complete
                   +--> given up   another start cannot help (`ends.why_given_up`)
                   +--> done       exit code 0 once the job is final
                   +--> over       it failed once the job was final

* Back-off: the first restart is at once; those that follow it wait 0.5, 1, 2, ... 30 s. It begins
  again after a start that lasted a minute.
* Every end but a silent, expected one is told at once: how it ended, the last words of its log
  (`api.words`), what is done about it, and where the log is. `ends.py` says which of them counts
  towards giving up.
* A rank of a learner that has ended is told by its launcher's line in the log, also where the
  launcher starts it again in place and goes on.
* Giving up stops no other process, but those of the same learner. The run decides whether the job
  can go on without it (run.Training).
* What has ended stays ended. Once the job is final another start cannot help a learner or the
  evaluator that fails: its script does something wrong behind its loop. Once the job is complete
  none of them is started again, whatever its end. The last line of the run tells of them (`after`).
* Until the job is final, exit code 0 of a learner says only that it has stopped: its slot
  still has work, so it is started again, and its user is told that the script returned too early.

A learner of several hosts has a child for each, as it has a pod for each in a cluster. They start
again each by itself: the launchers of the others start their processes in place, and meet it. The
one whose process failed ends with its exit code, so a failure counts once. Where a host is given
up, so are the others, unless they are enough to go on (spec.learner.hostsMin).

Identity. In a cluster, the syncer tells a new process from an old one by its pod's UID and by the
random name of each start. Here a learner gets a new UID at every start, as a pod that was made
again. A shard keeps its UID, because its folder stays: to the log in that folder the next process
is the same shard, and it may take over at once (docs/protocol.md, rule 20). Only the first start
of a new run has `--new`.

Stopping. SIGTERM goes to learners first, so that their last messages reach shards that still
listen; then to the evaluator and the shards. What has not ended after 8 s is killed. Children run
in sessions of their own, so Ctrl-C reaches `atoll run` alone and it keeps this order. Where the
system has `setpriv`, children also end when `atoll run` itself is killed.

The files that it writes: processes.json, as a whole after every change. logs/NAME.log is written by
a small program that each start of a process writes to (`keeper`), so that no full disk ends it.
"""

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atoll_operator.api.words import last_words
from atoll_operator.local import keeper
from atoll_operator.local.commands import environment
from atoll_operator.local.ends import (
    End,
    Record,
    exit_text,
    ranks_ended,
    returned,
    why_ended,
    why_given_up,
    words_of,
)
from atoll_operator.local.files import Files, Growing, shown, size_of
from atoll_operator.local.plan import Planned
from atoll_operator.local.summary import read_lines
from atoll_protos.environment import Env
from atoll_protos.exits import ExitCode, is_permanent

ROLES = ("learner", "evaluator", "shard")  # in the order in which they are stopped
BACKOFF_SECONDS = (0.5, 30.0)  # of the second restart in a row, and the most
STOP_SECONDS = 8.0
PORTS = range(20_000, 29_000)  # below those of outgoing connections and of Kubernetes' services
FINISHED_SECONDS = 2.0  # for the job to be final too, after a learner that says that it is
LOG_SECONDS_MAX = 2.0  # for the rest of a log, which others who write to it may hold open
LOG_BYTES = 64 * 1024  # of the end of a log that are read for the last words
TELEMETRY_BYTES = 1 << 20  # of the end of the telemetry of a start, which may have lasted for days


@dataclass(slots=True, kw_only=True)
class Child:
    """One planned process and its present start. Times are monotonic seconds."""

    planned: Planned
    log: Path
    telemetry: Path | None = None  # what it writes of its steps or evaluations
    process: subprocess.Popen[bytes] | None = None
    keeper: subprocess.Popen[bytes] | None = None  # of its log
    instance: str = ""
    restarts: int = -1
    started_at: float = 0.0
    start_at: float = 0.0
    log_bytes: int = 0  # of the log, and of the telemetry, that are of earlier starts
    telemetry_bytes: int = 0
    lines: Growing | None = None  # of the log, as far as they were looked at
    exit_code: int | None = None  # of the last start
    record: Record = field(default_factory=Record)
    ended: str = ""  # how its last start ended, in words; empty if that is no trouble
    given_up: str = ""  # why it is not started again
    given_up_with: str = ""  # the host of its learner that was given up, if it was another one
    after: str = ""  # how it ended otherwise than in order, once the job was final

    @property
    def done(self) -> bool:
        """It ended with exit code 0, or is not started again."""
        ended = bool(self.given_up or self.after) or self.exit_code == ExitCode.FINAL
        return self.process is None and ended

    def close_log(self) -> None:
        """Wait until its last words are in its log; not for long for what it has left behind."""
        if self.keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.keeper.wait(LOG_SECONDS_MAX)
            self.keeper = None


def by_slot(children: Iterable[Child]) -> dict[str, list[Child]]:
    """The hosts of each learner."""
    found: dict[str, list[Child]] = {}
    for child in children:
        found.setdefault(child.planned.whole, []).append(child)
    return found


def cannot_train(hosts: Sequence[Child]) -> bool:
    """Whether so many hosts of one learner are given up that those which are left are too few."""
    left = [each for each in hosts if not each.given_up]
    needed = hosts[0].planned.hosts_needed
    return len(left) < needed or all(each.planned.host for each in left)


class Supervisor:
    """The children of one run; `report` shows one line to the user."""

    def __init__(
        self,
        planned: Iterable[Planned],
        files: Files,
        report: Callable[[str], None],
        steps: int | None = None,
    ) -> None:
        self.files, self.report, self.steps = files, report, steps
        self._written = False
        out = files.out
        self.children = [
            Child(
                planned=each,
                log=out / "logs" / f"{each.name}.log",
                telemetry=telemetry_of(each, out),
            )
            for each in planned
        ]

    def supervise(self, now: float, *, final: bool, complete: bool = False, tick: int = 0) -> bool:
        """Note what has ended and start what is due; returns whether anything changed.

        `now` is in monotonic seconds, `tick` the job's clock. Until the job is `final`, a process
        that ended with exit code 0 has only stopped, and is started again. Once it is `complete`,
        only shards are, for learners that have yet to take its values.
        """
        changed = False
        for child in self.children:
            self._tell_of_ranks(child)
            if child.process is not None and (code := child.process.poll()) is not None:
                self._ended(child, code, now, tick=tick, final=final, complete=complete)
                changed = True
            last, waits = child.record.last, child.process is None and not child.done
            if complete and waits and last is not None and child.planned.role != "shard":
                child.after, child.ended = why_ended(last), ""
            wanted = not child.done or (not final and not child.given_up)
            if child.process is None and wanted and now >= child.start_at:
                self._start(child, now)
                changed = True
        if changed or not self._written:
            self._write()
        return changed

    def wait(self, now: float, seconds_max: float) -> None:
        """Return when a process ends or is due to start, at the latest after `seconds_max`."""
        due = [each.start_at - now for each in self.children if not each.process]
        poll = select.poll()
        with contextlib.ExitStack() as descriptors:
            for child in self.children:
                if child.process is not None:
                    descriptor = os.pidfd_open(child.process.pid)
                    descriptors.callback(os.close, descriptor)
                    poll.register(descriptor, select.POLLIN)
            poll.poll(1000 * min([seconds_max, *(left for left in due if left > 0)]))

    def in_roles(self, *roles: str) -> list[Child]:
        """The processes in these roles."""
        return [child for child in self.children if child.planned.role in roles]

    def kill(self, child: Child) -> None:
        """kill -9, as `--chaos` does; a learner with all its hosts."""
        for each in [child, *self._other_hosts(child)]:
            if each.process is not None:
                each.process.kill()

    def stop(self, roles: Sequence[str] = ROLES) -> None:
        """Stop all of these roles, one after the other: SIGTERM, SIGKILL to what does not end."""
        for role in roles:
            running = [child.process for child in self.in_roles(role) if child.process is not None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            for process in running:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for child in self.in_roles(*roles):
            child.process = None
            child.close_log()
        self._write()

    def _start(self, child: Child, now: float) -> None:
        planned = child.planned
        child.restarts += 1
        # To a shard's log its next process is the same pod, since the folder stays (rule 20).
        pod = f"{planned.name}-{'local' if planned.role == 'shard' else os.urandom(4).hex()}"
        child.instance = f"{pod}-{os.urandom(4).hex()}"
        command = [word for word in planned.command if word != "--new" or child.restarts == 0]
        child.telemetry_bytes, child.log_bytes = size_of(child.telemetry), size_of(child.log)
        child.lines = Growing(child.log, child.log_bytes)
        child.keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, child.log],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert child.keeper.stdin is not None
        with child.keeper.stdin as log:
            child.process = subprocess.Popen(
                [*_ends_with_parent(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=planned.folder or None,
                env={**environment(planned), Env.UID: pod, Env.INSTANCE: child.instance},
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
        child.started_at, child.exit_code, child.after = now, None, ""

    def _ended(
        self, child: Child, code: int, now: float, *, tick: int, final: bool, complete: bool
    ) -> None:
        child.process = None
        child.close_log()
        self._tell_of_ranks(child)
        if final and any(each.exit_code == ExitCode.FINAL for each in self._other_hosts(child)):
            code = ExitCode.FINAL  # the learner has done its part, however its last host ends
        child.exit_code = code
        if child.given_up:
            return
        end = _end_of(child, code, now - child.started_at)
        role, name = child.planned.role, child.planned.name
        early = "" if final else returned(end, role, tick, self.steps)
        child.record = child.record.after(end, returned=bool(early))
        over = (complete or (final and end.failed)) and not is_permanent(code)
        if over and role != "shard" and code != ExitCode.FINAL:
            child.after, child.ended = why_ended(end), ""
            return
        wait = backoff_seconds(child.record.attempt)
        child.start_at = now + (max(wait, FINISHED_SECONDS) if end.left == "finished" else wait)
        child.given_up = why_given_up(child.record, early)
        how, log = exit_text(code), f"log: {shown(child.log)}"
        child.ended = early
        if child.given_up:
            child.ended = f"is given up ({how}): {child.given_up}"
            self.report(f"{name} {child.ended}; {log}")
            self._give_up_others(child)
        elif early:
            self.report(f"{name} {early}; it is started again; {log}")
        elif end.failed:
            child.ended = f"ended ({how}) and is started again: {words_of(end)}"
            self.report(f"{name} {child.ended}; {log}")
        elif code != ExitCode.FINAL:
            words = f": {end.words}; {log}" if code > 0 and end.words.text else ""
            self.report(f"{name} ended ({how}) and is started again{words}")

    def _tell_of_ranks(self, child: Child) -> None:
        if child.planned.role != "learner" or child.lines is None:
            return
        with contextlib.suppress(OSError):
            for said in ranks_ended(child.lines.read()):
                self.report(f"{child.planned.name}: {said}; log: {shown(child.log)}")

    def _other_hosts(self, child: Child) -> list[Child]:
        """The children of the same learner."""
        if not child.planned.slot:
            return []
        same = [each for each in self.children if each.planned.slot == child.planned.slot]
        return [each for each in same if each is not child]

    def _give_up_others(self, child: Child) -> None:
        """A learner that has lost a host for good would wait for it for ever, if it needs it."""
        others = self._other_hosts(child)
        if not cannot_train([child, *others]):
            return
        for each in others:
            if not each.given_up:
                each.given_up, each.given_up_with = child.given_up, child.planned.name
                if each.process is not None:
                    each.process.terminate()

    def _write(self) -> None:
        rows = [
            {
                "role": child.planned.role,
                **_name(child.planned),
                "pid": child.process.pid if child.process else None,
                "instance": child.instance,
                "restarts": child.restarts,
                **_endpoint(child.planned),
            }
            for child in self.children
        ]
        self._written = self.files.write_json("processes.json", rows)


def _endpoint(planned: Planned) -> dict[str, str]:
    """Where a shard listens; of a process that is none, nothing."""
    if planned.role != "shard":
        return {}
    return {"endpoint": planned.env[Env.ENDPOINTS].split(",")[_shard(planned)]}


def backoff_seconds(attempt: int) -> float:
    """How long to wait before restart number `attempt` in a row, from 1: the first is at once.

    A process that was killed after hours is back soon, as under kubelet; one that ends again and
    again waits 0.5 s and then twice as long each time, up to 30 s.
    """
    low, high = BACKOFF_SECONDS
    return 0.0 if attempt == 1 else min(high, low * 2 ** min(attempt - 2, 16))


def _ends_with_parent() -> list[str]:
    """The start of a command whose process gets SIGTERM when `atoll run` dies; else empty."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []


def _name(planned: Planned) -> dict[str, str | int]:
    """Which process it is, in processes.json."""
    if planned.role == "shard":
        return {"shard": _shard(planned)}
    return {"slot": planned.whole} | ({"host": planned.host} if planned.slot else {})


def _shard(planned: Planned) -> int:
    return int(planned.name.removeprefix("shard-"))


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of the loopback interface that are free at the moment.

    A process listens on its port only seconds later. So none is of those that the system gives to
    outgoing connections (on Linux from 32768 on): one of these could have it by then.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) >= count:
            return tuple(found)
    raise OSError(f"only {len(found)} of the ports from {PORTS[0]} to {PORTS[-1]} are free")


def _end_of(child: Child, code: int, seconds: float) -> End:
    """How the present start ended, as its log and its telemetry say."""
    start = max(child.telemetry_bytes, size_of(child.telemetry) - TELEMETRY_BYTES)
    lines = read_lines(child.telemetry, start) if child.telemetry else []
    # A learner's lines count its own steps; an evaluator's do not, and each is an evaluation.
    steps = [line.get("t_m", 1) for line in lines if "event" not in line]
    lefts = [str(line.get("reason", "")) for line in lines if line.get("event") == "end"]
    return End(
        code=code,
        words=last_words(tail(child.log, child.log_bytes)),
        worked=any(steps),
        own_steps=max(steps, default=0),
        left=lefts[-1] if lefts else "",
        seconds=seconds,
    )


def has_left(child: Child) -> bool:
    """Whether the present start has left the job, so that what runs is code behind its loop."""
    return bool(_end_of(child, ExitCode.FINAL, 0.0).left)


def telemetry_of(planned: Planned, out: Path) -> Path | None:
    """The file that grows with a process's work; None for a shard."""
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
