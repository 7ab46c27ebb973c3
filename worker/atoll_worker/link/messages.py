"""What the training process and its transport process say to each other at step boundaries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Training -> transport: one step is finished and the boundary's work is done.

    With `again` no step is counted: more work at the same boundary. Order at a boundary: the
    step counts for every slice, then adoptions, then captures.
    """

    own_steps: int  # optimizer steps of this process
    tokens: int  # of this step
    loss: float
    step_seconds: float
    blocked_seconds: float  # in the last step()
    cursor: int
    adopted: tuple[tuple[int, int, int], ...]  # shard, fragment, number
    captured: tuple[tuple[int, int], ...]  # shard, fragment
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Training -> transport: say Leave and exit."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Transport -> training: copy these slices at the next boundary."""

    slices: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Transport -> training: take the adopt region's value; blend keeps that share of one's own."""

    shard: int
    fragment: int
    number: int
    blend: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Transport -> training: the job's step."""

    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Transport -> training: every shard has welcomed this instance; all slices are adopted."""

    incarnation: int
    cursor: int
    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """Transport -> training, in lock-step: the boundary's wait is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Transport -> training: the final values of every shard are adopted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Transport -> training: this process must end."""

    exit_code: int
    reason: str
