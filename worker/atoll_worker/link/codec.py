"""A message of the link as bytes: a length of 4 bytes, then a JSON object that names its kind.

JSON is enough: a step makes one message of some 200 bytes, and the values of the model never pass
through the socket. Only a data state is longer, where one is captured. Both processes come from one
installation, so there are no versions to bridge.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, get_args

from atoll_protos.layout import TensorSpec
from atoll_worker.link import messages
from atoll_worker.link.messages import Configure, Message

LENGTH: Final = struct.Struct("=I")
MESSAGE_BYTES_MAX: Final = 64 << 20
BYTES: Final = "bytes in base64"  # the only key of an object that stands for bytes

KINDS: Final[dict[str, Callable[..., Message]]] = {
    kind.__name__: kind for kind in get_args(messages.Message)
}
FIELDS: Final = {kind: tuple(each.name for each in fields(KINDS[kind])) for kind in KINDS}  # type: ignore[arg-type]


class LinkError(Exception):
    """The other end sent what is not a message, or has not read for a very long time."""


def encode(message: Message) -> bytes:
    """The message with its length in front. Floats may be NaN; tuples become lists."""
    kind = type(message).__name__
    values = {name: getattr(message, name) for name in FIELDS[kind]}
    body = json.dumps({"kind": kind, **values}, default=_plain).encode()
    return LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray) -> Message:
    """The message in `body`, which is without its length. Raises LinkError if it is not one."""
    try:
        values = json.loads(body)
        kind = values.pop("kind")
        if kind == Configure.__name__:
            values["tensors"] = [TensorSpec(**with_tuples(each)) for each in values["tensors"]]
        return KINDS[kind](**with_tuples(values))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LinkError(f"not a message of the link: {error!r}") from error


def take_first(received: bytearray) -> Message | None:
    """Remove the first message from `received` and return it; None while it is not whole.

    Raises LinkError for a length that no message has, before anything of that size is kept.
    """
    if len(received) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(received)
    if length > MESSAGE_BYTES_MAX:
        raise LinkError(f"a message of {length} bytes; the largest has {MESSAGE_BYTES_MAX}")
    stop = LENGTH.size + length
    if len(received) < stop:
        return None
    message = decode(received[LENGTH.size : stop])
    del received[:stop]
    return message


def _plain(value: Any) -> Any:
    """What JSON does not know: bytes and dataclasses."""
    return {BYTES: b64encode(value).decode()} if isinstance(value, bytes) else asdict(value)


def with_tuples(value: Any) -> Any:
    """The JSON value as frozen messages have it: tuples in place of lists, and bytes."""
    if isinstance(value, dict):
        if value.keys() == {BYTES}:
            return b64decode(value[BYTES], validate=True)
        return {key: with_tuples(each) for key, each in value.items()}
    return tuple(with_tuples(each) for each in value) if isinstance(value, list) else value
