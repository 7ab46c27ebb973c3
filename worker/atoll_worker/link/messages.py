"""The messages between the training process and its transport process, as frozen values.

A slice is named by (shard, fragment). The order of things at one step boundary is always the same:
the step is counted for every slice, then values are adopted, then slices are captured.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from atoll_protos.layout import TensorSpec
from atoll_protos.parts import Share

# ---------------------------------------------------------------- training -> transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """The first message: who this process is and what its model looks like.

    When it is sent, every capture region of the shared memory holds the model as it was made.
    """

    run_file: str  # JSON
    tensors: tuple[TensorSpec, ...]
    layout_digest: str  # the transport derives the layout too; the two must be equal
    slot: str  # empty for an observer
    uid: str
    instance: str
    endpoints: tuple[str, ...]  # host:port of every shard
    telemetry_folder: str  # empty: no telemetry is written
    tls_folder: str = ""  # with this process's credentials; empty: plain text
    observer: bool
    frozen_digest: str = ""  # of the frozen parameters (rule 3); empty: not known
    has_companion: bool = False  # it answers GiveCompanion
    lanes: int = 1  # Bulk streams to each shard (rule 34)
    own_lanes: tuple[int, int] | None = None  # this process has those from .. to; None: all
    hands: int = 0  # lane processes that the head's transport waits for
    head: str = ""  # host:port of the head's side channel; with hands: host:0, where to listen
    secret: str = field(default="", repr=False)  # of the side channel
    silence_seconds: float = 120.0  # on the side channel, after which the other end is lost
    training_pid: int  # so that the transport sees the death of this process

    @property
    def share(self) -> Share:
        """What this process holds of each slice, and carries on the wire."""
        first, stop = self.own_lanes or (0, self.lanes)
        return Share(first, stop, self.lanes)

    @property
    def is_hand(self) -> bool:
        """Whether the process is a lane process, which carries values for a head elsewhere."""
        return bool(self.head) and not self.hands


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One step is finished, and all that this message names is done.

    With `again` no step is counted: it tells of more work at the same boundary, which happens
    before the first step and while `step()` waits in lock-step modes.
    """

    own_steps: int  # optimizer steps of this process
    tokens: int  # of this step
    loss: float  # the newest that is known; NaN before the first
    step_seconds: float  # from the end of the last step() to the start of this one
    blocked_seconds: float  # spent inside the last step()
    cursor: int  # where the slot's data goes on
    adopted: tuple[tuple[int, int, int], ...]  # (shard, fragment, version number)
    captured: tuple[tuple[int, int], ...]  # (shard, fragment)
    again: bool = False
    data_state: bytes | None = None  # that belongs to `cursor`; only where something is captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What an observer has measured on the shared parameters of `tick`."""

    tick: int
    loss: float  # nats per token
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The last message: tell the shards that this process leaves, and exit."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something that the user should know, for the run folder."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """The companion that GiveCompanion has asked for lies in the memory's file."""

    changed: bool
    byte_count: int


# ---------------------------------------------------------------- transport -> training


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The first message of a head's transport with hands: where they may connect to it."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Every shard has welcomed this instance and every slice is adopted: training may begin."""

    incarnation: int
    cursor: int
    tick: int
    data_state: bytes | None = None  # that was kept with `cursor`


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The job's clock has moved to `tick`."""

    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLength:
    """The job has another length, in ticks or in tokens."""

    steps: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Take the value in the adopt region: theta <- blend * theta + (1 - blend) * value."""

    shard: int
    fragment: int
    number: int  # of the version
    blend: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Copy these slices of the model into their capture regions at the next boundary."""

    slices: tuple[tuple[int, int], ...]  # (shard, fragment)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveCompanion:
    """Write the companion into the memory's file (rule 36); `changed`: only what is new in it."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """In lock-step modes: `step()` may return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The final values of every shard are adopted: the training loop may end.

    Steps were made on them meanwhile. So the adopt regions of the slices in `again` hold the final
    values once more, to be taken as they are; this is no adoption that a Boundary tells of.
    """

    again: tuple[tuple[int, int], ...] = ()  # (shard, fragment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """This process must end with `exit_code`."""

    exit_code: int
    reason: str


Command: TypeAlias = (
    Adopt
    | Capture
    | Fail
    | Finished
    | GiveCompanion
    | Listening
    | Proceed
    | JobLength
    | Start
    | Tick
)
Message: TypeAlias = Configure | Boundary | Companion | Evaluated | Leaving | Warned | Command
