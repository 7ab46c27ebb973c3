"""Starts the processes of `atoll run`, `serve` and `join`, again when they end, and stops them all.

A process that ends is started again, whatever its exit code, for the same slot or shard and as a
new instance. A child is in one of these states; `supervise` takes every arrow:

    planned --> running --> waiting (until start_at) --> running ...
                   |           |
                   |           +--> over      the job is complete
                   +--> given up   another start cannot help (`why_given_up`)
                   +--> done       exit code 0 once the job is final
                   +--> over       it failed once the job was final

Giving up stops no other process, but those of the same learner, unless its other hosts are enough
(spec.learner.hostsMin). The hosts of a learner start again by themselves: the launchers of the
others start their processes in place, and meet it. A learner that says that the job is finished
knows it before the run does: what is done about its end waits until all shards have answered again.

A learner gets a new UID at every start, in place of a pod's. A process of a shard keeps its UID,
because its folder stays: to the log in that folder the next one is the same, and it may take over
at once (rule 20). Only the first start of a new run has `--new`.

A person may change which processes there are (`follow`). One that is none of the job any more gets
SIGTERM and leaves; a new one of its name starts when it has gone.

SIGTERM goes to learners first, so that their last messages reach shards that still listen, and to
processes that wait for a shard before the one that has it, so that none takes it over. Children
run in sessions of their own, so Ctrl-C reaches `atoll run` alone. Where the system has `setpriv`,
children also end when `atoll run` itself is killed.
"""

import contextlib
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

from atoll_operator.local import log_keeper
from atoll_operator.local.child import (
    Child,
    cannot_train,
    end_of,
    exit_text,
    ranks_ended,
    returned,
    telemetry_of,
    why_ended,
    why_given_up,
    words_of,
)
from atoll_operator.local.local_status import JobNow, JobState
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files, Growing, Say, shown, size_of
from atoll_operator.local.startable import environment
from atoll_protos.environment import Env
from atoll_protos.exits import ExitCode, is_permanent

ROLES = ("learner", "evaluator", "shard")  # in the order in which they are stopped
BACKOFF_SECONDS = (0.5, 30.0)  # of the second restart in a row, and the most
STOP_SECONDS = 8.0
POLL_SECONDS = 0.5
LEAVING_SECONDS_MAX = 600.0  # for learners and the evaluator, once the job is complete


class Supervisor:
    """The children of one run; `report` shows one line to the user.

    `umask` is of those that may write for others, too; -1: that of this process.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        files: Files,
        report: Say,
        umask: int = -1,
    ) -> None:
        self.files, self.report, self._umask = files, report, umask
        self._written = self._final = False
        self._tick = 0
        self.steps = 0  # the length of the job; 0: not known
        self.suspended = False
        self.complete_at: float | None = None
        self.children = [self._child(process) for process in planned]
        self.leaving: list[Child] = []  # of the job no more; `start_at`: when they are killed

    def follow(self, planned: Iterable[Planned], now: float) -> None:
        """From now on these are the job's processes; those that are none any more leave."""
        self._written = False
        wanted = {process.name: process for process in planned}
        known = {child.planned.name: child for child in self.children}
        self.children = [
            known.get(name) or self._child(process) for name, process in wanted.items()
        ]
        for name in known.keys() - wanted.keys():
            child = known[name]
            if child.process is not None:
                child.process.terminate()
                child.start_at = now + STOP_SECONDS
                self.leaving.append(child)

    def suspend(self) -> None:
        """Stop all processes, and start none until `resume`."""
        self.stop()
        self.suspended = True

    def resume(self) -> None:
        """Start each process as if it had never ended."""
        self.suspended = False
        again = [self._child(child.planned) for child in self.children]
        for new, old in zip(again, self.children, strict=True):
            new.restarts = old.restarts
        self.children = again

    def _child(self, planned: Planned) -> Child:
        log = self.files.out / "logs" / f"{planned.name}.log"
        return Child(planned, log, telemetry_of(planned, self.files.out))

    def supervise(self, now: float, job: JobNow, *, new: bool = True) -> None:
        """Note what has ended and start what is due.

        `now` is in monotonic seconds; `new`: all shards have just said how the `job` stands. Once
        it is complete only shards are started again, for learners that have yet to take its values.
        """
        if job.state is JobState.COMPLETE and self.complete_at is None:
            self.complete_at = now
        complete = self.complete_at is not None
        self._final, self._tick = complete or job.state is JobState.FINAL, job.tick
        self.steps = job.length or self.steps  # it may be edited
        self._let_leave(now)
        there = {child.planned.name for child in self.leaving}
        for child in self.children:
            self._report_ranks(child)
            if child.start_at == math.inf and new and job.state is not JobState.UNKNOWN:
                self._judge(child, now)
            if child.process is not None and (code := child.process.poll()) is not None:
                self._ended(child, code, now)
            last, waits = child.record.last, child.process is None and not child.done
            if complete and waits and last is not None and child.planned.role != "shard":
                child.after, child.ended = why_ended(last), ""
            wanted = not child.done or (not self._final and not child.given_up)
            due = now >= child.start_at and child.planned.name not in there
            if child.process is None and wanted and due:
                self._start(child, now)
        if not self._written:
            self._write()

    def last_ones(self) -> list[Child]:
        """Those other than shards that have not ended for good."""
        return [child for child in self.in_roles(*ROLES[:-1]) if not child.done]

    def waits(self, now: float, *, also: bool = False) -> bool:
        """Whether a complete job waits for them, or for what is `also` to end."""
        since = now if self.complete_at is None else self.complete_at
        return (also or bool(self.last_ones())) and now - since < LEAVING_SECONDS_MAX

    def _let_leave(self, now: float) -> None:
        """Kill those that leave when their time is over, and forget those that have gone."""
        before = self.leaving
        for child in before:
            assert child.process is not None
            if child.process.poll() is None and now >= child.start_at:
                child.process.kill()
        self.leaving = [x for x in before if x.process is not None and x.process.poll() is None]
        for child in before:
            if child not in self.leaving:
                child.close_log()
                self._written = False

    def wait(self, now: float, seconds_max: float) -> None:
        """Return when a process ends or is due to start, at the latest after `seconds_max`."""
        seconds, poll = seconds_max, select.poll()
        with contextlib.ExitStack() as descriptors:
            for child in (*self.children, *self.leaving):
                if child.process is not None:
                    try:
                        descriptor = os.pidfd_open(child.process.pid)
                    except ProcessLookupError:  # who has killed it has seen its end
                        return
                    descriptors.callback(os.close, descriptor)
                    poll.register(descriptor, select.POLLIN)
                elif child.start_at > now:
                    seconds = min(seconds, child.start_at - now)
            poll.poll(1000 * seconds)

    def in_roles(self, *roles: str) -> list[Child]:
        return [child for child in self.children if child.planned.role in roles]

    def meant(self, name: str) -> list[Child]:
        """Return the processes of a learner, or the one with this name."""
        found = [child for child in self.children if child.planned.whole == name]
        return found or [child for child in self.children if child.planned.name == name]

    def kill(self, child: Child) -> None:
        """kill -9, as `--chaos` does; a learner with all its hosts."""
        for host in [child, *self._other_hosts(child)]:
            if host.process is not None:
                host.process.kill()

    def stop(self, roles: Sequence[str] = ROLES) -> None:
        """SIGTERM to one role after the other, SIGKILL to what does not end."""
        for role in roles:
            _stop([*self.in_roles(role), *self.leaving])
        for child in (*self.in_roles(*roles), *self.leaving):
            child.process = None
            child.close_log()
        self.leaving = []
        self._write()

    def _start(self, child: Child, now: float) -> None:
        planned, self._written = child.planned, False
        child.restarts += 1
        # To a shard's log its next process is the same pod, since the folder stays (rule 20).
        pod = f"{planned.name}-{'local' if planned.role == 'shard' else os.urandom(4).hex()}"
        child.instance = f"{pod}-{os.urandom(4).hex()}"
        command = [word for word in planned.command if word != "--new" or child.restarts == 0]
        child.telemetry_bytes, child.log_bytes = size_of(child.telemetry), size_of(child.log)
        child.lines = Growing(child.log, child.log_bytes)
        child.started_at, child.exit_code, child.after = now, None, ""
        try:
            self._spawn(child, command, pod)
        except OSError as error:  # no folder, no memory, too many processes: later it may go
            self.report(f"{planned.name} cannot be started now: {error}")
            self._ended(child, ExitCode.TRY_AGAIN, now)

    def _spawn(self, child: Child, command: Sequence[str], pod: str) -> None:
        planned = child.planned
        child.keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", log_keeper.__file__, child.log],
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
                umask=-1 if planned.private else self._umask,
            )

    def _ended(self, child: Child, code: int, now: float) -> None:
        child.process, self._written = None, False
        child.close_log()
        self._report_ranks(child)
        others = [host.exit_code for host in self._other_hosts(child)]
        if self._final and ExitCode.FINAL in others:
            code = ExitCode.FINAL  # the learner has done its part, however its last host ends
        child.exit_code = code
        if child.given_up:
            return
        end = end_of(child, code, now - child.started_at)
        early = "" if self._final else returned(end, child.planned.role, self._tick, self.steps)
        child.record = child.record.after(end, returned=bool(early))
        if end.left == "finished" and not self._final:
            child.start_at = math.inf
        else:
            self._judge(child, now, early)

    def _judge(self, child: Child, now: float, early: str = "") -> None:
        """Start a process that has ended again, or leave it ended; report which and why."""
        end, name = child.record.last, child.planned.name
        assert end is not None
        code = end.code
        child.start_at = now + backoff_seconds(child.record.attempt)
        complete = self.complete_at is not None
        over = (complete or (self._final and end.failed)) and not is_permanent(code)
        if over and child.planned.role != "shard" and code != ExitCode.FINAL:
            child.after, child.ended = why_ended(end), ""
            return
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

    def _report_ranks(self, child: Child) -> None:
        if child.planned.role != "learner" or child.lines is None:
            return
        with contextlib.suppress(OSError):
            for said in ranks_ended(child.lines.read()):
                self.report(f"{child.planned.name}: {said}; log: {shown(child.log)}")

    def _other_hosts(self, child: Child) -> list[Child]:
        slot = child.planned.slot
        same = [other for other in self.children if slot and other.planned.slot == slot]
        return [other for other in same if other is not child]

    def _give_up_others(self, child: Child) -> None:
        """Give up the hosts that would wait for ever for one that they need and that is lost."""
        others = self._other_hosts(child)
        going_on = [other for other in others if not other.given_up]
        for host in going_on if cannot_train([child, *others]) else ():
            host.given_up, host.given_up_with = child.given_up, child.planned.name
            if host.process is not None:
                host.process.terminate()

    def _write(self) -> None:
        rows = [child.row() for child in (*self.children, *self.leaving)]
        self._written = self.files.write_json("processes.json", rows)


def _stop(children: Iterable[Child]) -> None:
    running = [child.process for child in children if child.process is not None]
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


def backoff_seconds(attempt: int) -> float:
    """How long to wait before restart number `attempt` in a row, from 1: the first is at once."""
    low, high = BACKOFF_SECONDS
    return 0.0 if attempt == 1 else min(high, low * 2 ** min(attempt - 2, 16))


def _ends_with_parent() -> list[str]:
    """Return the words that give a command SIGTERM when `atoll run` dies; else empty."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
