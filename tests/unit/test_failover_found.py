"""What bench.failover finds of a fault, from commits, terms and steps that are made up."""

from bench.failover_found import Fault, Observed, followed


def ticking(
    first: float, last: float, every: float = 1.0, epoch: int = 1
) -> list[dict[str, float]]:
    count = int((last - first) / every) + 1
    return [{"time": first + n * every, "epoch": epoch} for n in range(count)]


def test_a_fault_ends_with_the_next_terms_commit_or_with_the_first_after_its_own_end() -> None:
    """Shard 0 is killed at 20.5 and another term commits at 24; cut off from 40.5 to 46.5."""
    hit = [*ticking(0, 20), *ticking(24, 40, epoch=2), *ticking(46.75, 60, epoch=2)]
    other = [*ticking(0.5, 21.5), *ticking(23, 41), *ticking(44, 60)]
    run = Observed(
        commits={0: hit, 1: other},
        terms={0: [0.0, 23.5], 1: [0.0]},
        steps={"a-0": [n / 4 for n in range(4 * 60) if not 42 <= n / 4 < 45]},
    )
    faults = [
        Fault(kind="kill", shard=0, began=20.5, ended=20.6, lasts=False),
        Fault(kind="cut", shard=0, began=40.5, ended=46.5, lasts=True),
    ]
    kill, cut = followed(run, faults)
    assert (kill.commit_seconds, kill.healed_seconds) == (3.5, None)
    assert (cut.commit_seconds, cut.healed_seconds) == (6.25, 0.25)
    assert (kill.terms, cut.terms) == (1, 0)
    assert (kill.gap_seconds, cut.gap_seconds) == (1.5, 3.0)
    assert kill.gap_bound == cut.gap_bound == 2.0  # twice the longest in quiet
    assert kill.steps / kill.steps_expected == 1.0
    assert round(cut.steps / cut.steps_expected, 2) == 0.52  # it stood for 3 of 6.25 s


def test_what_the_next_fault_does_is_not_the_effect_of_the_one_before() -> None:
    run = Observed(
        commits={0: ticking(0, 30), 1: [*ticking(0.5, 11.5), *ticking(20, 30)]},
        terms={},
        steps={"a-0": [n / 4 for n in range(4 * 30)]},
    )
    faults = [
        Fault(kind="cut", shard=0, began=10.2, ended=11.6, lasts=True),
        Fault(kind="cut", shard=1, began=12.1, ended=19.0, lasts=True),
    ]
    first, second = followed(run, faults)
    assert first.gap_seconds == 1.0
    assert second.commit_seconds == 20 - 12.1
