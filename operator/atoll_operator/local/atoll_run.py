"""One run of `atoll run`, from a checked job to its summary.

However it ends, the supervisor stops all processes, learners before shards, and then the summary
and the pictures are made from the files of the run folder alone.

A new run passes `--new` to its shards. It promises that no process of this run can exist yet, so
the registrar may start the run at once; with `--resume` it must first ask the other shards.
"""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll_operator.api.job.parsing import without_effect_here
from atoll_operator.api.job.process_inputs import expected, run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import late_work
from atoll_operator.local import gpus, last_status, local_status, run_folder
from atoll_operator.local.chaos import Chaos, Fault, Links
from atoll_operator.local.passes import NONE, Elsewhere, JobFailedError, LocalRun
from atoll_operator.local.poller import Poller, utc_now
from atoll_operator.local.process_plan import Planned, endpoints_in, own_checkpoints, processes
from atoll_operator.local.run_files import (
    CHAOS_FILE,
    LENGTH_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    SLOTS_FILE,
    STORE_FILE,
    Files,
    continued_by,
    read_lines,
    shown,
    write_whole,
)
from atoll_operator.local.run_manifest import ManifestInUse, next_length
from atoll_operator.local.show import plots, run_summary
from atoll_operator.local.show.curves import recording
from atoll_operator.local.show.live import Output, echo, view_for
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.startable import (
    afterwards,
    check_startable,
    ended_after,
    exit_of,
    free_ports,
    refused,
    unsaved,
)
from atoll_operator.local.supervisor import Supervisor
from atoll_protos.errors import SpecError
from atoll_protos.exits import EXITS, ExitCode
from atoll_protos.job.run_file import Expected, RunFile

STOPPING = (
    "stopping: learners leave in order, then come the summary and the pictures; another Ctrl-C"
    " does not cut this short"
)


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
    here = elsewhere.here(job)
    found = gpus.find(os.environ) if gpus.matter(here) else gpus.VisibleGpus()
    places = Places(out=out, endpoints=elsewhere.endpoints, found=found, record=record)
    check_startable(places.planned(here, new=True))
    view = view_for(output, terminal=sys.stdout.isatty())
    with (
        run_folder.running(out),
        run_folder.private(out, stores=not job.spec.syncer.storage.url) as umask,
        _endpoints(job, out, elsewhere) as places.endpoints,
        Links(faults, places.endpoints).open() as links,
        elsewhere.open(view.say),
    ):
        url = job.spec.syncer.storage.url
        new = prepare(wanted, slots, out, manifest, resume=resume, url=url)
        uid = {"uid": last_status.uid_in(out)}
        job, here = job.model_copy(update=uid), here.model_copy(update=uid)
        where = f"The run's folder is {shown(out)}." if new else ""
        said = (where, *without_effect_here(job), gpus.advice(here, found), elsewhere.invitation())
        for line in filter(None, said):
            view.say(line)
        files = Files(out, view.say)
        planned = links.through(elsewhere.through(places.planned(here, new=new)))
        supervisor = Supervisor(planned, files, view.say, job.spec.steps, umask)

        def plan(edited: Job) -> list[Planned]:
            return links.through(
                elsewhere.through(places.planned(elsewhere.here(edited), new=False))
            )

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
        """Raises SpecError where there are too few GPUs."""
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
        if training.complete_at is not None:
            training.stopped("stopped by Ctrl-C")
            return RunResult.COMPLETE, "complete"
        training.interrupted()
        return RunResult.INTERRUPTED, f"interrupted ({continued_by(training.files.out)} continues)"
    return RunResult.COMPLETE, "complete"


def _summarise(training: LocalRun, code: RunResult, outcome: str, seconds: float) -> None:
    out, say, reached = training.files.out, training.view.say, training.status.progress
    children, spec = training.supervisor.children, training.poller.job.spec
    result = RunResult.COMPLETE if training.complete_at is not None else code
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
    for each in (signal.SIGINT, signal.SIGHUP):  # a shell's background job and nohup ignore them
        if signal.getsignal(each) is not signal.SIG_IGN:
            heard.append(each)

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
        for each in heard:
            signal.signal(each, handler)

    hear(interrupt)
    try:
        yield again_if_lost
    finally:
        hear(again)
