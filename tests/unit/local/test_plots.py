"""The pictures of a run: restarts are seen as such, and no run is too broken to be drawn."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from atoll_operator.local.show import plots

TOKENS = {"trained": 1000, "merged": 870, "overlap": 60, "late": 40, "lost": 20, "pending": 10}
NOTHING = dict.fromkeys(TOKENS, 0)


def step(tick: int, loss: float | None, incarnation: int = 1) -> dict[str, Any]:
    return {"slot": "a-0", "incarnation": incarnation, "tick": tick, "loss": loss}


def write(out: Path, slot: str, *lines: dict[str, Any]) -> None:
    (out / "learners").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (out / "learners" / f"{slot}.jsonl").write_text(text)


def losses(out: Path) -> Axes:
    """The axes of loss.png."""
    axes = plt.figure().add_subplot()
    plots._losses(axes, out, "")
    return axes


def points(line: Any) -> Any:
    return [*zip(line.get_xdata(), line.get_ydata(), strict=True)]


@pytest.fixture(autouse=True)
def _close() -> Any:
    yield
    plt.close("all")


def test_a_restart_breaks_the_line_and_begins_the_average_anew(tmp_path: Path) -> None:
    write(tmp_path, "a-0", step(1, 4.0), step(2, 4.0), step(3, 0.1, 2), step(4, 0.1, 2))
    axes = losses(tmp_path)
    before, after, marks = axes.lines
    assert points(before) == [(1, pytest.approx(4.0)), (2, pytest.approx(4.0))]
    assert points(after) == [(3, pytest.approx(0.1)), (4, pytest.approx(0.1))]
    assert before.get_color() == after.get_color()
    assert [tick for tick, _ in points(marks)] == [3]
    assert axes.get_legend_handles_labels()[1] == ["a-0", "started again"]
    back = [step(1, 1.0), step(2, 1.0), step(3, None), step(1, 1.0), step(3, 1.0)]
    assert [ticks for ticks, _ in plots.starts(back)] == [[1, 2], [1, 3]]  # to its last commits
    for number in range(20):
        write(tmp_path, f"a-{number}", step(1, 1.0))
    legend = losses(tmp_path).get_legend()
    assert legend is not None
    assert legend._ncols == 3  # type: ignore[attr-defined]
    assert legend._loc != legend.codes["best"]  # type: ignore[attr-defined]


def test_who_trains_elsewhere_has_the_losses_that_a_shard_has_noted(tmp_path: Path) -> None:
    write(tmp_path, "a-0", step(1, 4.0), step(2, 3.0))
    noted = [{"slot": slot, "incarnation": 1, "loss": 9.0} for slot in ("a-0", "b-0")]
    tape = [{"tick": 5, "losses": noted}, {"tick": 7}, {"tick": 8, "losses": noted}]
    (tmp_path / "syncer").mkdir()
    for shard in range(2):
        text = "".join(json.dumps(line) + "\n" for line in tape)
        (tmp_path / "syncer" / f"{shard}.tape.jsonl").write_text(text)
    own, elsewhere = losses(tmp_path).lines
    assert [tick for tick, _ in points(own)] == [1, 2]
    assert points(elsewhere) == [(5, pytest.approx(9.0)), (8, pytest.approx(9.0))]


def test_the_average_is_the_mean_at_its_beginning_and_begins_anew_after_a_nan() -> None:
    assert plots.smooth([1.0, 3.0])[1] == pytest.approx(2.0, abs=0.1)
    flat = plots.smooth([2.0] * 200)
    assert flat == pytest.approx([2.0] * 200)
    broken = plots.smooth([1.0, math.nan, 5.0, 5.0])
    assert math.isnan(broken[1])
    assert broken[2:] == [5.0, 5.0]


def test_pictures_have_shares_and_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a-0", step(1, 4.0), step(2, 3.0))
    drawn: dict[str, Any] = {}

    def keep(figure: Any, path: Path, **more: Any) -> None:
        axes = figure.axes[0]
        texts = [text.get_text() for text in axes.texts]
        drawn[path.name] = (axes.get_ylabel(), axes.get_title(), texts)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    plots.draw(tmp_path, TOKENS)
    assert drawn["loss.png"][:2] == ("loss (moving average)", tmp_path.name)
    _, title, shares = drawn["goodput.png"]
    assert title == "What became of 1,000 tokens"
    assert shares == ["87.0%", "1.0%", "6.0%", "4.0%", "2.0%"]  # in the order of CLASSES


def test_goodput_shows_each_fault_of_a_plan_as_long_as_it_lasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(word: str, began: float, ended: float) -> str:
        return json.dumps({"fault": word, "time": ended, "began": began, "ended": ended}) + "\n"

    text = fault("kill", 103.0, 103.0) + fault("cut", 104.0, 108.0) + fault("kill", 109.0, 109.0)
    (tmp_path / "chaos.jsonl").write_text(text)
    line = {"event": "commit", "shard": 0, "participants": [{"tokens": 50}]}
    line |= {"epoch": 1}
    commits = [line | {"time": 100.0 + n, "slice": n % 2, "version": n} for n in range(11)]
    (tmp_path / "syncer").mkdir()
    (tmp_path / "syncer/0.tape.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in commits))
    figures: dict[str, Any] = {}
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig",
        lambda figure, path, **_: figures.update({path.name: figure}),
    )
    plots.draw(tmp_path, TOKENS)
    _, axes = figures["goodput.png"].axes
    *bars, kill, cut, later = axes.patches
    assert sum(each.get_height() * each.get_width() for each in bars) == pytest.approx(11 * 25)
    assert (kill.get_x(), later.get_x()) == (3.0, 9.0)
    assert (cut.get_x(), cut.get_width()) == (4.0, 4.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["kill", "cut"]
    assert axes.get_title() == "3 faults"


@pytest.mark.parametrize(
    "lines",
    [
        [{"slot": "a-0", "event": "start"}],
        [step(0, None)],
        [step(1, math.nan), step(2, math.inf)],
    ],
)
def test_a_run_that_failed_at_its_begin_is_drawn_without_warnings(
    lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    write(tmp_path, "a-0", *lines)
    (tmp_path / "chaos.jsonl").write_text('{"fault": "kill", "time": 1, "began": 1, "ended": 1}')
    plots.draw(tmp_path, NOTHING)
    for name in ("loss.png", "goodput.png", "rounds.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def falling(**more: float) -> list[dict[str, Any]]:
    """Steps of a learner that learns, with other losses at some of them (as in `at_9`)."""
    values = {f"at_{tick}": 5.5 - 0.1 * tick for tick in range(40)} | more
    return [step(tick, value) for tick, value in enumerate(values.values())]


@pytest.mark.parametrize("far", [1e8, 1e308, -1e8, math.inf, math.nan])
@pytest.mark.parametrize("from_tick", [1, 20])
def test_one_that_diverges_leaves_others_the_scale(
    far: float, from_tick: int, tmp_path: Path
) -> None:
    write(tmp_path, "a-0", *falling())
    write(tmp_path, "b-0", *falling(**{f"at_{tick}": far for tick in range(from_tick, 40)}))
    write(tmp_path, "c-0", *falling())
    axes = losses(tmp_path)
    low, high = axes.get_ylim()
    assert 0 < low < 3
    assert 5 < high < 7
    assert axes.get_title().startswith("\nb-0: values")
    plots.draw(tmp_path, TOKENS)  # warnings are errors


def test_of_a_run_that_is_well_all_is_shown_also_a_high_first_loss(tmp_path: Path) -> None:
    write(tmp_path, "a-0", step(0, 11.0), *(step(tick, 2.0 + 1 / tick) for tick in range(1, 200)))
    axes = losses(tmp_path)
    assert (axes.get_ylim()[1] > 11, axes.get_title()) == (True, "")
    write(tmp_path, "a-0", *falling(**{f"at_{tick}": 1e30 for tick in range(34, 40)}))
    axes = losses(tmp_path)  # it diverges at its end, and keeps the scale of what it has learned
    assert axes.get_ylim()[1] < 7
    assert axes.get_title().startswith("\na-0: values")
