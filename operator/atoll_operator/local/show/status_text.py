"""A status in a few lines for a person; pure."""

from itertools import pairwise

from atoll_operator.api.status.job_status import ProgressStatus, Status
from atoll_operator.api.status.reasons import FALSE, TRUE, UNKNOWN

UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
SILENT_SECONDS = 15.0  # of who writes a status at least so often
FEW = 10  # from here on a finer unit says nothing
TROUBLES = (
    ("Accepted", FALSE),
    ("Degraded", TRUE),
    ("SyncerReady", FALSE),
    ("Failed", TRUE),
)


def status_text(status: Status, job: str, steps: int | None, age_seconds: float) -> str:
    """`atoll run` wrote it `age_seconds` ago."""
    conditions = {condition.type: condition for condition in status.conditions or []}
    ready = conditions.get("Ready")
    lines = [f"{job}: {ready.reason if ready else 'unknown'}" + reached(status, steps)]
    if status.progress is not None:
        lines.append(_losses(status.progress))
    columns = status.columns
    over = any(status.true_condition(kind) for kind in ("Complete", "Failed", "Suspended"))
    if columns is not None and not over:
        live = [
            (region, "?" if region.live is None else region.live) for region in status.regions or []
        ]
        regions = ", ".join(f"{region.name} {count}/{region.learners}" for region, count in live)
        lines.append(f"learners {columns.learners} ({regions}), shards {columns.syncer}")
    for kind, bad in TROUBLES:
        found = conditions.get(kind)
        if found is not None and found.status in (bad, UNKNOWN) and found.message:
            lines.append(f"{kind}: {found.message}")
    if ready is not None and ready.message and not any(ready.message in line for line in lines):
        lines.append(ready.message)
    if age_seconds > SILENT_SECONDS and not over:
        lines.append(f"atoll run has written no status for {duration(age_seconds)}")
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])


def _losses(progress: ProgressStatus) -> str:
    metrics = {metric.name: metric.value for metric in progress.metrics or []}
    parts = [f"loss {progress.loss}"] if progress.loss else []
    if held_out := metrics.get("outer_loss"):
        parts.append(f"held out {held_out} at step {metrics.get('outer_loss_step')}")
    return ", ".join([*parts, f"{progress.tokens:,} tokens"])


def reached(status: Status, steps: int | None) -> str:
    progress = status.progress
    if progress is None:
        return ""
    step = f"{min(progress.step, steps)} of {steps}" if steps else str(progress.step)
    left = progress.estimated_remaining_seconds
    trains = status.true_condition("Progressing") is not None
    more = f", {time_left(left)}" if left and trains else ""
    return f", step {step} ({progress.progress_percentage}%){more}"


def time_left(seconds: int) -> str:
    return "nearly done" if seconds < 1 else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a duration in one or two units: 40 s, 3 min 5 s, 12 min, 2 h 10 min, 3 d 4 h."""
    whole = max(0, round(seconds))
    for (size, name), (finer, finer_name) in pairwise(UNITS):
        if whole >= 2 * size:
            count, rest = whole // size, whole % size // finer
            return f"{count} {name}" + (f" {rest} {finer_name}" if rest and count < FEW else "")
    return f"{whole} s"
