"""What the end of a process means: whether another start can help, and what people are told; pure.

A process of a job is started again when it ends, whatever its exit code (`supervisor`). Most ends
are worth another start: a kill, a connection that broke, a lack of memory. A mistake in the user's
script is not, and whoever made it waits for its reason. So the first end is told at once with its
last words and its log, and a process is given up

    at once           with a permanent exit code (`atoll_protos.exits`)
    the second time   when it failed twice in a row with the same last words, or returned twice
                      before the job was final, and made no step
    the third time    when it returned three times before the job was final
    the fifth time    when it failed five times in a row, however

Failures are exits with an error, and signals that a process brings upon itself, such as SIGSEGV.

A start that lasted a minute begins the counts of failures again; returns are counted in all starts,
since an epoch may take hours. A kill is no failure, so chaos never gives a process up.

Where all learners fail with the same words there is nothing to wait for, and the job ends: at once
if no start made a step, else when each has failed twice in a row at the same own step (`alike`).
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from signal import Signals
from typing import Final

from atoll_operator.api.words import NOTHING, LastWords
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
        """It ended with an error: no kill, and nothing that may pass by itself."""
        return is_failure(self.code)

    @property
    def steady(self) -> bool:
        """The start lasted long enough to count as a good one."""
        return self.seconds > STEADY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of all ends of one process."""

    first: End | None = None
    last: End | None = None
    worked: bool = False  # any start made a step
    attempt: int = 0  # of starting again, in a row
    failures: int = 0  # in a row
    alike: int = 0  # of these, in a row, with the same words after as many own steps
    returns: int = 0  # before the job was final

    def after(self, end: End, *, returned: bool) -> "Record":
        """The record with one more end; `returned`: with exit code 0, before the job was final."""
        before = 0 if end.steady else 1
        same = (
            self.last is not None
            and self.last.failed
            and end.words.same_as(self.last.words)
            and end.own_steps == self.last.own_steps
        )
        alike = (self.alike if same else 0) + 1
        return replace(
            self,
            first=self.first or end,
            last=end,
            worked=self.worked or end.worked,
            attempt=1 + before * self.attempt,
            failures=1 + before * self.failures if end.failed else 0,
            alike=alike if end.failed else 0,
            returns=self.returns + returned,
        )


def why_given_up(record: Record, returned: str) -> str:
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
    """That a process has returned too early, in words; empty if it has not.

    One that says that it has finished is a moment ahead of what was heard of the job, and one that
    was terminated has done as it was told.
    """
    of_a_job = role in ("learner", "evaluator")
    told = end.left in ("finished", "terminated")
    if not of_a_job or end.code != ExitCode.FINAL or told:
        return ""
    said = returned_early(tick, steps, "learner" if role == "learner" else "observer")
    return said if end.worked or role != "learner" else f"{said}. It made no step"


def alike(records: Sequence[Record]) -> End | None:
    """The end that the starts of all these learners have in common, if they have one."""
    if not any(each.worked for each in records):
        return _common([each.first for each in records])
    again = all(each.alike >= ALIKE_MAX for each in records)
    return _common([each.last for each in records]) if again else None


def _common(ends: Sequence[End | None]) -> End | None:
    """The first of these ends, if all are failures with the same words."""
    first = ends[0] if ends else None
    for end in ends:
        if first is None or end is None or not end.failed or not end.words.same_as(first.words):
            return None
    return first


def ranks_ended(lines: Iterable[str]) -> Iterator[str]:
    """What the launcher of a learner says in these lines of its log of ranks that have ended.

    It may start them again in place, and then no process of ours ends.
    """
    for line in lines:
        if not (line.startswith("{") and RANK_ENDED in line):
            continue
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if RANK_ENDED in value:
                yield str(value.get("event", ""))


def words_of(end: End) -> str:
    """Why it ended, also where it said nothing."""
    return str(end.words) or "its log is empty"


def why_ended(end: End) -> str:
    """How a process ended, with its last words if it failed."""
    return f"{exit_text(end.code)}: {words_of(end)}" if end.failed else exit_text(end.code)


def exit_text(code: int) -> str:
    """An exit code, or the signal that ended the process, in words."""
    return f"exit code {code}" if code >= 0 else Signals(-code).name
