"""The command `atoll`: validate, run, status, eval."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll_operator import plan, plots, progress, summary
from atoll_operator.local import JobFailedError, Supervisor, free_ports, write_json
from atoll_operator.spec import Job, parse
from atoll_protos.errors import SpecError

COMPLETE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
POLL_SECONDS = 0.5
LINE_SECONDS = 5.0
CHAOS_SECONDS = 20.0

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Train one model on islands.")


def main() -> None:
    """Bad input is one line that names the field and the remedy, and exit code 2."""
    try:
        app()
    except SpecError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(BAD_INPUT)


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """The manifest in a file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error
    job = parse(text, changes)
    plan.run_file(job)
    return job


@app.command()
def validate(file: Path) -> None:
    """Check a manifest without a cluster."""
    job = read_job(file)
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners: valid")


@app.command()
def run(
    file: Path,
    out: Annotated[Path, typer.Option("--out", help="run folder")],
    change: Annotated[list[str] | None, typer.Option("--set", help="spec.x=y")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the run in --out")] = False,
    output: Annotated[str, typer.Option("--output", help="table, lines or json")] = "table",
    chaos: Annotated[bool, typer.Option("--chaos", help="kill a process now and then")] = False,
) -> None:
    """Train on this machine: the manifest's learners and shards as processes."""
    job = read_job(file, tuple(change or ()))
    if output not in ("table", "lines", "json"):
        raise SpecError("--output", f"{output!r} is unknown", "use table, lines or json")
    new = not (out / "run.json").exists()
    if not new and not resume:
        raise SpecError("--out", f"{out} holds a run", "give another folder, or add --resume")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.json").write_text(plan.run_file(job).to_json(), encoding="utf-8")
    (out / "job.yaml").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    ports = free_ports(job.spec.syncer.shards)
    supervisor = Supervisor(plan.processes(job, out, ports, new=new), out)
    begun = time.monotonic()
    table = output == "table" and sys.stdout.isatty()
    code, reason = INTERRUPTED, "interrupted; go on with --resume"
    status: Any = progress.status(job, [None] * len(ports), [])
    try:
        status = _supervise(job, supervisor, progress.Poller(ports), out, output, table, chaos)
        code, reason = COMPLETE, "complete"
    except JobFailedError as error:
        code, reason = FAILED, str(error)
    except KeyboardInterrupt:
        pass
    finally:
        supervisor.stop()
    result = {COMPLETE: "Complete", FAILED: "Failed", INTERRUPTED: "Interrupted"}[code]
    found = summary.summarise(out, result, time.monotonic() - begun, status)
    write_json(out / "summary.json", found)
    plots.draw(out, found["tokens"])
    typer.echo(f"{reason}: {_sentence(found)}; see {out}/summary.json and {out}/loss.png")
    raise typer.Exit(code)


def _supervise(
    job: Job,
    supervisor: Supervisor,
    poller: progress.Poller,
    out: Path,
    output: str,
    table: bool,
    chaos: bool,
) -> Any:
    """Until the registrar says Complete; returns the last status."""
    from rich.live import Live  # noqa: PLC0415 - only local mode has it

    said = chaos_at = time.monotonic()
    live = Live(auto_refresh=False, transient=True) if table else None
    if live:
        live.start()
    try:
        while True:
            now = time.monotonic()
            supervisor.look(now)
            replies = poller.poll()
            status = progress.status(job, replies, summary.read_lines(out / "evaluations.jsonl"))
            write_json(out / "status.json", status)
            if live:
                live.update(_table(job, replies[0], status), refresh=True)
            elif now - said >= LINE_SECONDS:
                said = now
                typer.echo(json.dumps(status) if output == "json" else _line(status))
            registrar = replies[0]
            if registrar is not None and registrar.state == "Failed":
                raise JobFailedError(registrar.reason)
            if registrar is not None and registrar.state == "Complete" and _evaluated(supervisor):
                return status
            if chaos and now - chaos_at >= CHAOS_SECONDS:
                chaos_at = now
                child = random.choice([c for c in supervisor.children if c.process])
                typer.echo(f"chaos: kill -9 {child.planned.name}")
                supervisor.kill(child)
            time.sleep(POLL_SECONDS)
    finally:
        if live:
            live.stop()


def _evaluated(supervisor: Supervisor) -> bool:
    """The evaluator ends by itself once it has measured the final values."""
    evaluators = [c for c in supervisor.children if c.planned.role == "evaluator"]
    learners = [c for c in supervisor.children if c.planned.role == "learner"]
    return all(child.done for child in evaluators + learners)


def _table(job: Job, reply: Any, status: Any) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=_line(status))
    for column in ("learner", "state", "step", "tokens/s", "loss", "last adoption"):
        table.add_column(column)
    for row in progress.slot_rows(job, reply):
        table.add_row(*row)
    return table


def _line(status: Any) -> str:
    current = status["progress"]
    loss = "-" if current["loss"] is None else f"{current['loss']:.3f}"
    outer = current["metrics"][0]["value"] if current["metrics"] else "-"
    left = current["estimatedRemainingSeconds"]
    return (
        f"tick {current['step'] or 0} ({current['progressPercentage']}%)  "
        f"learners {status['learnersLive']}/{status['learnersDesired']}  "
        f"quorum {status['quorum']}  loss {loss}  outer loss {outer}  "
        f"ETA {'-' if left is None else f'{left} s'}"
    )


def _sentence(found: Any) -> str:
    loss = found["outer_loss"]
    change = (
        "" if loss["end"] is None else f", held-out loss {loss['start']:.3f} -> {loss['end']:.3f}"
    )
    return f"{found['tokens']['trained']:,} tokens, {found['goodput']:.0%} merged{change}"


@app.command()
def status(folder: Path) -> None:
    """The status of a run folder."""
    path = folder / "status.json"
    if not path.exists():
        raise SpecError(str(folder), "holds no status.json", "give the --out folder of a run")
    typer.echo(path.read_text(encoding="utf-8"), nl=False)


@app.command(name="eval", context_settings={"ignore_unknown_options": True})
def evaluate(export: Path, arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Held-out loss of an exported model: JSON with nats per byte."""
    command = [sys.executable, "-P", "-m", "atoll_worker.evaluate", "--export", str(export)]
    raise typer.Exit(subprocess.run([*command, *(arguments or [])], check=False).returncode)
