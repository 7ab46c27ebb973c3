"""How long a job is, which may grow while it runs (docs/protocol.md, rule 27).

The run file has the length that the job began with. A longer one comes to the shards in a file of
its own, which the operator writes in place. Shards tell it each other in Hello, and learners in
their Welcomes and Ticks; nobody takes a length from a learner. While the job runs lengths only
grow, so the largest that a process has heard of is the newest, in whatever order it hears of them.
One that was taken back ends with the last process that has heard of it (`at_start`).

Lengths in ticks are kept all, because one that was the end may have been acted upon: where learners
work in lock-step, each hands every slice over at the end of the job. A learner that has heard of a
longer job in time does so at the former end as well, and meets those that have not.
"""

import json
from dataclasses import dataclass
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.reading import parse
from atoll_protos.run import RunFile

LENGTHS_MAX: Final = 64  # that a job has had; of more, the smallest are forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFile:
    """What the file says: exactly one of the two."""

    steps: int | None = None
    tokens: int | None = None

    def to_json(self) -> str:
        """The file's text; `read` reads it back."""
        given = {"steps": self.steps, "tokens": self.tokens}
        return json.dumps({key: each for key, each in given.items() if each is not None}) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """All that was heard: lengths in ticks, ascending, and the largest one in tokens, or 0."""

    steps: tuple[int, ...] = ()
    tokens: int = 0

    @property
    def end(self) -> int | None:
        """T in ticks; None when the length is given in tokens."""
        return self.steps[-1] if self.steps else None

    def also(self, other: "Length") -> "Length":
        """With what another process has heard; what is of the other kind says nothing."""
        if self.steps:
            return Length(steps=tuple(sorted({*self.steps, *other.steps})[-LENGTHS_MAX:]))
        return Length(tokens=max(self.tokens, other.tokens))

    def message(self) -> pb.Length:
        """As it travels."""
        return pb.Length(steps=self.steps, tokens=self.tokens)


def of_run_file(run_file: RunFile) -> Length:
    """The length that the job began with."""
    return _length(run_file.steps, run_file.tokens)


def at_start(run_file: RunFile, file: Length | None) -> Length:
    """The length of a shard that starts and finds the operator's file.

    The file says how long the job is now. What it began with is a former end if it is shorter; a
    longer one has been taken back before this process heard of it.
    """
    first = of_run_file(run_file)
    if file is None or bool(first.steps) != bool(file.steps):
        return first
    return file.also(first) if (first.end or 0) < (file.end or 0) else file


def read(text: str) -> Length:
    """From the file; raises SpecError that names the field and the remedy."""
    given: LengthFile = parse(LengthFile, text, "length file")
    return _length(given.steps, given.tokens)


def heard(message: pb.Length) -> Length:
    """From another process; of many, the largest."""
    return Length(steps=tuple(sorted({*message.steps})[-LENGTHS_MAX:]), tokens=message.tokens)


def _length(steps: int | None, tokens: int | None) -> Length:
    return Length(steps=() if steps is None else (steps,), tokens=tokens or 0)
