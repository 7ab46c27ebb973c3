"""One run of local mode, from a checked job to its summary."""

import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.conditions import ENDED, STORE_LOST
from atoll_operator.api.runfile import run_file
from atoll_operator.api.spec import Job
from atoll_operator.api.support import without_effect_here
from atoll_operator.local import plan, plots, progress, summary
from atoll_operator.local.live import Output, View, view_for
from atoll_operator.local.shards import Poller
from atoll_operator.local.summary import Exit
from atoll_operator.local.supervisor import Supervisor, check_startable, free_ports, write_json
from atoll_protos.errors import SpecError
from atoll_protos.exits import EXITS, ExitCode
from atoll_protos.run import RunFile

POLL_SECONDS = 0.5
CHAOS_SECONDS = 20.0
LEAVING_SECONDS_MAX = 60.0  # for learners and the evaluator, once the job is complete


class JobFailedError(Exception):
    """The job cannot go on: the reason of its condition, and what happened."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class Training:
    """A job on this machine. `out` is its folder, `view` shows how it goes."""

    quorum: int
    out: Path
    supervisor: Supervisor
    poller: Poller
    view: View
    chaos: bool = False
    chaos_at: float = 0.0
    complete_at: float | None = None
    status: Any = None

    def run(self) -> None:
        """Until the job is Complete; raises JobFailedError, or KeyboardInterrupt on Ctrl-C."""
        self.chaos_at = time.monotonic()
        while not self.turn(time.monotonic()):
            time.sleep(POLL_SECONDS)

    def turn(self, now: float) -> bool:
        """Look after the processes and the status once; says whether all is over."""
        seen = self.poller.poll(now)
        registrar = seen.replies[0]
        complete = registrar is not None and registrar.state == pb.SHARD_COMPLETE
        final = all(reply is not None and reply.state in ENDED for reply in seen.replies)
        self.supervisor.look(now, final=final or self.complete_at is not None)
        self.status = seen.status
        write_json(self.out / "status.json", self.status)
        self.view.show(seen, now)
        for reply in seen.replies:
            if reply is not None and reply.state == pb.SHARD_FAILED:
                raise JobFailedError(STORE_LOST, reply.reason)
        self._check_children()
        if complete and self.complete_at is None:
            self.complete_at = now
        if self.chaos and now - self.chaos_at >= CHAOS_SECONDS and not final:
            self.chaos_at = now
            self._kill_one()
        if self.complete_at is None:
            return False
        left = all(child.done for child in self.supervisor.of("learner", "evaluator"))
        return left or now - self.complete_at >= LEAVING_SECONDS_MAX

    def _kill_one(self) -> None:
        """Any process, if one runs: after a while of this, all may wait for their next start."""
        running = [child for child in self.supervisor.children if child.process]
        if running:
            child = random.choice(running)
            self.view.say(f"chaos: kill -9 {child.planned.name}")
            self.supervisor.kill(child)

    def _check_children(self) -> None:
        """A process that was given up stops nobody else, unless the job needs it."""
        learners = self.supervisor.of("learner")
        lost = [child for child in learners if child.trouble]
        shards = [child for child in self.supervisor.of("shard") if child.trouble]
        if not shards and len(learners) - len(lost) >= self.quorum:
            return
        first = (shards or lost)[0]
        row = EXITS.get(first.exit_code or 0)
        reason = (row.reason if row else "") or "ProcessFailed"
        raise JobFailedError(reason, f"{first.planned.name}: {first.trouble}")

    def fail(self, error: JobFailedError) -> None:
        """The last status says why."""
        self.status = progress.failed(self.status, error.reason, str(error))
        write_json(self.out / "status.json", self.status)


def train(job: Job, out: Path, *, resume: bool, output: Output, chaos: bool = False) -> Exit:
    """Run a job in a folder, and write its summary and pictures there."""
    wanted = run_file(job)
    ports = free_ports(job.spec.syncer.shards)
    check_startable(plan.processes(job, out, ports, new=True))
    new = prepare(wanted, out, resume=resume)
    planned = plan.processes(job, out, ports, new=new)
    view = view_for(output, terminal=sys.stdout.isatty())
    for line in without_effect_here(job):
        view.say(line)
    supervisor = Supervisor(planned, out, view.say)
    training = Training(
        quorum=1 if wanted.sync.lockstep else wanted.sync.quorum,
        out=out,
        supervisor=supervisor,
        poller=Poller(job, ports),
        view=view,
        chaos=chaos,
    )
    training.status = progress.status(job, [None] * len(ports))
    begun = time.monotonic()
    with terminated_like_interrupted():
        try:
            code, reason = _outcome(training)
        finally:
            supervisor.stop()
    summarised = summary.summarise(
        out, code.name.title(), time.monotonic() - begun, training.status
    )
    write_json(out / "summary.json", summarised)
    plots.draw(out, summarised["tokens"])
    view.say(f"{reason}: {summary.sentence(summarised)}; see {out}/summary.json, {out}/loss.png")
    return code


def prepare(wanted: RunFile, out: Path, *, resume: bool) -> bool:
    """Make the folder and its run file; says whether the run is new.

    Raises SpecError when the folder holds a run that `job` is not, or that nobody asked to resume.
    """
    path = out / "run.json"
    if path.exists():
        if not resume:
            raise SpecError("--out", f"{out} holds a run", "give another folder, or add --resume")
        if RunFile.from_json(path.read_text(encoding="utf-8")).hash != wanted.hash:
            raise SpecError(
                "spec.sync",
                f"differs from the run in {out} (or seed, or shards do)",
                "resume with the manifest that it was started with",
            )
    new = not path.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted.to_json(), encoding="utf-8")
    except OSError as error:
        raise SpecError("--out", f"{out}: {error.strerror}", "give a writable folder") from error
    return new


def _outcome(training: Training) -> tuple[Exit, str]:
    try:
        with training.view:
            training.run()
    except JobFailedError as error:
        training.fail(error)
        bad_input = error.reason == EXITS[ExitCode.BAD_INPUT].reason
        if bad_input:
            sys.stderr.write(f"{error}\n")
        return (Exit.BAD_INPUT if bad_input else Exit.FAILED), f"failed ({error})"
    except KeyboardInterrupt:
        return Exit.INTERRUPTED, "interrupted, go on with --resume"
    return Exit.COMPLETE, "complete"


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM is obeyed as Ctrl-C is; once out of here, neither cuts the clean end short."""

    def interrupt(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
