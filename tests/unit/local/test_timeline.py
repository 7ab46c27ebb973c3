"""The timeline of rounds, from the lines of tapes."""

from typing import Any

import pytest
from matplotlib.figure import Figure

from atoll_operator.local.show import plots

SLOTS = ("a-0", "a-1", "b-0")


def commit(time: float, *merged: str, shard: int = 0, **more: Any) -> dict[str, Any]:
    """A round that waited 2 s for its quorum and 1 s of grace; its commit took 0.5 s."""
    left = [{"slot": slot, "reason": "late"} for slot in SLOTS if slot not in merged]
    spans = {"quorum_wait_seconds": 2.0, "grace_seconds": 1.0, "commit_seconds": 0.5}
    line = {"event": "commit", "time": time, "shard": shard, "slice": 0, "version": int(time)}
    parts = [{"slot": slot} for slot in merged]
    return {**line, **spans, "participants": parts, "left_out": left, **more}


def drawn(*tapes: list[dict[str, Any]]) -> list[Any]:
    figure = Figure(figsize=(11, 8), layout="constrained")
    plots.draw_timeline(figure, tapes, "a run")
    figure.canvas.draw()
    return figure.axes


def colours(axes: Any) -> dict[str, list[tuple[int, int]]]:
    """Column and row of each mark, by its label."""
    return {
        each.get_label(): [(int(x), int(y)) for x, y in each.get_offsets()]
        for each in axes.collections
    }


def test_a_round_is_drawn_with_its_wait_its_grace_its_commit_and_who_took_part() -> None:
    reasons = (
        {"slot": "a-1", "reason": "Lost"},
        {"slot": "b-0", "reason": "values are not finite"},
    )
    first = commit(100.0, *SLOTS)
    tape = [{"event": "start", "time": 90.0}, first, commit(110.0, "a-0", left_out=reasons)]
    shares, _, spans, marks = drawn(tape)
    bars = [(bar.get_x(), bar.get_width()) for bar in spans.patches]
    assert bars == [(-3.5, 2.0), (6.5, 2.0), (-1.5, 1.0), (8.5, 1.0), (-0.5, 0.5), (9.5, 0.5)]
    assert colours(marks) == {
        "merged": [(0, 0), (1, 0), (2, 0), (0, 1)],
        "not in training": [(1, 1)],
        "refused": [(2, 1)],
    }
    assert [text.get_text() for text in shares.get_yticklabels()] == [*SLOTS]


@pytest.mark.parametrize("learners", [3, 20])
def test_the_newest_rounds_of_shard_0_are_shown_and_the_shares_of_all(learners: int) -> None:
    slots = [f"a-{n:02}" for n in range(learners)]
    tape = [commit(float(n), *slots[n % 2 :], left_out=[]) for n in range(100)]
    other = [commit(float(n), *slots, shard=1, left_out=[]) for n in range(100)]
    shares, _, spans, marks = drawn(tape, other)
    assert "of 200 rounds" in shares.get_title()
    assert len(spans.patches) == 3 * plots.ROUNDS_MAX
    names = [text.get_text() for text in spans.get_yticklabels()]
    assert names == [f"slice 0, version {n}" for n in range(76, 100)]
    assert [text.get_text() for text in marks.get_xticklabels()] == slots


def test_who_is_not_called_is_late_and_what_is_taken_back_is_no_round() -> None:
    tape = [commit(9.0, "a-0", left_out=[{"slot": "a-1", "reason": "not usable"}])]
    tape += [commit(10.0, recovered=True), {**commit(11.0), "event": "late"}]
    *_, marks = drawn(tape)
    assert colours(marks) == {"merged": [(0, 0)], plots.LATE: [(1, 0)]}


def test_a_run_without_a_commit_is_drawn() -> None:
    (axes,) = drawn([{"event": "start", "time": 1.0}], [])
    assert axes.texts[0].get_text().startswith("no ")
