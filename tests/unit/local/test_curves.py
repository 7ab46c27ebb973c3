"""The curves of a run are a function of the lines that its processes have written."""

from typing import Any

import pytest

from atoll_operator.local.curves import Curves, Point, Writer


def step(
    tick: int, loss: float | None, *, slot: str = "a-0", tokens: int = 10, first: bool = False
) -> dict[str, Any]:
    """A learner's line at second `tick`; the first adopts version 0 of two slices."""
    adopted = [{"shard": 0, "slice": each, "version": 0} for each in range(2)] if first else []
    return {
        **{"slot": slot, "t_m": tick, "tick": tick, "tokens": tokens, "loss": loss},
        **{"step_seconds": 1.5, "blocked_seconds": 0.5, "adopted": adopted, "time": float(tick)},
    }


def commit(tick: int, *tokens: int, of: int = 0) -> dict[str, Any]:
    parts = [{"slot": f"a-{i}", "tokens": each} for i, each in enumerate(tokens)]
    line = {"event": "commit", "shard": 0, "slice": of, "tick": tick, "time": float(tick)}
    return {**line, "participants": parts}


def values(points: list[Point]) -> dict[tuple[str, str, int], float]:
    return {(each.series, each.tag, each.tick): each.value for each in points}


def test_a_learners_loss_is_the_mean_of_its_steps_in_a_tick() -> None:
    curves = Curves()
    assert not curves.feed(Writer.LEARNER, step(1, 3.0))
    assert not curves.feed(Writer.LEARNER, step(1, 1.0))
    found = curves.feed(Writer.LEARNER, step(2, 5.0))
    assert values(found) == {("a-0", "loss", 1): 2.0, ("a-0", "tokens_per_second", 1): 5.0}
    assert values(curves.rest()) == {("a-0", "loss", 2): 5.0, ("a-0", "tokens_per_second", 2): 5.0}


def test_a_tick_is_drawn_once_where_a_learner_joins_again_at_an_earlier_one() -> None:
    curves = Curves()
    curves.feed(Writer.LEARNER, step(39, 3.0))
    joined = {**step(38, None, tokens=0, first=True), "t_m": 0}
    found = curves.feed(Writer.LEARNER, joined) + curves.feed(Writer.LEARNER, step(39, 1.0))
    found += curves.feed(Writer.LEARNER, step(40, 5.0))
    assert [(each.tick, each.value) for each in found if each.tag == "loss"] == [(39, 2.0)]


def test_a_step_without_a_loss_draws_none() -> None:
    curves = Curves()
    curves.feed(Writer.LEARNER, step(1, None, tokens=0))
    assert values(curves.rest()) == {("a-0", "tokens_per_second", 1): 0.0}


def test_the_jobs_curves_come_with_each_commit() -> None:
    curves = Curves()
    curves.feed(Writer.LEARNER, step(1, 1.0, tokens=100, first=True))
    curves.feed(Writer.LEARNER, step(1, 1.0, tokens=100, slot="a-1", first=True))
    assert values(curves.feed(Writer.SHARD, commit(1, 100, 60))) == {
        ("job", "tokens", 1): 200.0,
        ("job", "commits", 1): 1.0,
        ("job", "learners", 1): 2.0,
        ("job", "goodput", 1): 160 / 2 / 200,  # the other slice has merged nothing yet
    }
    after = values(curves.feed(Writer.SHARD, commit(2, 100, of=1)))
    assert after["job", "goodput", 2] == pytest.approx(260 / 2 / 200)


def test_a_version_that_merges_no_offer_draws_no_point_of_nobody() -> None:
    """One that was taken back from a learner, or a last one that only has more bits."""
    found = values(Curves().feed(Writer.SHARD, commit(1)))
    assert found["job", "commits", 1] == 1.0
    assert ("job", "learners", 1) not in found


def test_the_last_points_of_the_job_count_also_what_came_after_the_last_commit() -> None:
    curves = Curves()
    curves.feed(Writer.LEARNER, step(1, 1.0, tokens=100, first=True))
    curves.feed(Writer.SHARD, commit(1, 100))
    curves.feed(Writer.LEARNER, step(3, 1.0, tokens=100))
    last = values([point for point in curves.rest() if point.series == "job"])
    assert last == {("job", "tokens", 3): 200.0, ("job", "goodput", 3): 100 / 2 / 200}


def test_the_jobs_tick_never_goes_back_because_shards_are_not_at_the_same() -> None:
    curves = Curves()
    curves.feed(Writer.SHARD, commit(9, 1))
    assert {point.tick for point in curves.feed(Writer.SHARD, commit(8, 1))} == {9}


def test_the_held_out_loss_is_a_series_of_its_own() -> None:
    line = {"tick": 50, "loss": 2.5, "time": 7.0}
    assert Curves().feed(Writer.EVALUATOR, line) == [
        Point(series="held-out", tag="loss", tick=50, value=2.5, time=7.0)
    ]
    assert Curves().feed(Writer.SHARD, {"event": "start", "time": 1.0}) == []
    assert Curves().feed(Writer.LEARNER, {"event": "start", "slot": "a-0", "time": 1.0}) == []
