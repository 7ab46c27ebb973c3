"""What is said of processes: which have ended and how, and which learners only start; pure."""

from collections.abc import Sequence
from typing import Final

from atoll_operator.api.status.condition_facts import STARTING_SECONDS_MAX
from atoll_operator.local.folder.run_files import shown
from atoll_operator.local.progress.local_status import ProcessReports
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.supervision.child import Child, by_slot
from atoll_protos.exits import is_permanent

LEARNER: Final = "learner"


def reports_of(children: Sequence[Child], now: float) -> ProcessReports:
    given_up: list[str] = []
    started_again: dict[str, str] = {}
    for child in children:
        text = f"{child.planned.name} {child.ended}; log: {shown(child.log)}"
        if child.ended and child.given_up:
            given_up.append(text)
        elif child.ended:
            started_again.setdefault(child.planned.whole, text)
    starting = {}
    learners = by_slot(child for child in children if child.planned.role == LEARNER)
    for slot, hosts in learners.items():
        seconds = now - min(each.started_at for each in hosts)
        first = all(each.process is not None and each.record.first is None for each in hosts)
        if first and seconds < STARTING_SECONDS_MAX:
            starting[slot] = seconds
    return ProcessReports(given_up=given_up, started_again=started_again, starting=starting)


def ended_after(children: Sequence[Child]) -> dict[str, str]:
    return {child.planned.name: child.after for child in children if child.after}


def refused(children: Sequence[Child]) -> dict[str, str]:
    """By process: why a learner was refused for good, so that another start cannot help it."""
    return {
        child.planned.name: child.given_up
        for child in children
        if child.planned.role == LEARNER
        and child.given_up
        and child.record.last is not None
        and is_permanent(child.record.last.code)
    }


def exit_of(children: Sequence[Child], *, allow_refused: bool) -> RunResult:
    if ended_after(children):
        return RunResult.FAILED_AFTER
    return RunResult.REFUSED if refused(children) and not allow_refused else RunResult.COMPLETE


def afterwards(children: Sequence[Child], code: RunResult) -> str:
    """What the last line of a complete job says of processes, and of its exit code."""
    said: dict[str, list[Child]] = {}
    for child in children:
        if child.after:
            said.setdefault(child.after, []).append(child)
    parts = []
    for how, those in said.items():
        names = ", ".join(each.planned.name for each in those)
        parts.append(f"once the job was over {names}: {how}; log: {shown(those[0].log)}")
    if names := ", ".join(refused(children)):
        more = " (--allow-refused: 0)" if code is RunResult.REFUSED else ""
        parts.append(f"refused for good: {names}{more}")
    if code is not RunResult.COMPLETE:
        parts.append(f"exit code {int(code)}")
    return "".join(f"; {part}" for part in parts)
