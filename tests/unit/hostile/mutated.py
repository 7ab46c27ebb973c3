"""Bytes, JSON documents and messages that a sample becomes by a few edits, for fuzzing.

`check_short` runs a target for a moment, always with the same examples. `check_long` runs it with
other ones until FUZZ_SECONDS of this process's CPU time are over.
"""

import copy
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

FUZZ_SECONDS: Final = float(os.environ.get("FUZZ_SECONDS", "600"))
LONG_EXAMPLES: Final = 2_000
COMMON: Final = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
PHASES: Final = (Phase.explicit, Phase.generate)
DEEP: Final = 1_100  # levels of lists, more than any parser that calls itself takes
EXTREMES: Final[Sequence[Any]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, 1e308, -1e308, 0.5),
    *(float("inf"), -float("inf"), float("nan")),
    *("", "x", "a-0", "0" * 64, "é\n\x00", "\ud800", "x" * 5_000, "-1", "1e999", "../../etc"),
    *([], {}, [[]], [None], {"": {}}, {"x": "y"}, [{}], [1, 2, 3]),
)
PIECES: Final = (
    *(b"\0", b"\xff", b"{", b"}", b"[", b"]", b'"', b",", b":", b"-", b"9", b"e", b"\n", b" "),
    *(b"null", b"1e999", b"-1", b"Infinity", b"NaN", b'"\\ud800"', b"9" * 5_000, b"{}", b"[]"),
    *(b"\xff" * 8, b"\0" * 8, (1 << 40).to_bytes(8, "little"), b"&a [*a]", b"? ", b"- ", b"!!"),
)

Target = tuple[st.SearchStrategy[Any], Callable[[Any], None]]


def check_short(target: Target, examples: int) -> None:
    strategy, holds = target
    once = settings(COMMON, derandomize=True, max_examples=examples, phases=PHASES)
    once(given(strategy)(holds))()


def check_long(target: Target) -> None:
    """Each pass says its seed if it fails; what it found then becomes an example of its own."""
    strategy, holds = target
    phases = (Phase.generate, Phase.shrink)
    end, number = time.process_time() + FUZZ_SECONDS, time.time_ns()
    while time.process_time() < end:
        number += 1
        test = settings(COMMON, max_examples=LONG_EXAMPLES, phases=phases)(given(strategy)(holds))
        seed(number)(test)()


# ------------------------------------------------------------ bytes


@st.composite
def mutated_bytes(draw: Any, samples: Sequence[bytes]) -> bytes:
    """One of them with up to four edits, or two of them joined."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from((0, 1, 1, 2, 4, 8, 64, 1 << 30))))
        match draw(st.sampled_from(("flip", "put", "cut", "repeat", "random", "splice"))):
            case "flip" if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
            case "put":
                data[start:stop] = draw(st.sampled_from(PIECES))
            case "cut":
                del data[start:stop]
            case "repeat":
                data[start:start] = data[start:stop]
            case "random":
                data[start:stop] = draw(st.binary(max_size=16))
            case "splice":
                other = draw(st.sampled_from(samples))
                data[start:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


# ------------------------------------------------------------ documents


@st.composite
def mutated_documents(draw: Any, samples: Sequence[Any]) -> Any:
    """One of them of which up to three values are other ones, gone, doubled or of a new name."""
    document = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        place = document
        while isinstance(place, dict | list) and place:
            keys: list[Any] = sorted(place) if isinstance(place, dict) else [*range(len(place))]
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            _edit(draw, document, place, key)
            break
    return document


def _edit(draw: Any, document: Any, place: Any, key: Any) -> None:
    """Never with itself inside: what is put into it is a copy."""
    match draw(st.sampled_from(("extreme", "extreme", "extreme", "gone", "other", "named"))):
        case "extreme":
            place[key] = copy.deepcopy(draw(st.sampled_from(EXTREMES)))
        case "gone":
            del place[key]
        case "other":
            place[key] = copy.deepcopy(draw(st.sampled_from(_values(document))))
        case "named" if isinstance(place, dict):
            place[draw(st.sampled_from(("x", "", "0", "-1", "kind")))] = place.pop(key)
        case _ if isinstance(place, list):
            place.append(copy.deepcopy(place[key]))


def _values(document: Any) -> list[Any]:
    """All values in it, itself left out."""
    inside = document.values() if isinstance(document, dict) else document
    if not isinstance(document, dict | list):
        return []
    return [each for value in inside for each in (value, *_values(value))]


def texts(samples: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """JSON of mutated documents, and mutated JSON; lists in lists without an end now and then."""
    whole = [json.dumps(each).encode() for each in samples]
    deep = [b"[" * DEEP, b'{"a": ' + b"[" * DEEP + b"]" * DEEP + b"}"]
    return st.one_of(
        mutated_documents(samples).map(lambda each: json.dumps(each).encode()),
        mutated_bytes(whole),
        st.sampled_from(deep),
    )
