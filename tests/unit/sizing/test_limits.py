"""What will not hold, and warnings by what a manifest itself expects."""

from typing import Any

import pytest

from atoll_operator.api.job.parsing import from_object
from atoll_operator.sizing.needs import needs, warnings
from unit.sizing.cases import given, spec_of

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


FAST = {"shards": 8}


@pytest.mark.parametrize(
    ("job", "line", "seconds", "sentence"),
    [
        ({"sync": {"overlap": 6}, "syncer": FAST}, (0.5, 0.01), 1.0, "eu: 133% of its link on"),
        ({"syncer": FAST}, (2.0, 2.0), 1.0, "the overlap hides 2 s, so work comes too late"),
        (
            {"sync": {"overlap": 23}},
            (100.0, 0.0),
            0.15,
            "the merges need 3 shards, and there are 1",
        ),
        ({"syncer": FAST}, (100.0, 0.0), 0.1, "the transport of a learner needs 0.11 s"),
        (
            {"syncer": FAST, "sync": {"preset": "DiLoCo", "period": 20}},
            (1.0, 0.18),
            1.0,
            "learners wait for the network in",
        ),
    ],
)
def test_the_tightest_limit_comes_first_in_words(
    job: dict[str, Any], line: tuple[float, float], seconds: float, sentence: str
) -> None:
    spec = spec_of({"us": 1, "eu": 1}, **job)
    first, *others = needs(spec, given({"eu": line}, seconds)).limits
    assert first.used > 1
    assert sentence in first.sentence
    assert [limit.used for limit in others] == sorted((x.used for x in others), reverse=True)
