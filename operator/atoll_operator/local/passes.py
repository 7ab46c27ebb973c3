"""The passes of a run: what `atoll run` does every half second until all is over.

It decides from what the shards said and from exit codes alone. A run is in these states:

    starting --> training --> final --> complete --> over
        |           |           |
        +-----------+-----------+--> failed     (JobFailedError)
        +-----------+-----------+--> interrupted (Ctrl-C or SIGTERM)

    suspended  not in this picture, from any of the first three and back: a person has written so
               into the manifest, which is looked at in each pass, and nothing runs meanwhile.
    final      every shard has had its last rounds. Until then a learner that ends with exit code
               0 has only stopped, for example after SIGTERM, and is started again.
    complete   the registrar (shard 0) says that the model is exported. From then on learners and
               the evaluator have 10 min to take their last values, save and end. None of
               them is started again, and nothing makes the job fail any more.
    failed     a shard has lost its state, or so many processes were given up that the quorum is
               out of reach, or all learners failed with the same words. A job that is final needs
               no learners.

Learners of a job on other machines, as the run on this one sees them; `atoll run` has none.

`atoll serve` has some: `atoll_operator.machines.server.serving` fills in what is neutral here.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.process_inputs import expected, run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import same_data
from atoll_operator.api.status.job_status import ENDED, ProgressStatus, Status, missing
from atoll_operator.api.status.reasons import STORE_LOST
from atoll_operator.local import local_status, run_manifest
from atoll_operator.local.chaos import Chaos
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
from atoll_operator.local.local_status import RunSnapshot, ShownMachine
from atoll_operator.local.poller import Poller
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import (
    ASKED_FILE,
    LENGTH_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    SLOTS_FILE,
    STATUS_FILE,
    Files,
    continued_by,
    read_tapes,
    runs_of,
    shown,
)
from atoll_operator.local.run_manifest import ManifestInUse
from atoll_operator.local.show.live import RunView
from atoll_operator.local.startable import reports_of
from atoll_operator.local.supervisor import ROLES, Supervisor
from atoll_protos.errors import SpecError
from atoll_protos.exits import EXITS
from atoll_protos.job.run_file import Expected


class Elsewhere:
    """None, and shards on Unix sockets in plain text."""

    endpoints: Sequence[str] = ()  # of the shards, for processes here; empty: sockets of the run
    observer: str = ""  # folder of the credentials with which the run looks at its shards

    def here(self, job: Job) -> Job:
        """The job with the regions whose learners are processes of this machine."""
        return job

    def through(self, planned: list[Planned]) -> list[Planned]:
        """The processes as they have to be started."""
        return planned

    def listed(self, slots: Expected) -> Expected:
        """The slots file, with the machines that have entered."""
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
        """The job is another one now: its length, or its learners."""

    def follow(self, seen: RunSnapshot) -> None:
        """Note what a pass has seen."""

    def machines(self) -> Sequence[ShownMachine]:
        """As they are seen now."""
        return ()

    def refused(self) -> Mapping[str, str]:
        """By slot: why its learner is refused for good."""
        return {}

    def leaving(self, seen: RunSnapshot) -> bool:
        """Whether learners of a complete job still take its last values."""
        del seen
        return False


NONE = Elsewhere()


POLL_SECONDS = 0.5
BEGIN_WITH = "atoll run MANIFEST --resume-from PLACE"
SETTLING_SECONDS_MAX = 10.0  # for commits, when the learners of a run that ends early have left
CHAOS_SECONDS = 20.0  # in which all train, before the next kill
COUNTED = ("step", "tokens", "token_counts", "goodput", "participation", "uptime", "links")
LEAVING_SECONDS_MAX = 600.0  # for learners and the evaluator, once the job is complete


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
    suspended: bool = False
    warned: bool = False  # that learners train on the same data
    complete_at: float | None = None
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
        if self.manifest is not None and self.complete_at is None:
            self._follow(self.manifest, now)
        if self.suspended:
            resting = self.poller.resting(self.status, now)
            self.elsewhere.follow(resting)
            self.view.show(replace(resting, machines=self.elsewhere.machines()), now)
            return False
        seen = self.poller.poll(now, reports_of(self.supervisor.children, now))
        states = [reply.state if reply else None for reply in seen.replies]
        complete = states[0] == pb.SHARD_COMPLETE or self.complete_at is not None
        final = complete or all(state in ENDED for state in states)
        self.supervisor.supervise(
            now,
            final=final,
            complete=complete,
            answered=None not in states,
            tick=seen.step,
        )
        self._write_slots()
        self.elsewhere.follow(seen)
        self.say_if_lost(seen.status.run)
        if not self.warned and (warning := same_data(seen.replies)):
            self.warned = True
            self.view.say(f"warning: {warning}")
        self.write(seen.status)
        self.progress = seen.status.progress or self.progress
        machines = self.elsewhere.machines()
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
        self.complete_at = now if self.complete_at is None else self.complete_at
        leaving = self._leaving() or self.elsewhere.leaving(seen)
        if leaving and now - self.complete_at < LEAVING_SECONDS_MAX:
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
                    self.supervisor.follow(planned, job.spec.steps, now)
                    self._write_slots()
        wanted = self.poller.job.spec.suspend
        if wanted and not self.suspended:
            self._suspend()
        elif self.suspended and not wanted:
            self.suspended, self.chaos_at = False, now
            self.supervisor.begin_again()
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
        self.supervisor.stop()
        self.suspended = True
        self.view.say(f"suspended; {continues} continues")

    def say_if_lost(self, run: str | None) -> None:
        """All that held the run is gone, so shard 0 has begun another one (rule 43)."""
        if run and self.run_id and run != self.run_id:
            began = {each["run"]: each for each in runs_of(read_tapes(self.files.out)[0])}
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
        for child in self._leaving():
            child.after = how if has_left(child) else ""

    def _leaving(self) -> list[Child]:
        return [x for x in self.supervisor.in_roles("learner", "evaluator") if not x.done]

    def fail(self, error: JobFailedError) -> None:
        self.poller.links.say(pb.INTENT_FAIL, str(error))
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
        """The last look, once no commit follows: learners had sent offers before they left."""
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
        running = all(each.process is not None for each in self.supervisor.in_roles("shard"))
        ends = reports_of(self.supervisor.children, now)
        return self.poller.poll(now, ends, wait=running)

    def _write_slots(self) -> None:
        """Shards read in slots.json which learners are given up, and a checkpoint that is asked."""
        hosts = by_slot(self.supervisor.in_roles("learner"))
        gone = tuple(slot for slot, each in hosts.items() if cannot_train(each))
        asked = expected(self.poller.job, checkpoint=self._asked_checkpoint())
        wanted = self.elsewhere.listed(replace(asked, absent=gone))
        if wanted != self.slots and self.files.write(SLOTS_FILE, wanted.to_json()):
            self.slots = wanted

    def _asked_checkpoint(self) -> int:
        """The step that `atoll checkpoint` has written, which stays in the folder."""
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
        shards = [each for each in self.supervisor.in_roles("shard") if each.given_up]
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
