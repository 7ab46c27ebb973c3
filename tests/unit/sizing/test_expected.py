"""Warnings by what a manifest itself expects, and silence where it expects nothing."""

from typing import Any

import pytest

from atoll_operator.api.job.parsing import from_object
from atoll_operator.sizing.expected import warnings

SIZING = {"parameters": 10**9, "stepMilliseconds": 1000}


def said(link: dict[str, int] | None, **more: Any) -> tuple[str, ...]:
    """Of a job whose second region has this link."""
    away = {"name": "eu", "learners": 2, **({} if link is None else {"link": link})}
    spec = {"steps": 100, "regions": [{"name": "us"}, away], "syncer": {"shards": 8}, **more}
    return warnings(from_object({"metadata": {"name": "big"}, "spec": spec}).spec)


def test_a_link_and_an_overlap_that_will_not_hold_are_named() -> None:
    link, overlap = said({"megabitsPerSecond": 1500, "roundTripMilliseconds": 90}, sizing=SIZING)
    assert link.startswith("eu: 89% of its link on average")
    assert overlap.startswith("eu: a fragment's way takes 2.1 s, and the overlap hides 2 s")
    assert link.endswith("; `atoll plan` names settings that hold")


def test_the_round_trip_alone_may_take_the_overlap() -> None:
    (overlap,) = said({"megabitsPerSecond": 90_000, "roundTripMilliseconds": 1400}, sizing=SIZING)
    assert "so work comes too late" in overlap


@pytest.mark.parametrize(
    ("link", "more"),
    [
        ({"megabitsPerSecond": 9000, "roundTripMilliseconds": 90}, {"sizing": SIZING}),
        ({"megabitsPerSecond": 1}, {}),
        (None, {"sizing": SIZING}),
        (None, {"sizing": {"parameters": 10**15, "stepMilliseconds": 1}}),
    ],
)
def test_nothing_is_said_where_all_holds_or_a_number_is_missing(
    link: dict[str, int] | None, more: dict[str, Any]
) -> None:
    assert said(link, **more) == ()
