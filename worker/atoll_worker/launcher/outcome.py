"""What it means that processes of a learner have ended: whose end was the first cause; pure.

One process fails, and the others with it: they lose it in a collective (75, or an error of torch),
or are stopped. The order in which their ends are seen says little, since a process that failed may
take longer to end than one that has noticed it. So what an exit code says comes first:

    permanent codes   64 and 65 say what the user must mend
    77                the head has learned that another process has its slot
    any other         the first that was seen
    75 and SIGTERM    mostly what the end of another one has brought about
"""

from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Final

from atoll_protos.exits import ExitCode, is_failure, is_permanent

TERMINATED: Final = -int(Signals.SIGTERM)
CONSEQUENCES: Final = frozenset({int(ExitCode.TRY_AGAIN), TERMINATED, 128 - TERMINATED})


def first_cause(codes: Mapping[int, int]) -> int | None:
    """The rank that has ended the others; None if none failed.

    `codes` are exit codes by rank, in the order in which the ends were seen; a negative one is a
    signal.
    """
    failed = [rank for rank, code in codes.items() if code != ExitCode.FINAL]
    return min(failed, key=lambda rank: _order(codes[rank])) if failed else None


def _order(code: int) -> int:
    if is_permanent(code):
        return 0
    if code == ExitCode.SUPERSEDED:
        return 1
    return 3 if code in CONSEQUENCES else 2


def code_of(codes: Mapping[int, int]) -> int:
    """What the launcher exits with: the code of the first cause, 0 if none failed."""
    cause = first_cause(codes)
    return int(ExitCode.FINAL) if cause is None else codes[cause]


def is_own(code: int) -> bool:
    """Whether a process that ends so has failed by itself, or has to leave its place to another."""
    return is_failure(code) or code == ExitCode.SUPERSEDED


def ends_launcher(code: int, began_here: bool) -> bool:
    """Whether the launcher ends with this code, although its processes may start again in place.

    It does where another start cannot help. A host of several does so, too, when the learner failed
    because of a process of this host (`began_here`): whoever starts it again counts its failures
    and takes his time. Processes that were killed, and those of the other hosts, start in place.
    """
    return is_permanent(code) or (began_here and is_own(code))


def code_after_signal(number: int, codes: Mapping[int, int]) -> int:
    """The same where the launcher was told to end by this signal.

    All processes got it at the same time. Who of them was first to leave the job in order exits
    with 0, and may take a collective from under the others; that is as it was wanted.
    """
    return int(ExitCode.FINAL) if ExitCode.FINAL in codes.values() else -number


def ended_before(ranks: Sequence[int]) -> str:
    """That these ranks had ended with 0 when another one failed, behind what is said of that."""
    if not ranks:
        return ""
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"; rank {min(ranks)}{more} had ended before it (exit code 0)"


def host_name(number: str, name: str) -> str:
    """A host in words; `number`: its place among those of its learner, empty of the only one."""
    return f"host {number} ({name})" if number else name


def words(code: int) -> str:
    """An exit code, or the signal, in words."""
    return f"exit code {code}" if code >= 0 else _signal(-code)


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
