"""Entries of a log with what a test does not look at filled in."""

from typing import Any

from atoll_syncer.model.log import Committed, Participant, Seeded


def a_participant(slot: str = "a-0", capture: int = 1, **changed: Any) -> Participant:
    given = {"incarnation": 1, "base": 0, "steps": 1, "tokens": 1, "cursor": 1, "weight": 1.0}
    return Participant(slot=slot, capture=capture, **{**given, **changed})


def a_commit(number: int, slice_: int = 0, **changed: Any) -> Committed:
    given: dict[str, Any] = {
        "epoch": 1,
        "digest": "d",
        "object": f"{slice_}.{number}",
        "base": number - 1,
        "tick": number,
        "due": number,
        "reason": "",
        "last": False,
        "recovered": False,
        "participants": (),
    }
    return Committed(slice=slice_, number=number, **{**given, **changed})


def a_seed(digests: tuple[str, ...], objects: tuple[str, ...], **changed: Any) -> Seeded:
    given = {"tensors": ({"name": "w"},), "layout_digest": "l", "epoch": 1}
    return Seeded(digests=digests, objects=objects, **{**given, **changed})
