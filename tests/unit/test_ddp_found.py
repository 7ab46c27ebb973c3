"""What bench.ddp finds in runs that are made up."""

from bench.ddp_found import Run, figures, seconds_to, steps_of, times


def run(
    tokens_per_second: float,
    merged: float,
    *curve: tuple[float, float],
    system: str = "Atoll",
    megabits: float = 2.0,
) -> Run:
    return Run(
        system=system,
        megabits=megabits,
        step_seconds=0.5,
        tokens_per_second=tokens_per_second,
        merged=merged,
        curve=curve,
    )


def test_a_loss_is_reached_on_the_line_between_two_measurements_and_the_first_time_counts() -> None:
    curve = [(-3.0, 5.0), (10.0, 4.0), (20.0, 2.0), (30.0, 3.0), (40.0, 1.0)]
    assert seconds_to(3.0, curve) == 15.0
    assert seconds_to(2.0, curve) == 20.0
    assert seconds_to(1.5, curve) == 37.5


def test_both_are_compared_at_the_lowest_loss_that_both_reach() -> None:
    """Atoll's best is 2.5, and DDP is there halfway between its two measurements."""
    atoll = run(1000.0, 0.8, (0.0, 5.0), (10.0, 2.5), (20.0, 2.75))
    found = times(atoll, run(50.0, 1.0, (0.0, 5.0), (200.0, 3.0), (400.0, 2.0)))
    assert found.loss == 2.5
    assert found.trained == 20.0
    assert found.merged == 16.0
    assert found.to_loss == 30.0


def test_lines_that_were_written_late_move_no_learners_first_step() -> None:
    """Four steps of 2 s from 100 on; the first two lines waited for a busy process."""
    stamps = [109.0, 109.0, 106.25, 108.0]
    file = [{"time": each, "step_seconds": 1.5, "blocked_seconds": 0.5} for each in stamps]
    found = steps_of([{"time": 99.0, "event": "start"}, *file])
    assert (found.seconds, found.began) == (2.0, 100.0)


def test_a_row_begins_with_the_rate_and_compares_only_what_had_links_of_it() -> None:
    curve = ((0.0, 5.0), (10.0, 1.0))
    runs = [
        run(2.0 * rate, merged, *curve, system=system, megabits=rate)
        for rate in (1.0, 8.0)
        for system, merged in (("DDP", 1.0), ("Atoll", 0.5))
    ]
    rows = [*figures(runs, ["DDP"])]
    assert [each.values for each in rows if "times" in each.what] == [
        [1.0, 1.0, 0.5, 1.0],
        [8.0, 1.0, 0.5, 1.0],
    ]
    assert [each.values for each in rows if "loss at" in each.what] == [[1, 1, 1], [8, 1, 1]]
