"""A row for each learner and each shard, for `atoll top` and the live table of `atoll run`; pure.

tokens/s   the tokens of a step in its last merge, by the seconds of a step; its count of steps
           does not serve, since one that joined late has not made all of them
busy       share of its time outside of `learner.step`
blocked    seconds inside of `learner.step`, over this start of the process
late       share of its tokens, of this start, that came too late for a merge
share      of the weight of the last merge that had it, as shard 0 says
quorum     learners that a merge waits for
grace      seconds that an open merge waits for more than these
state      Starting: its process has made no step yet; Reading: a shard reads its values back
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import filesize

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.condition_facts import reads
from atoll_operator.api.status.seen_status import in_first_step
from atoll_operator.local.progress.machines import ShownMachine
from atoll_operator.local.show.machine_table import machine_rows, of_slots
from atoll_protos.job.shown_states import shard_text, slot_text

LEARNERS = ("LEARNER", "STATE", "STEP TIME", "TOKENS/S", "BUSY", "BLOCKED", "LATE", "SHARE", "LOSS")
SHARDS = ("SHARD", "STATE", "TICK", "COMMITS", "QUORUM", "GRACE", "RECEIVED", "SENT")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shard says, or why it says nothing."""

    reply: pb.StatusReply | None
    problem: str = ""


def table(
    answers: Sequence[Answer],
    nodes: Mapping[str, str],
    *,
    last: pb.StatusReply | None = None,
    names: Sequence[str] = (),
    machines: Sequence[ShownMachine] = (),
    now: float = 0.0,
) -> str:
    """The tables as text. `nodes`: by process, the node it runs on; empty: there are none.

    `last`: what shard 0 said last, if that is known. While it is silent learners have these
    numbers, and no state. `names`: the job's learners, which have a row before they join.
    `machines` are those of `atoll serve`, at `now` in UNIX seconds.
    """
    heard = answers[0].reply if answers else None
    registrar = heard or last
    learners = [[*LEARNERS], *map(_learner, registrar.slots if registrar else ())]
    if heard is None:
        for row in learners[1:]:
            row[1] = "?"
    known, rest = {row[0] for row in learners}, [NOTHING] * (len(LEARNERS) - 2)
    learners += [[name, "Starting", *rest] for name in names if name not in known]
    shards = [[*SHARDS], *(_shard(number, each) for number, each in enumerate(answers))]
    if nodes:
        for rows in (learners, shards):
            _add(rows, "NODE", nodes)
    if machines:
        _add(learners, "MACHINE", of_slots(machines))
    first = (
        _aligned(learners) if registrar or names else "learners: unknown while shard 0 is silent"
    )
    problems = [each.problem for each in answers if each.problem]
    tables = [_aligned(machine_rows(machines, now))] if machines else []
    return "\n\n".join([first, _aligned(shards), *tables, *problems])


def _add(rows: list[list[str]], column: str, values: Mapping[str, str]) -> None:
    """The column of what each row's process has."""
    rows[0].append(column)
    for row in rows[1:]:
        row.append(values.get(row[0], NOTHING))


def _learner(slot: pb.SlotStatus) -> list[str]:
    known = slot.t_m and slot.step_seconds  # else its present process has made no step
    return [
        slot.slot,
        "Starting" if in_first_step(slot) else slot_text(slot.state),
        f"{slot.step_seconds:.2f} s" if known else NOTHING,
        _rate(slot),
        f"{slot.busy_share:.0%}" if known else NOTHING,
        f"{slot.blocked_seconds:.1f} s" if known else NOTHING,
        f"{slot.late_share:.0%}" if known else NOTHING,
        f"{slot.merge_share:.0%}" if slot.merge_share else NOTHING,
        f"{slot.loss:.3f}" if known and not math.isnan(slot.loss) else NOTHING,
    ]


def _rate(slot: pb.SlotStatus) -> str:
    if not (slot.t_m and slot.step_seconds and slot.merge_tokens_per_step):
        return NOTHING
    return f"{slot.merge_tokens_per_step / slot.step_seconds:,.0f}"


def _shard(number: int, answer: Answer) -> list[str]:
    reply = answer.reply
    if reply is None:
        return [f"shard-{number}", "silent", *[NOTHING] * (len(SHARDS) - 2)]
    return [
        f"shard-{number}",
        "Reading" if reads(reply) else shard_text(reply.state),
        str(reply.tick),
        str(reply.commits),
        str(reply.quorum),
        f"{reply.grace_seconds:.2f} s",
        filesize.decimal(reply.bytes_received),
        filesize.decimal(reply.bytes_sent),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
