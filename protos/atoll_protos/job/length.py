"""How long a job is, which may change while it runs (docs/protocol.md, rule 27).

A length carries a *revision*, which grows with every edit of the manifest; that of the run file has
0. Later ones come to shards in a file, and from there to all. A process keeps the length of the
highest revision, in whatever order it hears of them.

The *ends* are all lengths in ticks that a process has heard of, because one that was the end may
have been acted upon: in lock-step each learner hands every slice over at the end of the job. One
that has heard of a longer job does so at the former end as well, and meets those that have not.
"""

import json
from dataclasses import dataclass, replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import require
from atoll_protos.job.run_file import RunFile
from atoll_protos.job.strict_json import parse
from atoll_protos.names import COUNTER_MAX

ENDS_MAX: Final = 64  # of more, the smallest are forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFile:
    """What the file says: the revision, and exactly one of the two lengths."""

    revision: int
    steps: int | None = None
    tokens: int | None = None

    def to_json(self) -> str:
        given = {"revision": self.revision, "steps": self.steps, "tokens": self.tokens}
        return json.dumps({key: each for key, each in given.items() if each is not None}) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """`steps` is T, None for a length in tokens; `tokens` is 0 for one in ticks; `ends` ascend."""

    revision: int = 0
    steps: int | None = None
    tokens: int = 0
    ends: tuple[int, ...] = ()

    def is_end(self, position: int) -> bool:
        return position == self.steps or position in self.ends

    def also(self, other: "Length") -> "Length":
        """With what another process has heard; one of the other kind says nothing."""
        if (self.steps is None, not self.tokens) != (other.steps is None, not other.tokens):
            return self
        newest = other if other.revision > self.revision else self
        return replace(newest, ends=_of({*self.ends, *other.ends}))

    def message(self) -> pb.Length:
        return pb.Length(
            revision=self.revision, steps=self.steps or 0, tokens=self.tokens, ends=self.ends
        )


def of_run_file(run_file: RunFile) -> Length:
    """As a learner knows it until a shard has told it more."""
    return Length(steps=run_file.steps, tokens=run_file.tokens or 0)


def at_start(run_file: RunFile, file: Length | None) -> Length:
    """That of a shard that starts, which may find the operator's file."""
    first = _told(0, run_file.steps, run_file.tokens)
    return first if file is None else first.also(file)


def read(text: str) -> Length:
    """From the file. Raises SpecError."""
    given: LengthFile = parse(LengthFile, text, "length file")
    for name in ("revision", "steps", "tokens"):
        value = getattr(given, name)
        holds = value is None or 1 <= value <= COUNTER_MAX
        require(holds, name, f"{value} is out of range", "use 1..2^53-1")
    both = given.steps is not None, given.tokens is not None
    require(sum(both) == 1, "steps", "the length is not given once", "give steps or tokens")
    return _told(given.revision, given.steps, given.tokens)


def heard(message: pb.Length) -> Length:
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
