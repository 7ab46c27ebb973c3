"""All that a learner's rules know: of each shard, of the clock, of its progress, of each slice.

One slice as a learner has it: its base, the work done on it, and what became of the tokens.

When a newer version is adopted, every token that was trained on the old base has had exactly one of
three fates (rule 13): tokens since the old base = merged + overlap + late.

    |--- trained, then captured and offered ---|--- trained while the offer was under way ---|
    adoption of the base                    capture                    adoption of the next version
             merged in a commit, or late                          overlap

The Publish says which capture of this learner was merged last (incarnation, base, capture): it may
have been called twice on one base, or may have missed a version in between.

What a learner's rules ask the transport process to do; it does so in order.

A value of a slice is a *candidate* from its arrival until Promote makes it the *base*, or Discard
drops it.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import RunFile, Sync
from atoll_protos.job.schedule import Length, of_run_file
from atoll_protos.means import NO_SAMPLES, MovingMean
from atoll_worker.link.messages import Boundary, Configure, Message

CAPTURES_KEPT: Final = 1024  # on one base; each needs a Call, so more means endless reconnecting


@dataclass(slots=True)
class Offered:
    """The captures offered on the base that is held: capture (a step count) -> tokens."""

    captures: dict[int, int] = field(default_factory=dict)
    repeated: Counter[int] = field(default_factory=Counter)  # how often again, in other sessions

    def add(self, steps: int, tokens: int) -> None:
        """Add a capture, which may be offered again in another session."""
        self.repeated[steps] += steps in self.captures
        self.captures[steps] = tokens
        if len(self.captures) > CAPTURES_KEPT:
            del self.captures[min(self.captures)]

    def take_back(self, steps: int) -> None:
        if self.repeated[steps]:
            self.repeated[steps] -= 1
        else:
            self.captures.pop(steps, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What the capture region of a slice holds: the counters of the boundary it was copied at."""

    boundary: int
    steps: int  # on the base
    tokens: int  # on the base
    position: int
    cursor: int
    data_state: bytes | None  # that belongs to the cursor; None where the script gave none


@dataclass(slots=True, kw_only=True)
class SliceState:
    """One slice. `steps` and `tokens` are counted since the base was adopted."""

    shard: int
    fragment: int
    held: pb.Version | None = None  # the base
    lineage: tuple[pb.SlotMerged, ...] = ()  # which offer of every slot the base contains last
    orphaned: bool = False  # its shard lost this version; the number names another value (rule 22)
    steps: int = 0
    tokens: int = 0
    call: int | None = None  # number of the base that an unanswered Call names
    captured: Captured | None = None
    capturing: bool = False  # a Capture is outstanding
    offered: Offered = field(default_factory=Offered)
    adopting: pb.Publish | None = None  # an Adopt is outstanding
    waiting: pb.Publish | None = None  # the newest that has arrived meanwhile
    awaited_from: int | None = None  # lock-step: position from which step() waits for a Publish

    @property
    def key(self) -> tuple[int, int]:
        return self.shard, self.fragment

    @property
    def number(self) -> int:
        return -1 if self.held is None else self.held.number

    @property
    def order(self) -> tuple[int, int]:
        return (-1, 0) if self.held is None else order(self.held)

    def count(self, tokens: int) -> None:
        self.steps += 1
        self.tokens += tokens

    def adopt(self, publish: pb.Publish) -> None:
        version = publish.version.version
        assert order(version) > self.order, "a version replaces lower ones only"
        self.held, self.adopting, self.orphaned = version, None, False
        self.lineage = tuple(publish.lineage)
        self.steps = self.tokens = 0
        self.call = self.captured = self.awaited_from = None
        self.offered = Offered()


def order(version: pb.Version) -> tuple[int, int]:
    """Return the number, and the epoch where a loss has made a number twice."""
    return version.number, version.epoch


def outcome(each: SliceState, merged: pb.Merged, incarnation: int) -> dict[str, int]:
    """Return what became of tokens by `merged`, the slot's last merged offer, of its own base."""
    captures, tokens = each.offered.captures, each.tokens
    if (merged.incarnation, merged.base) == (incarnation, each.number):
        captured = captures.get(merged.capture)
        if captured is not None:
            return {"merged": captured, "overlap": tokens - captured, "late": 0}
    late = captures[max(captures)] if captures else tokens
    return {"merged": 0, "overlap": tokens - late, "late": late}


TICKS_KEPT: Final = 16  # changes of the tick from which its rate is taken


class Connection(StrEnum):
    """How far the connection to a shard is; joining.py draws the transitions."""

    DOWN = "down"
    DIALLING = "dialling"
    JOINING = "joining"  # Join is sent
    WELCOMED = "welcomed"  # messages may be sent
    ENDING = "ending"  # hung up on: nothing that still comes counts


@dataclass(slots=True, kw_only=True)
class KnownShard:
    """What is known of one shard. Times are monotonic seconds."""

    connection: Connection = Connection.DOWN
    ever_welcomed: bool = False
    welcomed_at: float = 0.0
    tick: int = 0  # of this shard, the highest seen
    epoch: int = 0  # of this shard, the highest seen
    final: dict[int, int] | None = None  # fragment -> final version number, once it serves Final
    attempt: int = 0  # dials since the last session that lasted
    dial_at: float | None = None  # end of the back-off; None: no dial is due
    arriving: dict[tuple[int, int], float] = field(default_factory=dict)  # slice, number: since
    heard_at: float = 0.0  # when anything came from it
    silent_seconds: float = 0.0  # of nothing, after which its session is left (rule 44)
    left_silent: bool = False  # its last session ended so
    overlap: int = 0  # tokens, each counted for every slice of the shard (rule 13)
    late: int = 0  # likewise
    end_reason: str = ""  # why it has ended the session, in its words, which were checked

    @property
    def open(self) -> bool:
        return self.connection is not Connection.ENDING

    @property
    def welcomed(self) -> bool:
        return self.connection is Connection.WELCOMED


@dataclass(slots=True, kw_only=True)
class Clock:
    """The job's clock: the lowest tick over the shards; it never goes back (rule 8)."""

    tick: int = 0
    times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=TICKS_KEPT))
    reached: int = -1  # this learner's position by the highest tick over the shards

    def move(self, lowest: int, now: float) -> bool:
        if lowest <= self.tick:
            return False
        self.tick = lowest
        self.times.append((now, lowest))
        return True

    @property
    def ticks_per_second(self) -> float:
        """Over the last changes; 0 while it is unknown."""
        if len(self.times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.times[0], self.times[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def estimate(self, now: float) -> float:
        """Return the tick at `now` to a fraction, at most the next one."""
        if not self.times:
            return float(self.tick)
        return self.tick + min(1.0, (now - self.times[-1][0]) * self.ticks_per_second)


@dataclass(slots=True, kw_only=True)
class Progress:
    """This learner's own work since the process started, counted at step boundaries."""

    own_steps: int = 0
    position: int = 0  # on the schedule: the tick at the start, then one more per step
    boundaries: int = 0
    tokens: int = 0
    cursor: int = 0  # where the slot's data goes on
    data_state: bytes | None = None  # that belongs to `cursor`, if it is known here
    loss: float = math.nan
    first_losses: int = 0  # their digest; 0: not known
    step_seconds: MovingMean = NO_SAMPLES
    publish_seconds: MovingMean = NO_SAMPLES  # from the first chunk of a value to its trailer
    busy_seconds: float = 0.0  # outside learner.step()
    blocked_seconds: float = 0.0  # inside learner.step()

    def count(self, boundary: Boundary) -> None:
        self.boundaries += 1
        self.own_steps = boundary.own_steps
        self.position += 1
        self.tokens += boundary.tokens
        self.loss, self.cursor, self.data_state = boundary.loss, boundary.cursor, None
        self.first_losses = boundary.first_losses
        self.step_seconds = self.step_seconds.add(boundary.step_seconds)
        self.busy_seconds += boundary.step_seconds
        self.blocked_seconds += boundary.blocked_seconds

    @property
    def busy_share(self) -> float:
        """The share of wall time outside learner.step(), 0 to 1."""
        wall_seconds = self.busy_seconds + self.blocked_seconds
        return self.busy_seconds / wall_seconds if wall_seconds else 1.0

    def telemetry(
        self, boundary: Boundary, tick: int, adopted: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the line of learners/SLOT.jsonl for a boundary."""
        return {
            "t_m": self.own_steps,
            "tick": tick,
            "tokens": 0 if boundary.again else boundary.tokens,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "step_seconds": boundary.step_seconds,
            "blocked_seconds": boundary.blocked_seconds,
            "adopted": adopted,
        }


@dataclass(slots=True, kw_only=True)
class LearnerState:
    """All of it."""

    configure: Configure  # who this process is, and of which job
    run_file: RunFile = field(init=False)
    layout: Layout = field(init=False)
    sync: Sync = field(init=False)  # with the layout's number of fragments
    shards: list[KnownShard] = field(init=False)
    slices: dict[tuple[int, int], SliceState] = field(init=False)  # by (shard, fragment)
    length: Length = field(init=False)  # of the job, as far as it has heard
    run: str = ""  # the id that the registrar gave to this training; empty before its Welcome
    incarnation: int = 0  # given by the registrar; 0 before
    proof: str = ""  # that the registrar gave it, for the other shards
    clock: Clock = field(default_factory=Clock)
    progress: Progress = field(default_factory=Progress)
    started: bool = False  # all shards have welcomed it and all slices are adopted
    finished: bool = False  # the final values are adopted
    failed: bool = False  # a Fail was sent
    leaving: bool = False  # the training process ends
    captures_asked: bool = False  # the capture regions no longer hold the seed
    trouble: str = ""  # why it could not join again now, one line; empty: it could
    step_waits: bool = False  # lock-step: the training thread is in step() until Proceed

    def __post_init__(self) -> None:
        self.run_file, self.layout = self.configure.run_file, self.configure.layout
        self.sync = self.run_file.sync.with_fragments(self.layout.fragments)
        keys = [(slice_.shard, slice_.fragment) for slice_ in self.layout.slices]
        self.slices = {key: SliceState(shard=key[0], fragment=key[1]) for key in keys}
        self.shards = [KnownShard() for _ in range(self.run_file.shards)]
        self.length = of_run_file(self.run_file)

    def of(self, shard: int) -> list[SliceState]:
        return [slice_ for slice_ in self.slices.values() if slice_.shard == shard]

    @property
    def welcomed(self) -> list[int]:
        return [shard for shard, known in enumerate(self.shards) if known.welcomed]

    @property
    def tick(self) -> int:
        """Of the script. A learner in lock-step has its position, whenever ticks are heard."""
        by_position = self.sync.lockstep and not self.configure.observer
        return self.progress.position if by_position else self.clock.tick

    @property
    def tick_seen(self) -> int:
        return max(shard.tick for shard in self.shards)

    @property
    def late(self) -> int:
        """Of the trained tokens: in no commit when the slice was adopted, mean over slices."""
        return sum(shard.late for shard in self.shards) // len(self.slices)

    @property
    def epochs_seen(self) -> list[int]:
        return [shard.epoch for shard in self.shards]

    @property
    def at_the_end(self) -> bool:
        return self.sync.lockstep and self.progress.position == self.length.steps

    @property
    def awaits_version(self) -> bool:
        """Whether the training thread can do nothing but wait for a version in step() (rule 40)."""
        owes = any(
            slice_.capturing or slice_.adopting is not None for slice_ in self.slices.values()
        )
        return self.step_waits and not owes

    def is_final(self, each: SliceState) -> bool:
        """Whether a slice's final version is held: its shard merges nothing more."""
        final = self.shards[each.shard].final
        return final is not None and each.number >= final.get(each.fragment, each.number + 1)


class Effect:
    """One of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Dial(Effect):
    """Open the streams to a shard. The driver answers with `connected` and `disconnected`."""

    shard: int


@dataclass(frozen=True, slots=True)
class HangUp(Effect):
    """Close the streams to a shard."""

    shard: int
    reason: str = "hung up"


@dataclass(frozen=True, slots=True)
class SendMessage(Effect):
    """Send a control message. An unsent report may be replaced by a newer one."""

    shard: int
    message: pb.ToShard


@dataclass(frozen=True, slots=True)
class SendOffer(Effect):
    """Form base - theta from the capture region now and send it, or call `capture_lost`."""

    shard: int
    offer: pb.Offer


@dataclass(frozen=True, slots=True)
class SendSeed(Effect):
    """Send the model's initial values of all slices of a shard (rule 1)."""

    shard: int


@dataclass(frozen=True, slots=True)
class SendHeld(Effect):
    """Send the base of one slice as it is held, bit for bit (rule 22)."""

    shard: int
    held: pb.Held


@dataclass(frozen=True, slots=True)
class _OfValue(Effect):
    shard: int
    fragment: int
    number: int


class PlaceValue(_OfValue):
    """Copy a candidate into the slice's adopt region of the shared memory."""


class Promote(_OfValue):
    """The training process has adopted the candidate: it replaces the slice's base."""


class Discard(_OfValue):
    """Free a candidate: a newer one has arrived."""


@dataclass(frozen=True, slots=True)
class Command(Effect):
    """Send a command over the link; it is carried out at the next step boundary."""

    command: Message


@dataclass(frozen=True, slots=True)
class TelemetryRecord(Effect):
    """Write one line of the learner's telemetry."""

    fields: dict[str, Any]
