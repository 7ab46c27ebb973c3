"""One run of `atoll run`, from a checked job to its summary.

A pass every half second decides from what the shards said and from exit codes alone:

    starting --> training --> final --> complete --> over
        |           |           |
        +-----------+-----------+--> failed     (JobFailedError)
        +-----------+-----------+--> interrupted (Ctrl-C or SIGTERM)

    suspended  from any of the first three and back: a person has written so into the manifest,
               which is read in each pass, and nothing runs meanwhile.
    final      every shard has had its last rounds. Until then a learner that ends with exit code
               0 has only stopped, for example after SIGTERM, and is started again.
    complete   the registrar (shard 0) says that the model is exported. From then on learners and
               the evaluator have 10 min to take their last values, save and end. None of
               them is started again, and nothing makes the job fail any more.
    failed     a shard has lost its state, or so many processes were given up that the quorum is
               out of reach, or all learners failed with the same words. A job that is final needs
               no learners.

However it ends, all processes are stopped, learners before shards, and then the summary and the
pictures are made from the files of the run folder alone.

A new run passes `--new` to its shards. It promises that no process of this run can exist yet, so
the registrar may start the run at once; with `--resume` it must first ask the other shards.
"""

import contextlib
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.parsing import without_effect_here
from atoll_operator.api.job.process_inputs import expected, run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import late_work, same_data
from atoll_operator.api.status.job_status import ProgressStatus, Status, missing
from atoll_operator.api.status.reasons import STORE_LOST
from atoll_operator.local import gpus, last_status, local_status, run_folder, run_manifest
from atoll_operator.local.chaos import Chaos, Fault, Links
from atoll_operator.local.child import (
    Child,
    End,
    EndRecord,
    alike,
    by_slot,
    cannot_train,
    has_left,
    words_of,
)
from atoll_operator.local.local_status import JobNow, JobState, RunSnapshot, ShownMachine, job_state
from atoll_operator.local.poller import Poller, utc_now
from atoll_operator.local.process_plan import Planned, endpoints_in, own_checkpoints, processes
from atoll_operator.local.run_files import (
    ASKED_FILE,
    CHAOS_FILE,
    LENGTH_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    SLOTS_FILE,
    STATUS_FILE,
    STORE_FILE,
    Files,
    continued_by,
    read_lines,
    read_tapes,
    runs_of,
    shown,
    write_whole,
)
from atoll_operator.local.run_manifest import ManifestInUse, next_length
from atoll_operator.local.show import plots, run_summary
from atoll_operator.local.show.curves import recording
from atoll_operator.local.show.live import Output, RunView, echo, view_for
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.startable import (
    afterwards,
    check_startable,
    ended_after,
    exit_of,
    free_ports,
    refused,
    reports_of,
    unsaved,
)
from atoll_operator.local.supervisor import LEAVING_SECONDS_MAX, POLL_SECONDS, ROLES, Supervisor
from atoll_protos.errors import SpecError
from atoll_protos.exits import EXITS, ExitCode
from atoll_protos.job.run_file import Expected, RunFile

STOPPING = (
    "stopping: learners leave in order, then come the summary and the pictures; another Ctrl-C"
    " does not cut this short"
)


class Elsewhere:
    """Learners of a job on other machines: none, and shards on Unix sockets in plain text.

    `atoll serve` has some (`atoll_operator.machines.server.serving`).
    """

    endpoints: Sequence[str] = ()  # of the shards, for processes here; empty: sockets of the run
    observer: str = ""  # folder of the credentials with which the run looks at its shards

    def here(self, job: Job) -> Job:
        """Return the job with the regions whose learners are processes of this machine."""
        return job

    def through(self, planned: list[Planned]) -> list[Planned]:
        """Return the processes as they have to be started."""
        return planned

    def listed(self, slots: Expected) -> Expected:
        """Return the slots file, with the machines that have entered."""
        return slots

    @contextmanager
    def open(self, say: Callable[[str], None]) -> Iterator[None]:
        """Machines may enter inside."""
        del say
        yield

    def invitation(self) -> str:
        """How machines enter, in words; empty: none can."""
        return ""

    def edited(self, job: Job) -> None:
        """Take the job as it is now: its length, or its learners."""

    def machines(self, seen: RunSnapshot) -> Sequence[ShownMachine]:
        """As they are at a pass that has seen this."""
        del seen
        return ()

    def refused(self) -> Mapping[str, str]:
        """By slot: why its learner is refused for good."""
        return {}

    def fail(self, why: str) -> None:
        """Take in that the job has failed, perhaps before any shard could say so."""

    def leaving(self, seen: RunSnapshot) -> bool:
        """Whether learners of a complete job still take its last values."""
        del seen
        return False


NONE = Elsewhere()


BEGIN_WITH = "atoll run MANIFEST --resume-from PLACE"
SETTLING_SECONDS_MAX = 10.0  # for commits, when the learners of a run that ends early have left
CHAOS_SECONDS = 20.0  # in which all train, before the next kill
COUNTED = ("step", "tokens", "token_counts", "goodput", "participation", "uptime", "links")


class JobFailedError(Exception):
    """The job cannot continue: the reason of its condition, and what happened."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class LocalRun:
    """A job on this machine, the poller's, which a person may change through `manifest`."""

    slots: Expected  # as it is written
    files: Files
    supervisor: Supervisor
    poller: Poller
    view: RunView
    status: Status
    elsewhere: Elsewhere = NONE
    chaos: bool = False
    chaos_at: float = 0.0
    faults: Chaos | None = None  # the faults of --chaos-plan
    run_id: str | None = None  # of the run, as its shards have named it last
    manifest: ManifestInUse | None = None
    warned: bool = False  # that learners train on the same data
    progress: ProgressStatus | None = None  # the last one that all shards have told

    def run(self, each_pass: Callable[[], None]) -> None:
        """Until all is over, or `each_pass` raises."""
        self.chaos_at = time.monotonic()
        try:
            while not self.advance(time.monotonic()):
                each_pass()
                now = time.monotonic()
                due = self.faults.seconds_left(now) if self.faults else POLL_SECONDS
                self.supervisor.wait(now, min(POLL_SECONDS, due))
        finally:
            if self.faults:
                self.faults.end()

    def advance(self, now: float) -> bool:
        """One pass; `now` is in monotonic seconds. Returns whether all is over."""
        supervisor = self.supervisor
        if self.manifest is not None and supervisor.complete_at is None:
            self._follow(self.manifest, now)
        if supervisor.suspended:
            resting = self.poller.resting(self.status, now)
            self.view.show(replace(resting, machines=self.elsewhere.machines(resting)), now)
            return False
        seen = self.poller.poll(now, reports_of(supervisor.children, now))
        length = self.poller.job.spec.steps or 0
        job = JobNow(state=job_state(seen.replies), tick=seen.step, length=length)
        supervisor.supervise(now, job)
        complete = supervisor.complete_at is not None
        final = complete or job.state is JobState.FINAL
        self._write_slots()
        machines = self.elsewhere.machines(seen)
        self.say_if_lost(seen.status.run)
        if not self.warned and (warning := same_data(seen.replies)):
            self.warned = True
            self.view.say(f"warning: {warning}")
        self.write(seen.status)
        self.progress = seen.status.progress or self.progress
        self.view.show(replace(seen, machines=machines), now)
        if self.faults and not final:
            self.faults.advance(now, all_train=self._all_train(seen))
        elif self.faults:
            self.faults.end()
        if not complete:
            self._check(seen, final=final)
            if self.chaos and not final and self._calm(seen, now):
                self.chaos_at = now
                self._kill_one()
            return False
        if supervisor.waits(now, also=self.elsewhere.leaving(seen)):
            return False
        self.stopped(f"stopped, since it still ran after {LEAVING_SECONDS_MAX:.0f} s")
        # Who has left since may have said something.
        last = self._last_look(now)
        if all(last.replies):
            self.write(last.status)
        return True

    def _follow(self, manifest: ManifestInUse, now: float) -> None:
        """Go on with the job as its manifest says it now.

        The files come first, so that no learner runs that the shards' list lacks.
        """
        if (text := manifest.changed()) is not None:
            try:
                job = manifest.job(self.poller.job, text)
                planned = manifest.plan(job)
            except SpecError as error:
                self.poller.unaccepted, manifest.text = str(error), text
                self.view.say(f"{MANIFEST_FILE} is not followed: {error}")
            else:
                if self._write_job(job):
                    for line in run_manifest.differences(self.poller.job, job):
                        self.view.say(line)
                    self.poller.job, self.poller.unaccepted = job, ""
                    self.elsewhere.edited(job)
                    manifest.text = manifest.accepted = text
                    self.supervisor.follow(planned, now)
                    self._write_slots()
        wanted = self.poller.job.spec.suspend
        if wanted and not self.supervisor.suspended:
            self._suspend()
        elif self.supervisor.suspended and not wanted:
            self.chaos_at = now
            self.supervisor.resume()
            self.poller.begin_again()
            self.poller.links.say(pb.INTENT_RUN)
            self.view.say("resumed")

    def _write_job(self, job: Job) -> bool:
        before, after, out = self.poller.job.spec, job.spec, self.files.out
        written = self.files.write(RUN_FILE, run_file(job).to_json())
        if (before.steps, before.tokens) != (after.steps, after.tokens):
            length = run_manifest.next_length(out, after.steps, after.tokens)
            written = self.files.write(LENGTH_FILE, length) and written
        return written

    def _suspend(self) -> None:
        continues = f"`atoll resume {shown(self.files.out)}`"
        self.view.say("suspending: learners leave in order, then the shards end")
        self.poller.links.say(pb.INTENT_SUSPEND)
        left = self._left(self.elsewhere.leaving)
        self.write(local_status.suspended(left, "spec.suspend is true", continues))
        self.supervisor.suspend()
        self.view.say(f"suspended; {continues} continues")

    def say_if_lost(self, run: str | None) -> None:
        """All that held the run is gone, so shard 0 has begun another one (rule 43)."""
        if run and self.run_id and run != self.run_id:
            began = {line["run"]: line for line in runs_of(read_tapes(self.files.out)[0])}
            place = began.get(run, {}).get("checkpoint")
            how = f"goes on from {place}" if place else "begins at step 0: no checkpoint was whole"
            self.view.say(
                f"lost: no learner and no shard has anything of run {self.run_id}; run {run} {how}."
                f" To begin with another checkpoint: {BEGIN_WITH}"
            )
        self.run_id = run or self.run_id

    def write(self, status: Status) -> None:
        self.status = status
        self.files.write_json(STATUS_FILE, status.to_object())

    def stopped(self, how: str) -> None:
        """Note how those end whose code behind the loop is cut short when the run stops them."""
        for child in self.supervisor.last_ones():
            child.after = how if has_left(child) else ""

    def fail(self, error: JobFailedError) -> None:
        self.poller.links.say(pb.INTENT_FAIL, str(error))
        self.elsewhere.fail(str(error))
        left = self._left(self.elsewhere.leaving)
        self.write(local_status.failed(left, error.reason, str(error)))

    def interrupted(self) -> None:
        self.write(
            local_status.suspended(self._left(), "it was interrupted", continued_by(self.files.out))
        )

    def _left(self, leaving: Callable[[RunSnapshot], bool] = NONE.leaving) -> Status:
        """Let the learners leave; returns the status with what they have trained until then.

        `leaving`: whether some that are not of this machine still do.
        """
        self.supervisor.stop(ROLES[:-1])
        last = self._settled(leaving).status.progress
        if last is None:  # a shard is away
            return self.status.model_copy(update={"progress": self.progress})
        known = self.progress or last  # a run may end before a pass has seen any
        reached = known.model_copy(update={name: getattr(last, name) for name in COUNTED})
        return self.status.model_copy(update={"progress": reached})

    def _settled(self, leaving: Callable[[RunSnapshot], bool]) -> RunSnapshot:
        """Look until no commit follows: learners had sent offers before they left."""
        until, before = time.monotonic() + SETTLING_SECONDS_MAX, -1
        while True:
            seen = self._last_look(time.monotonic())
            commits = sum(reply.commits for reply in seen.replies if reply is not None)
            settled = commits == before and not leaving(seen)
            if settled or time.monotonic() > until:
                return seen
            before = commits
            time.sleep(POLL_SECONDS)

    def _last_look(self, now: float) -> RunSnapshot:
        """Once nobody speaks to the shards any more: none is passed over that is only slow."""
        running = all(child.process is not None for child in self.supervisor.in_roles("shard"))
        ends = reports_of(self.supervisor.children, now)
        return self.poller.poll(now, ends, wait=running)

    def _write_slots(self) -> None:
        """Shards read in slots.json which learners are given up, and a checkpoint that is asked."""
        hosts = by_slot(self.supervisor.in_roles("learner"))
        gone = tuple(slot for slot, children in hosts.items() if cannot_train(children))
        asked = expected(self.poller.job, checkpoint=self._asked_checkpoint())
        wanted = self.elsewhere.listed(replace(asked, absent=gone))
        if wanted != self.slots and self.files.write(SLOTS_FILE, wanted.to_json()):
            self.slots = wanted

    def _asked_checkpoint(self) -> int:
        """Return the step that `atoll checkpoint` has written, which stays in the folder."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.files.out / ASKED_FILE).read_text(encoding="utf-8"))
        return 0

    def _check(self, seen: RunSnapshot, *, final: bool) -> None:
        """Raise JobFailedError when a shard or too many learners are lost for good."""
        for reply in seen.replies:
            if reply is not None and reply.state == pb.SHARD_FAILED:
                raise JobFailedError(STORE_LOST, reply.reason)
        learners = [*by_slot(self.supervisor.in_roles("learner")).values()]
        lost = [
            next(host for host in hosts if host.given_up and not host.given_up_with)
            for hosts in learners
            if cannot_train(hosts)
        ]
        shards = [child for child in self.supervisor.in_roles("shard") if child.given_up]
        spec = self.poller.job.spec
        if shards or (lost and not final and spec.learners - len(lost) < spec.learners_needed):
            first = (shards or lost)[0]
            assert first.record.last is not None
            end, why = first.record.last, first.given_up
        elif not final and (common := self._common_end(learners)):
            first, end, why = first_failure(learners[0]), common, words_of(common)
            if len(learners) > 1:
                why += f" (so did every learner: {len(learners)} of them)"
        else:
            return
        row = EXITS.get(end.code)
        reason = (row.reason if row else "") or "ProcessFailed"
        raise JobFailedError(reason, f"{first.planned.name}: {why}; log: {shown(first.log)}")

    def _common_end(self, learners: Sequence[Sequence[Child]]) -> End | None:
        """How every learner of the job ends, if they all do alike; nobody knows those elsewhere."""
        if len(learners) < len(self.slots.every):
            return None
        return alike([record_of(hosts) for hosts in learners])

    def _calm(self, seen: RunSnapshot, now: float) -> bool:
        """Whether all train for CHAOS_SECONDS: fixed times might leave no time to train."""
        if not self._all_train(seen):
            self.chaos_at = now
        return now - self.chaos_at >= CHAOS_SECONDS

    def _all_train(self, seen: RunSnapshot) -> bool:
        away = set(missing(seen.job, seen.replies)) - set(self.slots.absent)
        return not away and all(seen.replies)

    def _kill_one(self) -> None:
        running = by_slot(child for child in self.supervisor.children if child.process)
        if running:
            child = random.choice(random.choice([*running.values()]))
            self.view.say(f"chaos: kill -9 {child.planned.slot or child.planned.name}")
            self.supervisor.kill(child)


def first_failure(hosts: Sequence[Child]) -> Child:
    failed = [host for host in hosts if host.record.first and host.record.first.failed]
    return (failed or hosts)[0]


def record_of(hosts: Sequence[Child]) -> EndRecord:
    worked = any(host.record.worked for host in hosts)
    return replace(first_failure(hosts).record, worked=worked)


def train(  # noqa: PLR0913 - each of them is what an option of the command says
    job: Job,
    out: Path,
    *,
    resume: bool,
    output: Output,
    manifest: str,
    chaos: bool,
    faults: Sequence[Fault] = (),
    allow_refused: bool,
    record: int = 0,
    elsewhere: Elsewhere = NONE,
) -> RunResult:
    """Run a job in a folder, and write its summary and pictures there. Raises SpecError.

    `manifest` is what the folder keeps as manifest.yaml, `faults` are those of a plan, by time.
    With `allow_refused` a job is complete also without learners that were refused for good.
    Of each slice, `record` merges are recorded.
    `elsewhere` are the learners of `atoll serve` on other machines.
    """
    job = with_checkpoints(job, out)
    wanted, slots, shards = run_file(job), elsewhere.listed(expected(job)), job.spec.syncer.shards
    here, url = elsewhere.here(job), job.spec.syncer.storage.url
    found = gpus.find(os.environ) if gpus.matter(here) else gpus.VisibleGpus()
    places = Places(out=out, endpoints=elsewhere.endpoints, found=found, record=record)
    check_startable(places.planned(here, new=True))
    view = view_for(output, terminal=sys.stdout.isatty())
    with (
        run_folder.running(out),
        run_folder.private(out, stores=not url) as umask,
        _endpoints(job, out, elsewhere) as places.endpoints,
        Links(faults, places.endpoints).open() as links,
        elsewhere.open(view.say),
    ):
        new = prepare(wanted, slots, out, manifest, resume=resume, url=url)
        job = job.model_copy(update={"uid": last_status.uid_in(out)})
        where = f"The run's folder is {shown(out)}." if new else ""
        said = (where, *without_effect_here(job), gpus.advice(here, found), elsewhere.invitation())
        for line in filter(None, said):
            view.say(line)
        files = Files(out, view.say)

        def plan(job: Job, *, new: bool = False) -> list[Planned]:
            return links.through(elsewhere.through(places.planned(elsewhere.here(job), new=new)))

        supervisor = Supervisor(plan(job, new=new), files, view.say, umask)
        with recording(out, view.say, began=0.0 if new else time.time()):
            training = LocalRun(
                elsewhere=elsewhere,
                slots=slots,
                files=files,
                supervisor=supervisor,
                poller=Poller(job, places.endpoints, elsewhere.observer),
                view=view,
                status=local_status.status(job, [None] * shards, utc_now()),
                chaos=chaos,
                faults=Chaos(waiting=[*faults], supervisor=supervisor, links=links, files=files),
                manifest=ManifestInUse(out=out, text=manifest, plan=plan),
            )
            return _finish(training, allow_refused=allow_refused)


@contextmanager
def _endpoints(job: Job, out: Path, elsewhere: Elsewhere) -> Iterator[Sequence[str]]:
    """Of the shards, by shard."""
    if elsewhere.endpoints:
        yield elsewhere.endpoints
        return
    with run_folder.socket_folder(out) as folder:
        yield endpoints_in(folder, job.spec.syncer.shards)


@dataclass(slots=True, kw_only=True)
class Places:
    """Where the processes of a run are, on sockets and GPUs that stay when the job is edited."""

    out: Path
    endpoints: Sequence[str]  # by shard
    found: gpus.VisibleGpus
    record: int = 0  # merges of each slice
    gpus: dict[str, str] = field(default_factory=dict)  # by process
    meetings: dict[str, int] = field(default_factory=dict)  # ports where hosts meet, by slot

    def planned(self, job: Job, *, new: bool) -> list[Planned]:
        """Raise SpecError where there are too few GPUs."""
        self.gpus = gpus.assign(job, self.found, self.gpus)
        if job.spec.learner.hosts > 1:
            for slot in job.spec.slots:
                if slot not in self.meetings:
                    (self.meetings[slot],) = free_ports(1)
        return processes(
            job,
            self.out,
            self.endpoints,
            self.gpus,
            new=new,
            meetings=self.meetings,
            record=self.record,
        )


def with_checkpoints(job: Job, out: Path) -> Job:
    """Checkpoints go to the run folder where the manifest names no other place."""
    given = job.spec.checkpoint
    url = given.url or own_checkpoints(out)
    spec = job.spec.model_copy(update={"checkpoint": given.model_copy(update={"url": url})})
    return job.model_copy(update={"spec": spec})


def _finish(training: LocalRun, *, allow_refused: bool) -> RunResult:
    begun = time.monotonic()
    with terminated_like_interrupted() as again_if_lost:
        try:
            code, outcome = _outcome(training, again_if_lost)
        finally:
            training.supervisor.stop()
    if code is RunResult.COMPLETE:
        children, elsewhere = training.supervisor.children, training.elsewhere.refused()
        code = exit_of(children, allow_refused=allow_refused, elsewhere=elsewhere)
    _summarise(training, code, outcome, time.monotonic() - begun)
    return code


def prepare(
    wanted: RunFile, slots: Expected, out: Path, manifest: str, *, resume: bool, url: str = ""
) -> bool:
    """Write the files of a run into its folder; returns whether it is a new run.

    `url` is of the bucket for its state, in which it gets a folder of its own; empty: none.
    Raises SpecError when the folder holds another run, or one that was not asked to be resumed.
    Length, number of learners and the template are not in the run hash, so they may differ.
    """
    path = out / RUN_FILE
    new = not path.exists()
    if not new:
        if not resume:
            raise SpecError("--out", f"{out} holds a run", "give another folder, or add --resume")
        last_status.check_same(wanted, RunFile.from_json(path.read_text(encoding="utf-8")), out)
        last_status.check_same_store(url, out)
    try:
        write_whole(out / MANIFEST_FILE, manifest)
        write_whole(out / SLOTS_FILE, slots.to_json())
        write_whole(out / LENGTH_FILE, next_length(out, wanted.steps, wanted.tokens))
        if new:
            (out / STORE_FILE).unlink(missing_ok=True)  # of a beginning that was cut short
        if new and url:
            write_whole(out / STORE_FILE, f"{url}/{uuid.uuid4()}\n")
        write_whole(path, wanted.to_json())
    except OSError as error:
        raise SpecError("--out", f"{out}: {error.strerror}", "give a writable folder") from error
    return new


def _outcome(training: LocalRun, each_pass: Callable[[], None]) -> tuple[RunResult, str]:
    try:
        with training.view:
            training.run(each_pass)
    except JobFailedError as error:
        training.fail(error)
        wrong = (EXITS[code].reason for code in (ExitCode.BAD_INPUT, ExitCode.RESTORE_REFUSED))
        bad_input = error.reason in wrong
        echo(f"failed: {error}", err=True)
        return (RunResult.BAD_INPUT if bad_input else RunResult.FAILED), "failed"
    except KeyboardInterrupt:
        training.view.say(STOPPING)
        if training.supervisor.complete_at is not None:
            training.stopped("stopped by Ctrl-C")
            return RunResult.COMPLETE, "complete"
        training.interrupted()
        return RunResult.INTERRUPTED, f"interrupted ({continued_by(training.files.out)} continues)"
    return RunResult.COMPLETE, "complete"


def _summarise(training: LocalRun, code: RunResult, outcome: str, seconds: float) -> None:
    out, say, reached = training.files.out, training.view.say, training.status.progress
    children, spec = training.supervisor.children, training.poller.job.spec
    result = RunResult.COMPLETE if training.supervisor.complete_at is not None else code
    slots = frozenset(spec.slots)
    found = run_summary.summarise(out, result.name.title(), seconds, reached, slots)
    if reached and spec.steps:  # which the clock passes by a few
        found["steps"] = min(reached.step, spec.steps)
    found["exit_code"] = int(code)
    elsewhere = training.elsewhere.refused()
    found |= {"ended_after": ended_after(children), "refused": {**refused(children), **elsewhere}}
    if lines := read_lines(out / CHAOS_FILE):
        not_made = sum("not_made" in line for line in lines)
        found["chaos"] = {"faults": len(lines), "not_made": not_made}
    training.files.write_json("summary.json", found)
    try:
        plots.draw(out, found["tokens"])
    except Exception as error:  # no trouble with a picture changes how a run has ended
        say(f"the pictures are not drawn: {type(error).__name__}: {error}")
    late = late_work(found["late_share"], training.poller.job.spec.sync)
    for line in (*run_summary.refusals(found), late, run_summary.little_merged(found)):
        if line:
            say(line)
    see = f"see {shown(out / 'summary.json')} and loss.png beside it"
    more = ""
    if result is RunResult.COMPLETE:
        lost = unsaved(children, spec.slots[0], shown(out / "export"))
        more = afterwards(children, code, elsewhere) + (f"; {lost}" if lost else "")
    say(f"{outcome}: {run_summary.sentence(found)}{more}; {see}")


@contextmanager
def terminated_like_interrupted() -> Iterator[Callable[[], None]]:
    """SIGTERM acts like Ctrl-C inside, and so does the end of the terminal.

    After that none of them can cut the clean end short.

    A handler raises in whatever code runs, and Python drops what is raised in a `__del__`. What
    this yields raises it again.
    """
    asked = False
    heard = [signal.SIGTERM]
    for number in (signal.SIGINT, signal.SIGHUP):  # a shell's background job and nohup ignore them
        if signal.getsignal(number) is not signal.SIG_IGN:
            heard.append(number)

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        hear(again)
        raise KeyboardInterrupt

    def again_if_lost() -> None:
        if asked:
            raise KeyboardInterrupt

    def again(*_: object) -> None:
        echo(STOPPING, err=True)

    def hear(handler: Callable[[int, Any], None]) -> None:
        for number in heard:
            signal.signal(number, handler)

    hear(interrupt)
    try:
        yield again_if_lost
    finally:
        hear(again)
