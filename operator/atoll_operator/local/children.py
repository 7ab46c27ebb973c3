"""What the status says of processes: which have ended and how, and which learners only start."""

from collections.abc import Sequence
from typing import Final

from atoll_operator.api.facts import STARTING_SECONDS_MAX
from atoll_operator.local.progress import Ends
from atoll_operator.local.supervisor import Child, by_slot, shown

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
        starting=tuple(slot for slot, hosts in learners.items() if _start(hosts, now)),
    )


def _start(hosts: Sequence[Child], now: float) -> bool:
    """Whether all processes of a learner run for the first time, and have for no long time."""
    return all(
        each.process is not None
        and each.record.first is None
        and now - each.started_at < STARTING_SECONDS_MAX
        for each in hosts
    )
