"""The table of `atoll top`: a row for each learner and each shard, from what the shards say; pure.

tokens/s   of the learner's present process: its tokens so far by the steps that it made
busy       share of its time outside of `learner.step`
blocked    seconds inside of `learner.step`, over this start of the process
late       share of its tokens, of this start, that came too late for a merge
share      of the weight of the last merge that had it, as shard 0 says
quorum     learners that a merge waits for
grace      seconds that an open merge waits for more than these
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.states import shard_text, slot_text

LEARNERS = ("LEARNER", "STATE", "STEP TIME", "TOKENS/S", "BUSY", "BLOCKED", "LATE", "SHARE", "LOSS")
SHARDS = ("SHARD", "STATE", "TICK", "COMMITS", "QUORUM", "GRACE", "RECEIVED", "SENT")
UNITS = ("B", "kB", "MB", "GB", "TB")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shard says, or why it says nothing."""

    reply: pb.StatusReply | None
    problem: str = ""


def table(answers: Sequence[Answer], nodes: Mapping[str, str]) -> str:
    """Both tables as text. `nodes`: by process, the node it runs on; empty: there are none."""
    registrar = answers[0].reply if answers else None
    learners = [_learner(slot) for slot in registrar.slots] if registrar else []
    shards = [_shard(number, each) for number, each in enumerate(answers)]
    learners = [[*LEARNERS], *learners]
    shards = [[*SHARDS], *shards]
    if nodes:
        for rows in (learners, shards):
            rows[0].append("NODE")
            for row in rows[1:]:
                row.append(nodes.get(row[0], NOTHING))
    blocks = ["\n".join(_aligned(learners)), "\n".join(_aligned(shards))]
    if registrar is None:
        blocks[0] = "learners: unknown while shard 0 is silent"
    problems = [each.problem for each in answers if each.problem]
    return "\n\n".join([*blocks, *problems])


def _learner(slot: pb.SlotStatus) -> list[str]:
    known = slot.t_m and slot.step_seconds
    rate = slot.tokens / slot.t_m / slot.step_seconds if known else 0.0
    return [
        slot.slot,
        slot_text(slot.state),
        f"{slot.step_seconds:.2f} s" if known else NOTHING,
        f"{rate:,.0f}" if known else NOTHING,
        f"{slot.busy_share:.0%}" if known else NOTHING,
        f"{slot.blocked_seconds:.1f} s" if known else NOTHING,
        f"{slot.late_share:.0%}" if known else NOTHING,
        f"{slot.merge_share:.0%}" if slot.merge_share else NOTHING,
        f"{slot.loss:.3f}" if known and not math.isnan(slot.loss) else NOTHING,
    ]


def _shard(number: int, answer: Answer) -> list[str]:
    reply = answer.reply
    if reply is None:
        return [f"shard-{number}", "silent", *[NOTHING] * (len(SHARDS) - 2)]
    return [
        f"shard-{number}",
        shard_text(reply.state),
        str(reply.tick),
        str(reply.commits),
        str(reply.quorum),
        f"{reply.grace_seconds:.2f} s",
        size(reply.bytes_received),
        size(reply.bytes_sent),
    ]


def size(count: float) -> str:
    """Bytes in a unit that people read: 999 B, 1.5 MB."""
    for unit in UNITS[:-1]:
        if count < 1000:  # noqa: PLR2004 - of the decimal units
            return f"{count:.0f} B" if unit == UNITS[0] else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
