"""What the end of a process means: whether another start can help, and why not; pure.

Most ends are worth another start. A mistake in the user's script is not, so a process is given up

    at once           with a permanent exit code (`atoll_protos.exits`)
    the second time   when it failed twice in a row with the same last words, or returned twice
                      before the job was final, and made no step
    the third time    when it returned three times before the job was final
    the fifth time    when it failed five times in a row, however

Failures are exits with an error, and signals that a process brings upon itself, such as SIGSEGV. A
kill is none. A start that lasted a minute begins the counts of failures again; returns are counted
in all starts, since an epoch may take hours.

Where all learners fail with the same words there is nothing to wait for, and the job ends: at once
if no start made a step, else when each has failed twice in a row at the same own step (`alike`).
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from signal import Signals
from typing import Final

from atoll_operator.api.status.crash_reason import NOTHING, LastWords
from atoll_protos import json_text
from atoll_protos.exits import RANK_ENDED, ExitCode, is_failure, is_permanent, returned_early

STEADY_SECONDS: Final = 60.0  # after a start that lasted so long, counts and back-off begin again
FAILURES_MAX: Final = 5  # exits with an error in a row, not kills
ALIKE_MAX: Final = 2  # of them with the same last words, before any step
RETURNS_MAX: Final = 3  # exits with code 0 before the job is final


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How one start ended. `left` is why its Learner left the job, empty if it did not say so."""

    code: int
    words: LastWords = NOTHING
    worked: bool = False  # it made a step, or an evaluation
    own_steps: int = 0  # that the start made
    left: str = ""
    seconds: float = 0.0  # that the start lasted

    @property
    def failed(self) -> bool:
        return is_failure(self.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """What is known of all ends of one process."""

    first: End | None = None
    last: End | None = None
    worked: bool = False  # any start made a step
    attempt: int = 0  # of starting again, in a row
    failures: int = 0  # in a row
    alike: int = 0  # of these, in a row, with the same words after as many own steps
    returns: int = 0  # before the job was final

    def after(self, end: End, *, returned: bool) -> "EndRecord":
        """The record with one more end; `returned`: with exit code 0, before the job was final."""
        before = 0 if end.seconds > STEADY_SECONDS else 1
        same = (
            self.last is not None
            and self.last.failed
            and end.words.same_as(self.last.words)
            and end.own_steps == self.last.own_steps
        )
        return replace(
            self,
            first=self.first or end,
            last=end,
            worked=self.worked or end.worked,
            attempt=1 + before * self.attempt,
            failures=1 + before * self.failures if end.failed else 0,
            alike=1 + same * self.alike if end.failed else 0,
            returns=self.returns + returned,
        )


def why_given_up(record: EndRecord, returned: str) -> str:
    """Why a process is not started again; empty if it is. `returned` as of `returned_early`."""
    end = record.last
    if end is None:
        return ""
    if returned and record.returns >= (RETURNS_MAX if record.worked else ALIKE_MAX):
        return returned
    if not end.failed:
        return ""
    for_good = is_permanent(end.code) or (record.alike >= ALIKE_MAX and not record.worked)
    return words_of(end) if for_good or record.failures >= FAILURES_MAX else ""


def returned(end: End, role: str, tick: int, steps: int | None) -> str:
    """Why a process returned too early; empty: it did not, or says that it has finished."""
    if role == "shard" or end.code != ExitCode.FINAL or end.left in ("finished", "terminated"):
        return ""
    said = returned_early(tick, steps, "learner" if role == "learner" else "observer")
    return said if end.worked or role != "learner" else f"{said}. It made no step"


def alike(records: Sequence[EndRecord]) -> End | None:
    """The end that the starts of all these learners have in common, if they have one."""
    if not any(each.worked for each in records):
        return _common([each.first for each in records])
    again = all(each.alike >= ALIKE_MAX for each in records)
    return _common([each.last for each in records]) if again else None


def _common(ends: Sequence[End | None]) -> End | None:
    first = ends[0] if ends else None
    same = first and all(end and end.failed and end.words.same_as(first.words) for end in ends)
    return first if same else None


def ranks_ended(lines: Iterable[str]) -> Iterator[str]:
    """What a launcher says of ranks that have ended; it may start them again in place."""
    for line in lines:
        if line.startswith("{") and RANK_ENDED in line:
            with contextlib.suppress(ValueError):
                value = json_text.mapping(line)
                if RANK_ENDED in value:
                    yield str(value.get("event", ""))


def words_of(end: End) -> str:
    return str(end.words) or "its log is empty"


def why_ended(end: End) -> str:
    return f"{exit_text(end.code)}: {words_of(end)}" if end.failed else exit_text(end.code)


def exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else Signals(-code).name
