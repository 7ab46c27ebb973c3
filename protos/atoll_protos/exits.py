"""The table of exit codes, and of the codes with which a shard refuses a learner.

Kubernetes or the local supervisor starts a process again, whatever its code, so the code tells
above all whether another start can help; a refusal, whether dialling again can. To add an exit
code: its number and row, and the place that exits with it. To add a refusal: its number in `enum
Code` of v1/atoll.proto, its row, and the rule that refuses.
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
    RESTORE_REFUSED = 66
    BUG = 70
    BAD_DEVICE = 74
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
    of = f" of {steps}" if steps else ""
    reached = min(tick, steps) if steps else tick  # the clock passes the length by a few
    loop = f'loop "while not {loops_on}.finished"'
    return f"{RETURNED} {reached}{of}; the job is not final: {loop}"


@dataclass(frozen=True, slots=True)
class Exit:
    """What an exit code means.

    `reason` and `remedy` are those of the job's condition Failed, empty where another start may
    help. `failure`: after some in a row the local supervisor gives up.
    """

    code: ExitCode
    meaning: str
    failure: bool = False
    reason: str = ""
    remedy: str = ""

    @property
    def permanent(self) -> bool:
        return bool(self.reason)


_EXITS: Final = (
    Exit(ExitCode.FINAL, "the job is complete, or this process has done its part"),
    Exit(
        ExitCode.BAD_INPUT,
        "the run file, an argument or the environment is wrong",
        failure=True,
        reason="BadInput",
        remedy="fix what its log names, then start it again",
    ),
    Exit(
        ExitCode.OTHER_JOB,
        "the model, the manifest or the run differs from that of the other processes",
        failure=True,
        reason="OtherRun",
        remedy="give every pod the same model and manifest",
    ),
    Exit(
        ExitCode.RESTORE_REFUSED,
        "the run cannot begin with the checkpoint that spec.checkpoint.from names",
        failure=True,
        reason="RestoreRefused",
        remedy="follow the message",
    ),
    Exit(ExitCode.BUG, "an error in the program", failure=True),
    # A new start may heal it, as after an error that ended one program alone; on a cluster the
    # operator moves the learner at the first one.
    Exit(ExitCode.BAD_DEVICE, "a GPU of this machine is broken, or its driver hangs", failure=True),
    Exit(ExitCode.TRY_AGAIN, "the cause may pass, such as a transport that died: start it again"),
    Exit(ExitCode.SUPERSEDED, "another process has taken this one's place"),
)
EXITS: Final[Mapping[int, Exit]] = {row.code: row for row in _EXITS}


def is_permanent(code: int | None) -> bool:
    """Whether another start cannot help; False for codes that are not Atoll's."""
    return code is not None and code in EXITS and EXITS[code].permanent


# Signals that a process brings upon itself, such as SIGSEGV and SIGABRT; all others are kills.
CRASHES: Final = frozenset({-4, -5, -6, -7, -8, -11, -31})


def is_failure(code: int) -> bool:
    """Whether an exit counts as a failure; a negative code is a signal, and a kill is none."""
    return EXITS[code].failure if code in EXITS else code > 0 or code in CRASHES


@dataclass(frozen=True, slots=True)
class EndMeaning:
    """What the code of an `End` means; `exit_code` None: dial again. `remedy` is the default."""

    code: pb.Code
    exit_code: ExitCode | None
    remedy: str

    @property
    def retry(self) -> bool:
        return self.exit_code is None


_REFUSALS: Final = (
    EndMeaning(pb.SUPERSEDED, ExitCode.SUPERSEDED, "end this process; another one has its place"),
    EndMeaning(pb.OTHER_RUN_HASH, ExitCode.OTHER_JOB, "apply one manifest everywhere"),
    EndMeaning(pb.OTHER_LAYOUT, ExitCode.OTHER_JOB, "give every learner the same model"),
    EndMeaning(
        pb.OTHER_FROZEN,
        ExitCode.OTHER_JOB,
        "load the same values into every learner's model before its Learner",
    ),
    EndMeaning(
        pb.OTHER_CHECKPOINT,
        ExitCode.RESTORE_REFUSED,
        "give the learners the model of the checkpoint, or begin a new job with another one",
    ),
    # one of the two may be about to get another image
    EndMeaning(pb.OTHER_PROTOCOL, ExitCode.TRY_AGAIN, "run one version of Atoll everywhere"),
    EndMeaning(pb.UNKNOWN_SLOT, ExitCode.BAD_INPUT, "use a slot of one of spec.regions"),
    EndMeaning(
        pb.NOT_ALLOWED,
        ExitCode.BAD_INPUT,
        "give this process the credentials of its own region and role",
    ),
    # a new process holds nothing of it, and may join
    EndMeaning(
        pb.OTHER_RUN,
        ExitCode.TRY_AGAIN,
        "start the process again: a new one holds no state of another run",
    ),
    EndMeaning(pb.SLOT_HELD, None, "try again"),
    EndMeaning(pb.NOT_READY, None, "try again"),
    EndMeaning(pb.TOO_MANY_LANES, ExitCode.BAD_INPUT, "set ATOLL_LANES to fewer, or leave it out"),
    EndMeaning(pb.BAD_MESSAGE, None, "join again"),
    EndMeaning(pb.BAD_TRANSFER, None, "join again"),
    EndMeaning(pb.REPLACED, None, "join again"),
    # the learner trains on with the other shards meanwhile
    EndMeaning(pb.STORE_LOST, None, "restore from a checkpoint, or start a new job"),
)
REFUSALS: Final[Mapping[int, EndMeaning]] = {row.code: row for row in _REFUSALS}


def exit_code_of(code: pb.Code) -> ExitCode:
    """Return the exit of a learner that a shard refuses for good; TRY_AGAIN for unknown codes."""
    row = REFUSALS.get(code)
    return ExitCode.TRY_AGAIN if row is None or row.exit_code is None else row.exit_code
