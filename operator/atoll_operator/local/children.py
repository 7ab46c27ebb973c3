"""What is said of processes: which have ended and how, and which learners only start; pure."""

from collections.abc import Sequence
from typing import Final

from atoll_operator.api.facts import STARTING_SECONDS_MAX
from atoll_operator.local.files import shown
from atoll_operator.local.progress import Ends
from atoll_operator.local.summary import Exit
from atoll_operator.local.supervisor import Child, by_slot
from atoll_protos.exits import is_permanent

LEARNER: Final = "learner"


def ends_of(children: Sequence[Child], now: float) -> Ends:
    """What is known of these processes; `now` is in monotonic seconds."""
    given_up: list[str] = []
    started_again: dict[str, str] = {}
    for child in children:
        text = f"{child.planned.name} {child.ended}; log: {shown(child.log)}"
        if child.ended and child.given_up:
            given_up.append(text)
        elif child.ended:
            started_again.setdefault(child.planned.whole, text)
    learners = by_slot(child for child in children if child.planned.role == LEARNER)
    return Ends(
        given_up=given_up,
        started_again=started_again,
        starting={
            slot: now - min(each.started_at for each in hosts)
            for slot, hosts in learners.items()
            if _start(hosts, now)
        },
    )


def _start(hosts: Sequence[Child], now: float) -> bool:
    """Whether all processes of a learner run for the first time, and have for no long time."""
    return all(
        each.process is not None
        and each.record.first is None
        and now - each.started_at < STARTING_SECONDS_MAX
        for each in hosts
    )


def ended_after(children: Sequence[Child]) -> dict[str, str]:
    """By process: how it ended otherwise than in order, once the job was final."""
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


def exit_of(children: Sequence[Child], *, allow_refused: bool) -> Exit:
    """The exit code of a job that is complete."""
    if ended_after(children):
        return Exit.FAILED_AFTER
    return Exit.REFUSED if refused(children) and not allow_refused else Exit.COMPLETE


def afterwards(children: Sequence[Child], code: Exit) -> str:
    """What the last line of a complete job says of processes, and of its exit code."""
    said, logs = dict[str, list[str]](), dict[str, str]()
    for child in children:
        if child.after:
            said.setdefault(child.after, []).append(child.planned.name)
            logs.setdefault(child.after, shown(child.log))
    parts = [
        f"once the job was over {', '.join(names)}: {how}; log: {logs[how]}"
        for how, names in said.items()
    ]
    if names := ", ".join(refused(children)):
        more = " (--allow-refused: 0)" if code is Exit.REFUSED else ""
        parts.append(f"refused for good: {names}{more}")
    if code is not Exit.COMPLETE:
        parts.append(f"exit code {int(code)}")
    return "".join(f"; {part}" for part in parts)
