"""One run of `atoll run`, from a checked job to its summary.

Theory of operation
-------------------
`train` does in one process what the operator does in a cluster; processes take the place of pods.
It is a loop with one thread. Every 0.5 s, and at once when a process has ended or is due to start,
one pass of `Training.advance` does, in this order:

    1. poll       ask every shard for its Status (shards.Poller); a silent one counts as None
    2. supervise  note processes that have ended, start those that are due (supervisor.Supervisor);
                  shards read in slots.json which learners are given up, and wait for them no more
    3. write      status.json, as a whole, so that a reader never sees half of it
    4. show       the live table or a line (live.View)
    5. judge      raise JobFailedError if the job cannot go on; say whether everything is over

The pass decides from what the shards said in step 1 and from exit codes alone. It remembers
nothing that a later pass could not find out again, except when the job became complete.

A run goes through these states:

    starting --> training --> final --> complete --> over
        |           |           |
        +-----------+-----------+--> failed     (JobFailedError)
        +-----------+-----------+--> interrupted (Ctrl-C or SIGTERM)

    final      every shard has had its last rounds. Until then a learner that ends with exit code
               0 has only stopped, for example after SIGTERM, and is started again.
    complete   the registrar (shard 0) says that the model is exported. From then on learners and
               the evaluator have 60 s to take their last values and end by themselves. None of
               them is started again, and nothing makes the job fail any more: how they end is in
               the last line (`afterwards`), and in the exit code.
    failed     a shard has lost its state, or so many processes were given up that the quorum is
               out of reach, or all learners failed with the same words (`ends.alike`): one
               learner of several that refuses its input ends nothing. A job that is final needs
               no learners, so none of their ends can make it fail any more.

However it ends, the supervisor stops all processes, learners before shards, and then the summary
and the pictures are made from the files of the run folder alone. A second Ctrl-C during this does
not cut it short.

The run folder is the run. `prepare` refuses a folder that holds a run, unless `--resume` is given
and the manifest's run hash equals that of the folder's run.json; then the shards go on from their
logs under commits/, with new processes. Length, number of learners and the template are not part
of the hash, so they may differ.

A second `atoll run` in the same folder is refused (`folder.running`). Beside the loop, a thread
draws the curves of the run from its files (`recorder`); the run does not depend on it.

A new run passes `--new` to its shards. It promises that no process of this run can exist yet, so
the registrar may start the run at once; with `--resume` it must first ask the other shards.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.facts import ENDED, late_work
from atoll_operator.api.reasons import STORE_LOST
from atoll_operator.api.runfile import expected, run_file
from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status, missing
from atoll_operator.api.support import without_effect_here
from atoll_operator.local import folder, gpus, plan, plots, progress, summary
from atoll_operator.local.children import afterwards, ended_after, ends_of, exit_of, refused
from atoll_operator.local.commands import check_startable
from atoll_operator.local.curves import Curves
from atoll_operator.local.ends import Record, alike, words_of
from atoll_operator.local.files import Files, shown, write_whole
from atoll_operator.local.live import Output, View, view_for
from atoll_operator.local.recorder import recording
from atoll_operator.local.shards import Poller, utc_now
from atoll_operator.local.summary import Exit
from atoll_operator.local.supervisor import (
    ROLES,
    Child,
    Supervisor,
    by_slot,
    cannot_train,
    free_ports,
    has_left,
)
from atoll_protos.errors import SpecError
from atoll_protos.exits import EXITS, ExitCode
from atoll_protos.expected import Expected
from atoll_protos.run import RunFile

POLL_SECONDS = 0.5
STOPPING = (
    "stopping: learners leave in order, then come the summary and the pictures; another Ctrl-C"
    " does not cut this short"
)
CHAOS_SECONDS = 20.0  # in which all train, before the next kill
LEAVING_SECONDS_MAX = 60.0  # for learners and the evaluator, once the job is complete


class JobFailedError(Exception):
    """The job cannot go on: the reason of its condition, and what happened."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class Training:
    """A job on this machine, in the folder of `files`. Training needs at least `needed` learners.

    `slots` is what the folder's list of learners says.
    """

    needed: int
    slots: Expected
    files: Files
    supervisor: Supervisor
    poller: Poller
    view: View
    status: Status
    curves: Curves = field(default_factory=Curves)  # which another thread draws
    chaos: bool = False
    chaos_at: float = 0.0
    steps_max: int | None = None  # the job's length, which its clock passes by a few
    complete_at: float | None = None

    def run(self) -> None:
        """Run until all is over; raises JobFailedError, or KeyboardInterrupt on Ctrl-C."""
        self.chaos_at = time.monotonic()
        while not self.advance(time.monotonic()):
            self.supervisor.wait(time.monotonic(), POLL_SECONDS)

    def advance(self, now: float) -> bool:
        """One pass; `now` is in monotonic seconds. Returns whether all is over."""
        seen = self.poller.poll(now, ends_of(self.supervisor.children, now))
        registrar = seen.replies[0]
        complete = registrar is not None and registrar.state == pb.SHARD_COMPLETE
        final = all(reply is not None and reply.state in ENDED for reply in seen.replies)
        complete = complete or self.complete_at is not None
        final = final or complete
        tick = reached.step if (reached := seen.status.progress or self.status.progress) else 0
        self.supervisor.supervise(now, final=final, complete=complete, tick=tick)
        self._tell_absent()
        self.write(seen.status)
        self.view.show(replace(seen, merged_share=self.curves.goodput), now)
        if not complete:
            self._check(seen, final=final)
        if complete and self.complete_at is None:
            self.complete_at = now
        if self.chaos and not final and self._calm(seen, now):
            self.chaos_at = now
            self._kill_one()
        if self.complete_at is None:
            return False
        if self._leaving() and now - self.complete_at < LEAVING_SECONDS_MAX:
            return False
        self.stopped(f"stopped, since it still ran after {LEAVING_SECONDS_MAX:.0f} s")
        # Who has left since may have said something.
        last = self.poller.poll(now, ends_of(self.supervisor.children, now))
        if all(last.replies):
            self.write(last.status)
        return True

    def write(self, status: Status) -> None:
        """Keep a status, and write it to status.json."""
        self.status = status
        self.files.write_json(folder.STATUS_FILE, status.to_object())

    def stopped(self, how: str) -> None:
        """Note how those end whose code behind the loop is cut short when the run stops them.

        One that has yet to leave the job, since it has just been started, loses nothing.
        """
        for child in self._leaving():
            child.after = how if has_left(child) else ""

    def _leaving(self) -> list[Child]:
        """The processes that have yet to end by themselves."""
        return [x for x in self.supervisor.in_roles("learner", "evaluator") if not x.done]

    def fail(self, error: JobFailedError) -> None:
        """Write a last status that says why."""
        self.write(progress.failed(self._left(), error.reason, str(error)))

    def interrupted(self) -> None:
        """Write a last status of a run that can go on."""
        self.write(progress.suspended(self._left(), "atoll run was interrupted"))

    def _left(self) -> Status:
        """Let the learners leave; returns the status with what they have trained until then."""
        self.supervisor.stop(ROLES[:-1])
        last, known = self.poller.poll(time.monotonic()).status.progress, self.status.progress
        if last is None or known is None:
            return self.status
        reached = known.model_copy(update={"step": last.step, "tokens": last.tokens})
        return self.status.model_copy(update={"progress": reached})

    def _tell_absent(self) -> None:
        """Write the list of learners again when another one was given up."""
        hosts = by_slot(self.supervisor.in_roles("learner"))
        gone = tuple(slot for slot, each in hosts.items() if cannot_train(each))
        if gone != self.slots.absent:
            wanted = replace(self.slots, absent=gone)
            if self.files.write(plan.SLOTS_FILE, wanted.to_json()):
                self.slots = wanted

    def _check(self, seen: progress.Snapshot, *, final: bool) -> None:
        """Raise JobFailedError when a shard or too many learners are lost for good.

        Once the job is final it needs no learners any more.
        """
        for reply in seen.replies:
            if reply is not None and reply.state == pb.SHARD_FAILED:
                raise JobFailedError(STORE_LOST, reply.reason)
        learners = by_slot(self.supervisor.in_roles("learner"))
        lost = [
            next(host for host in hosts if host.given_up and not host.given_up_with)
            for hosts in learners.values()
            if cannot_train(hosts)
        ]
        shards = [child for child in self.supervisor.in_roles("shard") if child.given_up]
        if shards or (not final and len(learners) - len(lost) < self.needed):
            first = (shards or lost)[0]
            assert first.record.last is not None
            end, why = first.record.last, first.given_up
        elif not final and (common := alike([*map(record_of, learners.values())])):
            first = first_failure(next(iter(learners.values())))
            end, why = common, words_of(common)
            if len(learners) > 1:
                why += f" (so did every learner: {len(learners)} of them)"
        else:
            return
        row = EXITS.get(end.code)
        reason = (row.reason if row else "") or "ProcessFailed"
        raise JobFailedError(reason, f"{first.planned.name}: {why}; log: {shown(first.log)}")

    def _calm(self, seen: progress.Snapshot, now: float) -> bool:
        """Whether all shards have answered and all learners trained for CHAOS_SECONDS.

        Kills at fixed times would leave no time to train where a start takes as long.
        """
        away = set(missing(seen.job, seen.replies)) - set(self.slots.absent)
        if away or not all(seen.replies):
            self.chaos_at = now
        return now - self.chaos_at >= CHAOS_SECONDS

    def _kill_one(self) -> None:
        """Kill any process or learner that runs; all may be waiting for their next start."""
        running = {
            child.planned.whole: child for child in self.supervisor.children if child.process
        }
        if running:
            child = running[random.choice([*running])]
            self.view.say(f"chaos: kill -9 {child.planned.whole}")
            self.supervisor.kill(child)


def first_failure(hosts: Sequence[Child]) -> Child:
    """The host of a learner that tells best how its first start ended.

    What the others say of it is that they have lost a host, or they say nothing.
    """
    failed = [host for host in hosts if host.record.first and host.record.first.failed]
    return (failed or hosts)[0]


def record_of(hosts: Sequence[Child]) -> Record:
    """What is known of the ends of a learner: those of its first host to fail."""
    worked = any(host.record.worked for host in hosts)
    return replace(first_failure(hosts).record, worked=worked)


def train(
    job: Job,
    out: Path,
    *,
    resume: bool,
    output: Output,
    manifest: str,
    chaos: bool = False,
    allow_refused: bool = False,
    view: View | None = None,
) -> Exit:
    """Run a job in a folder, and write its summary and pictures there.

    `manifest` is what the folder keeps as manifest.yaml; `view` replaces what `output` names.
    With `allow_refused` a job is complete also without learners that were refused for good.
    Raises SpecError for what a user must fix first.
    """
    wanted = run_file(job)
    shards, several = job.spec.syncer.shards, job.spec.learner.hosts > 1
    free = free_ports(shards + (job.spec.learners if several else 0))
    ports, meetings = free[:shards], free[shards:]
    found = gpus.find(os.environ) if gpus.matter(job) else gpus.NONE
    assigned = gpus.assign(job, found)
    check_startable(plan.processes(job, out, ports, assigned, new=True, meetings=meetings))
    view = view or view_for(output, terminal=sys.stdout.isatty())
    with folder.running(out):
        new = prepare(wanted, expected(job), out, manifest, resume=resume)
        where = f"The run's folder is {shown(out)}."
        for line in (where if new else "", *without_effect_here(job), gpus.advice(job, found)):
            if line:
                view.say(line)
        planned = plan.processes(job, out, ports, assigned, new=new, meetings=meetings)
        began = 0.0 if new else time.time()
        with recording(out, view.say, began) as curves:
            return _train(
                job, out, ports, planned, view, curves, chaos=chaos, allow_refused=allow_refused
            )


def _train(
    job: Job,
    out: Path,
    ports: tuple[int, ...],
    planned: list[plan.Planned],
    view: View,
    curves: Curves,
    *,
    chaos: bool,
    allow_refused: bool,
) -> Exit:
    """Run the processes of a job whose folder is prepared, to whatever end it has."""
    files = Files(out, view.say)
    supervisor = Supervisor(planned, files, view.say, job.spec.steps)
    training = Training(
        needed=job.spec.learners_needed,
        slots=expected(job),
        files=files,
        supervisor=supervisor,
        poller=Poller(job, ports),
        view=view,
        status=progress.status(job, [None] * len(ports), utc_now()),
        curves=curves,
        chaos=chaos,
        steps_max=job.spec.steps,
    )
    begun = time.monotonic()
    with terminated_like_interrupted():
        try:
            code, outcome = _outcome(training)
        finally:
            supervisor.stop()
    if code is Exit.COMPLETE:
        code = exit_of(supervisor.children, allow_refused=allow_refused)
    _summarise(training, code, outcome, time.monotonic() - begun)
    return code


def prepare(wanted: RunFile, slots: Expected, out: Path, manifest: str, *, resume: bool) -> bool:
    """Make the folder, its run file, list of learners and manifest; returns whether it is new.

    Raises SpecError when the folder holds another run, or one that was not asked to be resumed.
    """
    path = out / plan.RUN_FILE
    if path.exists():
        if not resume:
            raise SpecError("--out", f"{out} holds a run", "give another folder, or add --resume")
        folder.check_same(wanted, RunFile.from_json(path.read_text(encoding="utf-8")), out)
    new = not path.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / plan.MANIFEST_FILE, manifest)
        write_whole(out / plan.SLOTS_FILE, slots.to_json())
        write_whole(path, wanted.to_json())
    except OSError as error:
        raise SpecError("--out", f"{out}: {error.strerror}", "give a writable folder") from error
    return new


def _outcome(training: Training) -> tuple[Exit, str]:
    """Run it; returns how it ended, and the same in words."""
    try:
        with training.view:
            training.run()
    except JobFailedError as error:
        training.fail(error)
        bad_input = error.reason == EXITS[ExitCode.BAD_INPUT].reason
        sys.stderr.write(f"failed: {error}\n")
        return (Exit.BAD_INPUT if bad_input else Exit.FAILED), "failed"
    except KeyboardInterrupt:
        training.view.say(STOPPING)
        if training.complete_at is not None:
            training.stopped("stopped by Ctrl-C")
            return Exit.COMPLETE, "complete"
        training.interrupted()
        return (
            Exit.INTERRUPTED,
            f"interrupted (atoll run {shown(training.files.out)} --resume continues)",
        )
    return Exit.COMPLETE, "complete"


def _summarise(training: Training, code: Exit, outcome: str, seconds: float) -> None:
    """Write summary.json and the pictures, and show the last line of the run."""
    out, reached = training.files.out, training.status.progress
    slots = frozenset(by_slot(training.supervisor.in_roles("learner")))
    length = training.steps_max
    step = min(reached.step, length or reached.step) if reached else None
    result = Exit.COMPLETE if training.complete_at is not None else code
    found = summary.summarise(out, result.name.title(), seconds, step, slots)
    found |= {
        "exit_code": int(code),
        "ended_after": ended_after(training.supervisor.children),
        "refused": refused(training.supervisor.children),
    }
    training.files.write_json("summary.json", found)
    try:
        learners = training.supervisor.in_roles("learner")
        unit = plan.loss_unit(child.planned.command for child in learners)
        plots.draw(out, found["tokens"], unit)
    except Exception as error:  # no trouble with a picture changes how a run has ended
        training.view.say(f"the pictures are not drawn: {type(error).__name__}: {error}")
    late = late_work(found["late_share"], training.poller.job.spec.sync)
    for line in [*summary.refusals(found), *filter(None, (late, summary.little_merged(found)))]:
        training.view.say(line)
    see = f"see {shown(out / 'summary.json')} and loss.png beside it"
    more = afterwards(training.supervisor.children, code) if result is Exit.COMPLETE else ""
    training.view.say(f"{outcome}: {summary.sentence(found)}{more}; {see}")


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM acts like Ctrl-C inside; after that neither of them can cut the clean end short."""

    heard = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a shell's background job
        heard.append(signal.SIGINT)

    def interrupt(number: int, frame: Any) -> None:
        del number, frame
        hear(again)
        raise KeyboardInterrupt

    def again(number: int, frame: Any) -> None:
        del number, frame
        sys.stderr.write(f"{STOPPING}\n")

    def hear(handler: Callable[[int, Any], None]) -> None:
        for each in heard:
            signal.signal(each, handler)

    hear(interrupt)
    try:
        yield
    finally:
        hear(again)
