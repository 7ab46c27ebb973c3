"""How long a job is, which may change while it runs (docs/protocol.md, rule 27).

The run file has the length that the job began with. A later one comes to the shards in a file of
its own, which the operator writes in place. Shards tell it each other in Hello, and learners in
their Welcomes and Ticks; nobody takes a length from a learner. A length carries a *revision*, which
grows with every edit of the manifest; that of the run file has 0. A process keeps the length of the
highest revision, in whatever order it hears of them, so an old file that is read again says
nothing.

The *ends* are all lengths in ticks that a process has heard of, because one that was the end may
have been acted upon: where learners work in lock-step, each hands every slice over at the end of
the job. A learner that has heard of a longer job in time does so at the former end as well, and
meets those that have not. A learner takes them from shards alone, whose rules must know them.
"""

import json
from dataclasses import dataclass, replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import require
from atoll_protos.reading import parse
from atoll_protos.run import RunFile

ENDS_MAX: Final = 64  # of more, the smallest are forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFile:
    """What the file says: the revision, and exactly one of the two lengths."""

    revision: int
    steps: int | None = None
    tokens: int | None = None

    def to_json(self) -> str:
        """The file's text; `read` reads it back."""
        given = {"revision": self.revision, "steps": self.steps, "tokens": self.tokens}
        return json.dumps({key: each for key, each in given.items() if each is not None}) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """What was heard: the length of the highest revision, in ticks or in tokens, and the ends.

    `steps` is T, None for a length in tokens; `tokens` is 0 for one in ticks; `ends` ascend.
    """

    revision: int = 0
    steps: int | None = None
    tokens: int = 0
    ends: tuple[int, ...] = ()

    def is_end(self, position: int) -> bool:
        """Whether the job ends there, or would have ended by a former length."""
        return position == self.steps or position in self.ends

    def also(self, other: "Length") -> "Length":
        """With what another process has heard; none, or one of the other kind, says nothing."""
        if (self.steps is None, not self.tokens) != (other.steps is None, not other.tokens):
            return self
        newest = other if other.revision > self.revision else self
        return replace(newest, ends=_of({*self.ends, *other.ends}))

    def message(self) -> pb.Length:
        """As it travels."""
        return pb.Length(
            revision=self.revision, steps=self.steps or 0, tokens=self.tokens, ends=self.ends
        )


def of_run_file(run_file: RunFile) -> Length:
    """The length that the job began with, as a learner knows it until a shard has told it more."""
    return Length(steps=run_file.steps, tokens=run_file.tokens or 0)


def at_start(run_file: RunFile, file: Length | None) -> Length:
    """The length of a shard that starts, which may find the operator's file."""
    first = _told(0, run_file.steps, run_file.tokens)
    return first if file is None else first.also(file)


def read(text: str) -> Length:
    """From the file; raises SpecError that names the field and the remedy."""
    given: LengthFile = parse(LengthFile, text, "length file")
    for name in ("revision", "steps", "tokens"):
        value = getattr(given, name)
        require(value is None or value >= 1, name, f"{value} is below 1", "use 1 or more")
    both = given.steps is not None, given.tokens is not None
    require(sum(both) == 1, "steps", "the length is not given once", "give steps or tokens")
    return _told(given.revision, given.steps, given.tokens)


def heard(message: pb.Length) -> Length:
    """From another process."""
    return Length(
        revision=message.revision,
        steps=message.steps or None,
        tokens=message.tokens,
        ends=_of({*message.ends}),
    )


def _told(revision: int, steps: int | None, tokens: int | None) -> Length:
    ends = () if steps is None else (steps,)
    return Length(revision=revision, steps=steps, tokens=tokens or 0, ends=ends)


def _of(ends: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ends)[-ENDS_MAX:])
