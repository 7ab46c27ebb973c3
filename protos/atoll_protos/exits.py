"""The table of exit codes, and of the codes with which a shard refuses a learner.

A process of a job says by its exit code why it ended; Kubernetes or the local supervisor starts
it again, whatever the code. So the code has to tell the operator and the supervisor one thing
above all: can another start help? `EXITS` answers that for every code, together with the words
that people read. Everything else about exit codes derives from the table: the reason and message
of the condition Failed, when the local supervisor gives up, what a refused learner exits with.

A refusal is the shard's side of the same question. Its `End` message carries a code, a reason and
a remedy; `REFUSALS` says for every code whether dialling again can help and, if not, with which
exit code the learner ends.

To add an exit code: its number and row here, and the place that exits with it. To add a refusal:
its number in `enum Code` of v1/atoll.proto, its row here, and the rule that refuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb


class ExitCode(IntEnum):
    """What a process of a job exits with. From 64 on as in BSD's sysexits.h, as far as it goes."""

    FINAL = 0
    BAD_INPUT = 64
    OTHER_JOB = 65
    BUG = 70
    TRY_AGAIN = 75
    SUPERSEDED = 77


# What a learner that has finished says last (Kubernetes' termination message): a script that ends
# its loop early exits with 0 as well.
FINISHED: Final = "finished: the model has the final values of every shard"

# The field with a rank in the launcher's line about it, if that rank's end was no consequence.
RANK_ENDED: Final = "rank_ended"

TERMINATED: Final = "terminated"  # what one says that ends as SIGTERM has told it
RETURNED: Final = "returned at tick"


def returned_early(tick: int, steps: int | None, loops_on: str = "learner") -> str:
    """What people are told of a script that has returned before the job is final."""
    of = f" of {steps}" if steps else ""
    reached = min(tick, steps) if steps else tick  # the clock passes the length by a few
    loop = f'loop "while not {loops_on}.finished"'
    return f"{RETURNED} {reached}{of}; the job is not final: {loop}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """What an exit code means.

    `permanent`: another start with the same input ends the same way; the job's condition Failed
    then has `reason` and `remedy`. `failure`: counts as one of the failures in a row after which
    the local supervisor gives the process up.
    """

    code: ExitCode
    meaning: str
    permanent: bool = False
    failure: bool = False
    reason: str = ""
    remedy: str = ""


EXITS: Final[Mapping[int, Exit]] = {
    row.code: row
    for row in (
        Exit(code=ExitCode.FINAL, meaning="the job is complete, or this process has done its part"),
        Exit(
            code=ExitCode.BAD_INPUT,
            meaning="the run file, an argument or the environment is wrong",
            permanent=True,
            failure=True,
            reason="BadInput",
            remedy="fix what its log names, then start it again",
        ),
        Exit(
            code=ExitCode.OTHER_JOB,
            meaning="the model, the manifest or the run differs from that of the other processes",
            permanent=True,
            failure=True,
            reason="OtherRun",
            remedy="give every pod the same model and manifest",
        ),
        Exit(code=ExitCode.BUG, meaning="an error in the program", failure=True),
        Exit(
            code=ExitCode.TRY_AGAIN,
            meaning="the cause may pass, such as a transport that died: the next start may work",
        ),
        Exit(code=ExitCode.SUPERSEDED, meaning="another process has taken this one's place"),
    )
}


def is_permanent(code: int | None) -> bool:
    """Whether another start cannot help. False for codes that are not Atoll's, and for None."""
    return code is not None and code in EXITS and EXITS[code].permanent


# Signals that a process brings upon itself, such as SIGSEGV and SIGABRT; all others are kills.
CRASHES: Final = frozenset({-4, -5, -6, -7, -8, -11, -31})


def is_failure(code: int) -> bool:
    """Whether an exit counts as a failure; a negative code is a signal, and a kill does not."""
    return EXITS[code].failure if code in EXITS else code > 0 or code in CRASHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the code of an `End` means to the learner that gets it.

    `retry`: dial again after a back-off. If not, the learner ends with `exit_code`. `remedy` goes
    with the code where the refusing rule knows no better one.
    """

    code: pb.Code
    exit_code: ExitCode = ExitCode.TRY_AGAIN
    retry: bool = False
    remedy: str


REFUSALS: Final[Mapping[int, Refusal]] = {
    row.code: row
    for row in (
        Refusal(
            code=pb.SUPERSEDED,
            exit_code=ExitCode.SUPERSEDED,
            remedy="end this process; another one has its place",
        ),
        Refusal(
            code=pb.OTHER_RUN_HASH,
            exit_code=ExitCode.OTHER_JOB,
            remedy="apply one manifest everywhere",
        ),
        Refusal(
            code=pb.OTHER_LAYOUT,
            exit_code=ExitCode.OTHER_JOB,
            remedy="give every learner the same model",
        ),
        Refusal(
            code=pb.OTHER_FROZEN,
            exit_code=ExitCode.OTHER_JOB,
            remedy="load the same values into every learner's model before its Learner",
        ),
        Refusal(
            code=pb.OTHER_PROTOCOL,  # one of the two may be about to get another image
            remedy="run one version of Atoll everywhere",
        ),
        Refusal(
            code=pb.UNKNOWN_SLOT,
            exit_code=ExitCode.BAD_INPUT,
            remedy="use a slot of one of spec.regions",
        ),
        Refusal(
            code=pb.NOT_ALLOWED,
            exit_code=ExitCode.BAD_INPUT,
            remedy="give this process the credentials of its own region and role",
        ),
        Refusal(
            code=pb.OTHER_RUN,  # a new process holds nothing of it, and may join
            remedy="start the process again: a new one holds no state of another run",
        ),
        Refusal(code=pb.SLOT_HELD, retry=True, remedy="try again"),
        Refusal(code=pb.NOT_READY, retry=True, remedy="try again"),
        Refusal(
            code=pb.TOO_MANY_LANES,
            exit_code=ExitCode.BAD_INPUT,
            remedy="set ATOLL_LANES to fewer, or leave it out",
        ),
        Refusal(code=pb.BAD_MESSAGE, retry=True, remedy="join again"),
        Refusal(code=pb.BAD_TRANSFER, retry=True, remedy="join again"),
        Refusal(code=pb.REPLACED, retry=True, remedy="join again"),
        Refusal(
            code=pb.STORE_LOST,
            retry=True,  # the learner trains on with the other shards meanwhile
            remedy="restore from a checkpoint, or start a new job",
        ),
    )
}


def exit_code_of(code: pb.Code) -> ExitCode:
    """What a learner exits with that a shard refuses for good; TRY_AGAIN for unknown codes."""
    return REFUSALS[code].exit_code if code in REFUSALS else ExitCode.TRY_AGAIN
