"""What it means that processes of a learner have ended: whose end was the first cause; pure.

One process fails, and the others with it: they lose it in a collective (75, or an error of torch),
or are stopped. A process that failed may take longer to end than one that has noticed it, so the
exit code says more than the order in which the ends are seen (`_order`).
"""

from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Final

from atoll_protos.exits import ExitCode, is_failure, is_permanent

TERMINATED: Final = -int(Signals.SIGTERM)
CONSEQUENCES: Final = frozenset({int(ExitCode.TRY_AGAIN), TERMINATED, 128 - TERMINATED})


def first_cause(codes: Mapping[int, int]) -> int | None:
    """The rank that has ended the others, by exit codes in the order in which they were seen.

    None if none failed. A negative code is a signal.
    """

    def order(rank: int) -> tuple[bool, ...]:
        code = codes[rank]
        first = [not is_permanent(code), code != ExitCode.SUPERSEDED, code != ExitCode.BAD_DEVICE]
        return *first, code in CONSEQUENCES

    failed = [rank for rank, code in codes.items() if code != ExitCode.FINAL]
    return min(failed, key=order) if failed else None


def code_of(codes: Mapping[int, int]) -> int:
    """What the launcher exits with: the code of the first cause, 0 if none failed."""
    cause = first_cause(codes)
    return int(ExitCode.FINAL) if cause is None else codes[cause]


def is_own(code: int) -> bool:
    """Whether a process that ends so has failed by itself, or has to leave its place to another."""
    return is_failure(code) or code == ExitCode.SUPERSEDED


def ends_launcher(code: int, began_here: bool) -> bool:
    """Whether the launcher ends with this code, although its processes may start again in place.

    A host of several does so, too, when the learner failed because of a process of this host:
    whoever starts it again counts its failures and takes his time. With a broken GPU it ends at
    once: only another host helps.
    """
    return ends_at_once(code) or (began_here and is_own(code))


def ends_at_once(code: int) -> bool:
    return is_permanent(code) or code == ExitCode.BAD_DEVICE


def code_after_signal(number: int, codes: Mapping[int, int]) -> int:
    """The same after a signal to all: who leaves first, with 0, may break others' collectives."""
    return int(ExitCode.FINAL) if ExitCode.FINAL in codes.values() else -number


def ended_before(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"; rank {min(ranks)}{more} had ended before it (exit code 0)"


def words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return Signals(-code).name if -code in {*Signals} else f"signal {-code}"
