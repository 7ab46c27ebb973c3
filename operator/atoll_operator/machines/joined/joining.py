"""The machine of `atoll join`: it enters a job, or is known already, and supervises its learners.

It dials out only: the server of the job, and through its learners the shards. How the job stands it
hears from the server, or from the shards of a cluster; while nothing answers its learners go on as
far as they can.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.atoll_run import terminated_like_interrupted
from atoll_operator.local.folder import run_lock
from atoll_operator.local.folder.run_files import Files, Say, shown
from atoll_operator.local.passes import LEAVING_SECONDS_MAX, POLL_SECONDS
from atoll_operator.local.planning.process_plan import Planned
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.supervision.child import Child, refused
from atoll_operator.local.supervision.process_reports import afterwards, exit_of
from atoll_operator.local.supervision.startable import check_startable
from atoll_operator.local.supervision.supervisor import Supervisor
from atoll_operator.machines.joined import folder as joined_folder
from atoll_operator.machines.joined import hosts
from atoll_operator.machines.joined.credentials import (
    BroughtOptions,
    ShardWatcher,
    check_slots,
    keep,
    machine_of,
)
from atoll_operator.machines.joined.entering import JoinOptions, enter
from atoll_operator.machines.joined.folder import Joined
from atoll_operator.machines.joined.learners import Wanted, dialled, planned
from atoll_operator.machines.joined.watching import Watcher

LINE_SECONDS: Final = 30.0
STARTED: Final = "started again with it, it is the same machine"
FINISHED: Final = "finished"  # what a learner says whose job is over


def join(place: JoinOptions, wanted: Wanted, say: Say) -> RunResult:
    """Until the job is over, or somebody stops it. Raises SpecError for what no waiting mends."""
    folder, machine, _ = enter(place)
    if place.enter_only:
        say(f"machine {machine.name} of job {machine.job}: {', '.join(machine.slots)}")
        say(f"its state is in {shown(folder)}: started with it, it trains")
        return RunResult.COMPLETE
    with run_lock.running(folder, "--state"):
        meeting = hosts.place_of(machine) if machine.hosts > 1 else ""
        watcher = Watcher(folder, machine, say, "" if machine.host else meeting)
        watcher.look()
        if watcher.refusal is not None:
            raise watcher.refusal
        if watcher.reply.state == pb.JOB_COMPLETE:
            say(f"job {machine.job} is complete: its model is in the server's folder")
            return RunResult.COMPLETE
        endpoints = dialled(watcher.reply.endpoints, machine.server) or machine.endpoints
        return _trained(watcher, replace(machine, endpoints=endpoints), wanted, meeting)


def join_with_credentials(place: BroughtOptions, wanted: Wanted, say: Say) -> RunResult:
    """The same for a job of a cluster."""
    folder, machine, had = machine_of(place, time.time())
    with run_lock.running(folder, "--state"):
        keep(folder, place)
        watcher = ShardWatcher(folder, machine, say, source=place.folder)
        watcher.look()
        check_slots(machine, had, watcher.seen)
        meeting = hosts.place_of(machine) if machine.hosts > 1 else ""
        return _trained(watcher, machine, wanted, meeting)


def _trained(watcher: Watcher, machine: Joined, wanted: Wanted, meeting: str = "") -> RunResult:
    folder, say = watcher.folder, watcher.say
    joined_folder.write(folder, machine)
    here = JoinedHost(folder, machine, wanted, meeting)
    check_startable(here.planned())
    say(f"machine {machine.name} of job {machine.job}: {_shown(machine, meeting)}")
    say(f"its state is in {shown(folder)}: {STARTED}")
    watcher.start()
    supervisor = Supervisor(here.known(), Files(folder, say), say)
    return _supervised(JoinedRun(watcher, supervisor, say, here))


def _shown(machine: Joined, meeting: str) -> str:
    slots = ", ".join(machine.slots)
    if machine.hosts == 1:
        return slots
    where = f"meets the others at {meeting}" if meeting else "waits for host 0"
    return f"{slots}, host {machine.host} of {machine.hosts}, {where}"


@dataclass(slots=True)
class JoinedHost:
    """This machine, and where it meets the other hosts of its learner; empty: not known yet."""

    folder: Path
    machine: Joined
    wanted: Wanted
    meeting: str

    def planned(self) -> list[Planned]:
        return planned(self.folder, self.machine, self.wanted, self.meeting)

    def known(self) -> list[Planned]:
        """Those that can be started now."""
        return self.planned() if self.meeting or self.machine.hosts == 1 else []

    def moved(self, said: str) -> bool:
        """Whether the server names another place than before, which is kept."""
        if not self.machine.host or said in ("", self.meeting):
            return False
        self.machine, self.meeting = replace(self.machine, rendezvous=said), said
        joined_folder.write(self.folder, self.machine)
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
    complete_at: float | None = None
    line_at: float = 0.0
    suspended: bool = False

    def advance(self, now: float) -> RunResult | None:
        """One pass; returns how it has ended, None while it goes on."""
        if self.watcher.refusal is not None:
            self.say(f"stopping: {self.watcher.refusal}")
            return RunResult.FAILED
        new = self.watcher.heard_at != self.heard_at
        reply = self.watcher.reply
        if reply.state == pb.JOB_FAILED:
            self.say(f"the job has failed: {reply.why}")
            return RunResult.FAILED
        if self._suspends(reply.state):
            return None
        self.supervisor.steps = reply.length or self.supervisor.steps  # it may be edited
        self._meet(reply.rendezvous, now)
        complete = reply.state == pb.JOB_COMPLETE or self._finished_alone()
        self.supervisor.supervise(
            now,
            final=complete or reply.state == pb.JOB_FINAL,
            complete=complete,
            answered=new and reply.state != pb.JOB_STATE_UNSPECIFIED,
            tick=reply.tick,
        )
        self.heard_at = self.watcher.heard_at
        if not complete:
            self._line(now)
            return self._given_up()
        self.complete_at = now if self.complete_at is None else self.complete_at
        if self._running() and now - self.complete_at < LEAVING_SECONDS_MAX:
            return None
        code = exit_of(self.supervisor.children, allow_refused=False)
        self.say(f"complete{afterwards(self.supervisor.children, code)}")
        return code

    def _meet(self, said: str, now: float) -> None:
        """Start or move the process of a host, whose host 0 is at another place than before."""
        if self.place is None or not self.place.moved(said):
            return
        self.say(f"host 0 of this learner is at {said}")
        planned = self.place.planned()
        self.supervisor.follow(planned, self.supervisor.steps, now)
        for child, new in zip(self.supervisor.children, planned, strict=True):
            if child.process is not None:
                child.process.terminate()  # it waits at the former place
            child.planned = new

    def _suspends(self, state: int) -> bool:
        """Whether the learners are not to run, which have left by then; as the server said last."""
        wanted = state == pb.JOB_SUSPENDED
        if wanted and not self.suspended:
            self.say("the job is suspended: learners leave, and start again when it goes on")
            self.supervisor.stop()
        elif self.suspended and not wanted:
            self.say("the job goes on")
            self.supervisor.begin_again()
        self.suspended = wanted
        return wanted

    def _finished_alone(self) -> bool:
        """The server is gone, and every learner has said that the job is over."""
        return (
            self.watcher.fails
            and bool(self.supervisor.children)
            and all(
                child.process is None and child.record.last and child.record.last.left == FINISHED
                for child in self.supervisor.children
            )
        )

    def _running(self) -> list[Child]:
        return [each for each in self.supervisor.children if not each.done]

    def _given_up(self) -> RunResult | None:
        children = self.supervisor.children
        if not children or not all(each.given_up for each in children):
            return None
        self.say(f"no learner of this machine can go on: {children[0].given_up}")
        return RunResult.FAILED

    def _line(self, now: float) -> None:
        if now - self.line_at >= LINE_SECONDS and self.watcher.reply.tick:
            self.line_at = now
            of = f" of {self.supervisor.steps}" if self.supervisor.steps else ""
            self.say(f"tick {self.watcher.reply.tick}{of}")
            for child in self.supervisor.children:
                if child.process is not None and (why := refused(child)):
                    self.say(f"{child.planned.name} does not train here: {why}")
