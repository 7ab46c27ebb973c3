"""A message of the link as bytes: a length of 4 bytes, then a JSON object that names its kind.

JSON is enough: a step makes one message of some 200 bytes, and the values of the model never pass
through the socket. Only a data state is longer, where one is captured. Both processes come from one
installation, so there are no versions to bridge. The side channel of the transport processes of one
learner has messages of its own, written in the same way.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, Final, get_args

from atoll_protos.layout import TensorSpec
from atoll_worker.link import messages
from atoll_worker.link.messages import Configure, Message

LENGTH: Final = struct.Struct("<I")
MESSAGE_BYTES_MAX: Final = 64 << 20
BYTES: Final = "bytes in base64"  # the only key of an object that stands for bytes


class LinkError(Exception):
    """The other end sent what is not a message, or has not read for a very long time."""


class Codec:
    """Messages of these kinds, which are frozen dataclasses, as bytes and back."""

    def __init__(self, kinds: Iterable[type[Any]]) -> None:
        self.kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {
            name: tuple(each.name for each in fields(kind)) for name, kind in self.kinds.items()
        }
        assert not any("kind" in names for names in self._fields.values()), "it says which it is"

    def encode(self, message: Any) -> bytes:
        """The message with its length in front. Floats may be NaN; tuples become lists."""
        kind = type(message).__name__
        values = {name: getattr(message, name) for name in self._fields[kind]}
        body = json.dumps({"kind": kind, **values}, default=_plain).encode()
        return LENGTH.pack(len(body)) + body

    def decode(self, body: bytes | bytearray) -> Any:
        """The message in `body`, which is without its length. Raises LinkError if it is not one."""
        try:
            values = json.loads(body)
            kind = values.pop("kind")
            if kind == Configure.__name__:
                values["tensors"] = [TensorSpec(**with_tuples(each)) for each in values["tensors"]]
            return self.kinds[kind](**with_tuples(values))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LinkError(f"not a message of the link: {error!r}") from error

    def take_first(self, received: bytearray, bytes_max: int = MESSAGE_BYTES_MAX) -> Any:
        """Remove the first message from `received` and return it; None while it is not whole.

        Raises LinkError for a length that no message has, before anything of that size is kept.
        """
        if len(received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(received)
        if length > bytes_max:
            raise LinkError(f"a message of {length} bytes; the largest has {bytes_max}")
        stop = LENGTH.size + length
        if len(received) < stop:
            return None
        message = self.decode(received[LENGTH.size : stop])
        del received[:stop]
        return message


LINK: Final = Codec(get_args(messages.Message))


def encode(message: Message) -> bytes:
    """A message of the link, with its length in front."""
    return LINK.encode(message)


def decode(body: bytes | bytearray) -> Message:
    """The message of the link in `body`. Raises LinkError if it is not one."""
    found: Message = LINK.decode(body)
    return found


def take_first(received: bytearray) -> Message | None:
    """Remove the first message of the link from `received`; None while it is not whole."""
    found: Message | None = LINK.take_first(received)
    return found


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
