"""`atoll run`: trains a script, a manifest, or what a run folder holds, on this machine."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml

from atoll_operator.api.job import parsing
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.cli.validate import checked, read_text
from atoll_operator.local import run_manifest
from atoll_operator.local.chaos import Fault, read_plan
from atoll_operator.local.last_status import check_same, read_status
from atoll_operator.local.process_plan import shard_process
from atoll_operator.local.run_files import MACHINES_FOLDER, MANIFEST_FILE, RUN_FILE, continued_by
from atoll_operator.local.run_manifest import Document
from atoll_operator.local.show.live import Output
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.sizing import needs
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile

SET_HELP = """Change a field of the manifest for this run. Repeatable. Examples:
--set spec.steps=100; --set spec.sync.outer.momentum=0.5; --set spec.evaluator= (removes it);
--set spec.regions.0.learners=2 or --set spec.regions.us.learners=2 (an entry of a list);
--set 'spec.regions=[{name: us, learners: 2}, {name: eu}]' (the list as a whole)."""


What = Annotated[
    Path,
    typer.Argument(
        metavar="SCRIPT.py|MANIFEST|DIR",
        help="Your script, a manifest, or with --resume the folder of a run.",
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGUMENTS", help="Of the script, after two dashes."),
]
Learners = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of learners of a script.", show_default="2, or 1 in each region"
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Length of a script's training, in steps of the job.")
]
Regions = Annotated[
    str,
    typer.Option(
        metavar="NAME,NAME",
        help="Regions over which a script's learners are spread in turn.",
        show_default="one region",
    ),
]
GpusPerLearner = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="GPUs of its own for each learner, as nvidia.com/gpu in the manifest says it;"
        " 0: learners see none.",
        show_default="as the manifest says",
    ),
]
ProcessesPerLearner = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes of each learner, the ranks of torch.distributed; they share its GPUs.",
        show_default="as the manifest says",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Folder for everything the run writes.", show_default="runs/NAME-TIME"
    ),
]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help=SET_HELP)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run that the folder holds.")]
ResumeFrom = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="Begin a new run with a checkpoint: the folder of a run or of a checkpoint, or the"
        " URL of either in a bucket.",
    ),
]
Record = Annotated[
    int | None,
    typer.Option(
        "--record",
        metavar="COMMITS",
        min=1,
        help="Keep the offers of so many merges of each slice, for `atoll replay`.",
    ),
]
Shown = Annotated[Output, typer.Option("--output", help="What to show; without a terminal, lines.")]
AllowRefused = Annotated[
    bool,
    typer.Option(
        "--allow-refused",
        help="Exit with 0, not 4, also when a learner was refused for good"
        " and the job is complete without it.",
    ),
]
Chaos = Annotated[
    bool,
    typer.Option(
        "--chaos",
        help="Kill a random process with SIGKILL whenever all have trained for 20 s.",
        rich_help_panel="For those who test Atoll",
    ),
]
ChaosPlan = Annotated[
    Path | None,
    typer.Option(
        "--chaos-plan",
        metavar="PLAN.yaml",
        help="Make the faults of this plan: docs/chaos.md has its words.",
        rich_help_panel="For those who test Atoll",
    ),
]


def run(  # noqa: PLR0913, PLR0917 - each argument is an option of the command
    what: What,
    arguments: Arguments = None,
    learners: Learners = None,
    steps: Steps = None,
    regions: Regions = "",
    gpus_per_learner: GpusPerLearner = None,
    processes_per_learner: ProcessesPerLearner = None,
    out: Out = None,
    change: Changes = None,
    resume: Resume = False,
    resume_from: ResumeFrom = "",
    record: Record = None,
    output: Shown = Output.TABLE,
    allow_refused: AllowRefused = False,
    chaos: Chaos = False,
    chaos_plan: ChaosPlan = None,
) -> None:
    """Train on this machine: learners and shards run as processes.

    A script needs no manifest: one is made for it, with the defaults.
    Every run keeps the manifest that it trained in its folder, as manifest.yaml.
    """
    from atoll_operator.local.atoll_run import train  # noqa: PLC0415 - only this verb needs gRPC

    if what.suffix == ".py":
        here = Path.cwd()  # of relative working folders
        names = [word.strip() for word in regions.split(",") if word.strip()]
        made = run_manifest.of_script(what, arguments or (), learners, steps, names)
        text = yaml.safe_dump(made, sort_keys=False)
    else:
        _refuse_of_script(what, learners=learners, steps=steps, regions=regions, more=arguments)
        what, out = of_folder(what, out, resume=resume)
        text, here = read_text(what), what.resolve().parent
    changes = [*(change or ()), *_begins_with(resume_from, resume=resume)]
    document = changed(text, changes, here, gpus_per_learner, processes_per_learner)
    if resume:
        document["spec"].pop("suspend", None)  # somebody wishes that it goes on
    job = checked(document)
    warn(job)
    folder = checked_folder(job, out, resume=resume)
    if (folder / MACHINES_FOLDER).exists():
        problem = "has a run of `atoll serve`, whose machines `atoll run` does not know"
        raise SpecError(str(folder), problem, f"continue it: {continued_by(folder)}")
    code = train(
        job,
        folder.resolve(),
        resume=resume,
        output=output,
        manifest=run_manifest.kept_manifest(text, document, sys.argv[2:], folder),
        chaos=chaos,
        faults=_faults(job, chaos_plan) if chaos_plan else (),
        allow_refused=allow_refused,
        record=record or 0,
    )
    raise typer.Exit(code)


def _faults(job: Job, file: Path) -> Sequence[Fault]:
    shards = [shard_process(number) for number in range(job.spec.syncer.shards)]
    return read_plan(read_text(file), job.spec.slots, shards)


def warn(job: Job) -> None:
    """Say which link or overlap will not hold, as far as the manifest says."""
    for warning in needs.warnings(job.spec):
        typer.echo(f"warning: {warning}", err=True)


def _begins_with(place: str, *, resume: bool) -> list[str]:
    """Return the change of a manifest by which a new run begins with a checkpoint."""
    if not place:
        return []
    if resume:
        problem = "begins a new run, and --resume continues one"
        raise SpecError("--resume-from", problem, "leave one of them out")
    if "://" not in place:
        if not Path(place).is_dir():
            remedy = "give the folder of a run or of a checkpoint"
            raise SpecError("--resume-from", f"{place} is no folder", remedy)
        place = f"file://{Path(place).resolve()}"
    return [f"spec.checkpoint.from={json.dumps(place)}"]


def checked_folder(job: Job, out: Path | None, *, resume: bool) -> Path:
    """Return the folder of a run that can be done here. Ends the command if it is complete."""
    if (refused := parsing.on_this_machine(job)) is not None:
        raise refused
    if out is None and resume:
        remedy = "give the folder of the run: atoll run DIR --resume"
        raise SpecError("--resume", "needs to know which run", remedy)
    folder = out or run_manifest.default_out(job.name, time.time())
    if resume and (said := complete_in(job, folder)):
        typer.echo(said)
        raise typer.Exit(RunResult.COMPLETE)
    return folder


def changed(
    text: str, changes: Sequence[str], here: Path, gpus: int | None, processes: int | None
) -> Document:
    document = parsing.document_in(text, tuple(changes))
    checked(document)
    document = run_manifest.with_folders(document, here)
    if gpus is not None:
        document = run_manifest.with_gpus(document, gpus)
    if processes is not None:
        document = run_manifest.with_processes(document, processes)
    return document


def _refuse_of_script(what: Path, *, more: list[str] | None, **given: int | str | None) -> None:
    fields = {"learners": "spec.regions", "steps": "spec.steps", "regions": "spec.regions"}
    for name, value in given.items():
        if value:
            problem = f"is for a script, and {what} is none"
            raise SpecError(f"--{name}", problem, f"use --set {fields[name]}=...")
    if more:
        remedy = "use --set 'spec.learner.template.spec.containers=[{name: learner, args: [...]}]'"
        raise SpecError(f"-- {more[0]}", f"is for a script, and {what} is none", remedy)


def complete_in(job: Job, out: Path) -> str:
    """Describe a complete run that was asked to continue; empty for any other."""
    try:
        found = read_status(out)
        had = RunFile.from_json(read_text(out / RUN_FILE))
    except SpecError:
        return ""  # there is no run yet, or it has written no status
    if found.true_condition("Complete") is None:
        return ""
    reached = found.progress.step if found.progress else 0
    if (job.spec.steps or 0) > (had.steps or 0) or (job.spec.tokens or 0) > (had.tokens or 0):
        problem = f"the run in {out} is complete since step {reached}, and stays so"
        raise SpecError("--resume", problem, f"begin a new one: atoll run {out / MANIFEST_FILE}")
    check_same(run_file(job), had, out)
    return f"the run in {out} is complete since step {reached}; the model is in {out / 'export'}"


def of_folder(what: Path, out: Path | None, *, resume: bool) -> tuple[Path, Path | None]:
    if what.is_dir():
        if not resume:
            problem = "is a folder"
            raise SpecError(str(what), problem, "give a script or a manifest, or add --resume")
        what = what / MANIFEST_FILE
    if resume and out is None and (what.parent / RUN_FILE).exists():
        out = what.parent
    return what, out
