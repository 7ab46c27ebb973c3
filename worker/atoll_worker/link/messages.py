"""The messages between training process and transport process, as frozen values and as JSON.

A slice is named by (shard, fragment). At one step boundary the step is counted for every slice,
then values are adopted, then slices are captured.

Nothing that came from another process is unpickled. What arrives are numbers, text, bytes, tuples
(for lists, too), sets, mappings with text for keys, and dataclasses that are `known`, made by their
own constructors. Floats arrive bit for bit. What JSON has no form for is {"": [name of its class,
arguments...]}, and no mapping has an empty key.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, TypeVar

from atoll_protos.job.layout import Layout, Piece, Slice, TensorSpec
from atoll_protos.job.run_file import RunFile
from atoll_protos.transfer.codecs import Form

T = TypeVar("T")

_known: Final[dict[str, Any]] = {}
_give: Final[dict[type, Callable[[Any], tuple[object, ...]]]] = {
    bytes: lambda value: (b64encode(value).decode(),),
    set: tuple,
    RunFile: lambda value: (value.to_json(),),  # which has words in place of numbers
}
_make: Final[dict[str, Callable[..., object]]] = {
    "bytes": b64decode,
    "set": lambda *items: set(items),
    "RunFile": RunFile.from_json,
}


def known(kind: type[T]) -> type[T]:
    """Let values of a dataclass travel; a decorator. All processes import it before."""
    _known[kind.__name__] = kind
    return kind


def encode(value: object) -> bytes:
    """Raise TypeError for what cannot travel."""
    return _encoder.encode(value).encode()


def decode(data: bytes | bytearray) -> Any:
    """Raise ValueError, KeyError or TypeError for what `encode` has not made."""
    return _made(json.loads(data))


def _form(value: object) -> dict[str, tuple[object, ...]]:
    kind = type(value)
    if kind in _give:
        return {"": (kind.__name__, *_give[kind](value))}
    if _known.get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__name__} does not travel between processes")
    return {"": (kind.__name__, *(getattr(value, name) for name in _names(kind)))}


def _made(form: Any) -> Any:
    if isinstance(form, list):
        return tuple(map(_made, form))
    if not isinstance(form, dict):
        return form
    if "" not in form:
        return {key: _made(item) for key, item in form.items()}
    name, *arguments = map(_made, form[""])
    if name in _make:
        return _make[name](*arguments)
    kind = _known[name]
    return kind(**dict(zip(_names(kind), arguments, strict=True)))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


_encoder: Final = json.JSONEncoder(default=_form, separators=(",", ":"))


for part in (Layout, TensorSpec, Slice, Piece, Form):  # of Configure
    known(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One of the classes below."""

    def __init_subclass__(cls) -> None:
        known(cls)


# ---------------------------------------------------------------- training -> transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Message):
    """The first message; every capture region holds the model as it was made."""

    run_file: RunFile
    layout: Layout
    slot: str  # empty for an observer
    uid: str
    instance: str  # this start of the process, and no other's
    endpoints: tuple[str, ...]  # host:port or unix:PATH of every shard
    telemetry_folder: str  # empty: no telemetry is written
    tls_folder: str = ""  # with this process's credentials; empty: plain text
    observer: bool
    frozen_digest: str = ""  # of the frozen parameters (rule 3); empty: not known
    lanes: int = 1  # Bulk streams to each shard (rule 34)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary(Message):
    """One step is finished, and all that this message names is done.

    With `again` no step is counted: more work at the same boundary, which happens before the first
    step and while `step()` waits in lock-step modes.
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
    first_losses: int = 0  # their digest (`logged_values.digest_of`)
    data_state: bytes | None = None  # that belongs to `cursor`; only where something is captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Message):
    """What an observer has measured on the shared parameters of `tick`, or on the final ones."""

    tick: int
    final: bool
    loss: float  # nats per token
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving(Message):
    """The last message: tell the shards that this process leaves, and exit."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Message):
    """Something that the user should know, for the run folder."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedValues(Message):
    """What the script has logged, for the run folder."""

    values: tuple[tuple[str, float], ...]  # by their names


# ---------------------------------------------------------------- transport -> training


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Message):
    """Every shard has welcomed this instance and every slice is adopted: training may begin."""

    incarnation: int
    cursor: int
    tick: int
    data_state: bytes | None = None  # that was kept with `cursor`


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Message):
    """The job's clock has moved to `tick`."""

    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLength(Message):
    """The job has another length, in ticks or in tokens."""

    steps: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt(Message):
    """Take the value in the adopt region: theta <- blend * theta + (1 - blend) * value."""

    shard: int
    fragment: int
    number: int  # of the version
    blend: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Message):
    """Copy these slices of the model into their capture regions at the next boundary."""

    slices: tuple[tuple[int, int], ...]  # (shard, fragment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed(Message):
    """In lock-step modes: `step()` may return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Message):
    """The final values of every shard are adopted: the training loop may end.

    Steps were made on them meanwhile. So the adopt regions of the slices in `again` hold the final
    values once more, to be taken as they are; no Boundary tells of this.
    """

    again: tuple[tuple[int, int], ...] = ()  # (shard, fragment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Message):
    """This process must end with `exit_code`."""

    exit_code: int
    reason: str
