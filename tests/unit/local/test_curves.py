"""The curves of a run are a function of the lines that its processes have written."""

from typing import Any

import pytest

from atoll_operator.local.show.curves import Curves, Point, Writer


def step(
    tick: int, loss: float | None, *, slot: str = "a-0", tokens: int = 10, first: bool = False
) -> dict[str, Any]:
    """A learner's line at second `tick`; the first adopts version 0 of two slices."""
    adopted = [{"shard": 0, "slice": each, "version": 0} for each in range(2)] if first else []
    return {
        **{"slot": slot, "t_m": tick, "tick": tick, "tokens": tokens, "loss": loss},
        **{"step_seconds": 1.5, "blocked_seconds": 0.5, "adopted": adopted, "time": float(tick)},
    }


def commit(tick: int, *tokens: int, counts: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """`counts` are those of slices and of trained and merged tokens."""
    parts = [{"slot": f"a-{i}", "tokens": each} for i, each in enumerate(tokens)]
    line = {"event": "commit", "shard": 0, "slice": 0, "tick": tick, "time": float(tick)}
    named = dict(zip(("slices", "trained", "merged"), counts, strict=True)) if counts else {}
    return {**line, "participants": parts, **({"counts": named} if named else {})}


def values(points: list[Point]) -> dict[tuple[str, str, int], float]:
    return {(each.series, each.tag, each.tick): each.value for each in points}


def test_a_learners_loss_is_the_mean_of_its_steps_in_a_tick() -> None:
    curves = Curves()
    assert not curves.feed(Writer.LEARNER, step(1, 3.0))
    assert not curves.feed(Writer.LEARNER, step(1, 1.0))
    found = curves.feed(Writer.LEARNER, step(2, None, tokens=0))
    assert values(found) == {("a-0", "loss", 1): 2.0, ("a-0", "tokens_per_second", 1): 5.0}
    assert values(curves.rest()) == {("a-0", "tokens_per_second", 2): 0.0}  # it had no loss


def test_a_tick_is_drawn_once_where_a_learner_joins_again_at_an_earlier_one() -> None:
    curves = Curves()
    curves.feed(Writer.LEARNER, step(39, 3.0))
    joined = {**step(38, None, tokens=0, first=True), "t_m": 0}
    found = curves.feed(Writer.LEARNER, joined) + curves.feed(Writer.LEARNER, step(39, 1.0))
    found += curves.feed(Writer.LEARNER, step(40, 5.0))
    assert [(each.tick, each.value) for each in found if each.tag == "loss"] == [(39, 2.0)]


def test_what_a_script_logs_is_drawn_with_its_steps_and_never_before_them() -> None:
    def log(tick: int, **logged: float) -> dict[str, Any]:
        line = {"slot": "a-0", "event": "logged", "tick": tick, "time": float(tick)}
        return {**line, "values": logged}

    curves = Curves()
    lines = [step(1, 3.0), log(1, accuracy=0.25), log(1, accuracy=0.75), log(2, norm=9.0)]
    found = [point for line in lines for point in curves.feed(Writer.LEARNER, line)]
    assert [(each.tag, each.value) for each in found] == [
        *[("loss", 3.0), ("tokens_per_second", 5.0), ("accuracy", 0.5)]
    ]
    found = curves.feed(Writer.LEARNER, step(2, 1.0)) + curves.rest()
    assert values(found)["a-0", "norm", 2] == 9.0
    assert {each.tick for each in found} == {2}


def test_the_jobs_curves_come_with_each_commit() -> None:
    curves = Curves()
    assert values(curves.feed(Writer.SHARD, commit(1, 100, 60, counts=(2, 400, 160)))) == {
        ("job", "tokens", 1): 200.0,
        ("job", "commits", 1): 1.0,
        ("job", "learners", 1): 2.0,
        ("job", "goodput", 1): 160 / 400,
    }
    other = {**commit(2, 100, counts=(2, 500, 290)), "shard": 1}  # means are over all slices
    after = values(curves.feed(Writer.SHARD, other))
    assert after["job", "tokens", 2] == 225.0
    assert after["job", "goodput", 2] == pytest.approx(450 / 900)
    assert {tag for _, tag, _ in values(curves.feed(Writer.SHARD, commit(9)))} == {"commits"}
    behind = curves.feed(Writer.SHARD, commit(8, 1))  # shards are not at the same tick
    assert {point.tick for point in behind} == {9}
    assert curves.rest() == []


def test_the_held_out_loss_is_a_series_of_its_own() -> None:
    line = {"tick": 50, "loss": 2.5, "time": 7.0}
    assert Curves().feed(Writer.EVALUATOR, line) == [
        Point(series="held-out", tag="loss", tick=50, value=2.5, time=7.0)
    ]
    assert Curves().feed(Writer.SHARD, {"event": "start", "time": 1.0}) == []
    assert Curves().feed(Writer.LEARNER, {"event": "start", "slot": "a-0", "time": 1.0}) == []
