"""The machine of `atoll join`: it enters a job, or is known already, and supervises its learners.

It dials out only: the server of the job, and the shards, which its watcher and its learners ask.
While nothing answers its learners go on as far as they can.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from atoll_operator.local import run_folder, startable
from atoll_operator.local.atoll_run import terminated_like_interrupted
from atoll_operator.local.child import refused
from atoll_operator.local.local_status import JobState
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files, Say, shown
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.startable import afterwards, check_startable, exit_of
from atoll_operator.local.supervisor import POLL_SECONDS, Supervisor
from atoll_operator.machines import bundle as bundles
from atoll_operator.machines.bundle import Bundle
from atoll_operator.machines.joined.entering import JoinOptions, check_slots, enter
from atoll_operator.machines.joined.learners import Wanted, check_command, place_of, planned
from atoll_operator.machines.joined.watching import Brought, Watcher

LINE_SECONDS: Final = 30.0
REASON_LETTERS_MAX: Final = 300  # that the server is told of each learner
STARTED: Final = "started again with it, it is the same machine"
FINISHED: Final = "finished"  # what a learner says whose job is over


def join(place: JoinOptions, wanted: Wanted, say: Say) -> RunResult:
    """Until the job is over, or somebody stops it. Raises SpecError for what no waiting mends."""
    if not place.enter_only:
        check_command(wanted, place.learners or 1)  # before it takes a slot
    entered = enter(place, time.time())
    folder, machine = entered.folder, entered.bundle
    if place.enter_only:
        say(f"machine {machine.name} of job {machine.job}: {', '.join(machine.slots)}")
        say(f"its state is in {shown(folder)}: started with it, it trains")
        return RunResult.COMPLETE
    with run_folder.running(folder, "--state"):
        if isinstance(entered.source, Brought):
            entered.source.keep(folder)
        meeting = place_of(machine) if machine.hosts > 1 else ""
        watcher = Watcher(folder, machine, say, entered.source, "" if machine.host else meeting)
        watcher.look()
        if watcher.refusal is not None:
            raise watcher.refusal
        if watcher.now.state is JobState.COMPLETE:
            say(f"job {machine.job} is complete: its model is in the server's folder")
            return RunResult.COMPLETE
        machine = watcher.bundle
        check_slots(machine, entered.before, watcher.seen)
        bundles.write(folder, machine)
        meeting = place_of(machine) if machine.hosts > 1 else ""
        here = JoinedHost(folder, machine, wanted, meeting)
        check_startable(here.planned())
        say(f"machine {machine.name} of job {machine.job}: {_shown(machine, meeting)}")
        say(f"its state is in {shown(folder)}: {STARTED}")
        watcher.start()
        supervisor = Supervisor(here.known(), Files(folder, say), say)
        return _supervised(JoinedRun(watcher, supervisor, say, here))


def _shown(machine: Bundle, meeting: str) -> str:
    slots = ", ".join(machine.slots)
    if machine.hosts == 1:
        return slots
    where = f"meets the others at {meeting}" if meeting else "waits for host 0"
    return f"{slots}, host {machine.host} of {machine.hosts}, {where}"


@dataclass(slots=True)
class JoinedHost:
    """This machine, and where it meets the other hosts of its learner; empty: not known yet."""

    folder: Path
    machine: Bundle
    wanted: Wanted
    meeting: str

    def planned(self) -> list[Planned]:
        return planned(self.folder, self.machine, self.wanted, self.meeting)

    def known(self) -> list[Planned]:
        """Those that can be started now."""
        return self.planned() if self.meeting or self.machine.hosts == 1 else []

    def moved(self, said: str) -> bool:
        """Whether the server names another place than before."""
        if not self.machine.host or said in ("", self.meeting):
            return False
        self.machine, self.meeting = replace(self.machine, rendezvous=said), said
        return True


def _supervised(run: "JoinedRun") -> RunResult:
    with terminated_like_interrupted() as again_if_lost:
        try:
            while (result := run.advance(time.monotonic())) is None:
                again_if_lost()
                run.supervisor.wait(time.monotonic(), POLL_SECONDS)
        except KeyboardInterrupt:
            run.say("stopping: learners leave in order; started again, this machine goes on")
            result = RunResult.INTERRUPTED
        finally:
            run.watcher.stop()
            run.supervisor.stop()
    return result


@dataclass(slots=True)
class JoinedRun:
    """The passes of this machine. Times are monotonic seconds.

    An answer from before a learner ended says nothing of its end, so each counts in one pass only.
    """

    watcher: Watcher
    supervisor: Supervisor
    say: Say
    place: JoinedHost | None = None
    heard_at: float | None = None  # of the last answer that a pass has known
    line_at: float = 0.0

    def advance(self, now: float) -> RunResult | None:
        """One pass; returns how it has ended, None while it goes on."""
        supervisor, job = self.supervisor, self.watcher.now
        if self.watcher.refusal is not None:
            self.say(f"stopping: {self.watcher.refusal}")
            return RunResult.FAILED
        if job.state is JobState.FAILED:
            self.say(f"the job has failed: {job.why}")
            return RunResult.FAILED
        if self._suspends(job.state):
            return None
        self._meet(self.watcher.bundle.rendezvous, now)
        if self._finished_alone():
            job = replace(job, state=JobState.COMPLETE)
        supervisor.supervise(now, job, new=self.watcher.heard_at != self.heard_at)
        self.heard_at = self.watcher.heard_at
        gone = startable.refused(supervisor.children)
        self.watcher.refused = {slot: why[:REASON_LETTERS_MAX] for slot, why in gone.items()}
        if supervisor.complete_at is None:
            self._line(now)
            return self._given_up()
        if supervisor.waits(now):
            return None
        code = exit_of(supervisor.children, allow_refused=False)
        self.say(f"complete{afterwards(supervisor.children, code)}")
        return code

    def _meet(self, said: str, now: float) -> None:
        """Start or move the process of a host, whose host 0 is at another place than before."""
        if self.place is None or not self.place.moved(said):
            return
        self.say(f"host 0 of this learner is at {said}")
        planned = self.place.planned()
        self.supervisor.follow(planned, now)
        for child, new in zip(self.supervisor.children, planned, strict=True):
            if child.process is not None:
                child.process.terminate()  # it waits at the former place
            child.planned = new

    def _suspends(self, state: JobState) -> bool:
        """Whether the learners are not to run, which have left by then; as the shards said last."""
        wanted = state is JobState.SUSPENDED
        if wanted and not self.supervisor.suspended:
            self.say("the job is suspended: learners leave, and start again when it goes on")
            self.supervisor.suspend()
        elif self.supervisor.suspended and not wanted:
            self.say("the job goes on")
            self.supervisor.resume()
        return wanted

    def _finished_alone(self) -> bool:
        """Nothing answers, and every learner has said that the job is over."""
        return (
            self.watcher.fails
            and bool(self.supervisor.children)
            and all(
                child.process is None and child.record.last and child.record.last.left == FINISHED
                for child in self.supervisor.children
            )
        )

    def _given_up(self) -> RunResult | None:
        children = self.supervisor.children
        if not children or not all(child.given_up for child in children):
            return None
        self.say(f"no learner of this machine can go on: {children[0].given_up}")
        self.watcher.look()  # nobody asks any more, so what is refused goes now
        return RunResult.FAILED

    def _line(self, now: float) -> None:
        if now - self.line_at >= LINE_SECONDS and self.watcher.now.tick:
            self.line_at = now
            of = f" of {self.supervisor.steps}" if self.supervisor.steps else ""
            self.say(f"tick {self.watcher.now.tick}{of}")
            for child in self.supervisor.children:
                if child.process is not None and (why := refused(child)):
                    self.say(f"{child.planned.name} does not train here: {why}")
