"""What a step counts, on the head of a learner and on its other ranks (rule 35)."""

from atoll_worker.link.messages import JobLength
from atoll_worker.training.boundary import BoundaryWork, Counts


def test_on_the_head_the_scripts_numbers_count_and_its_state_is_kept() -> None:
    counts = Counts(cursor=10)
    tokens, cursor = counts.given(7, 15, b"state", is_head=True)
    counts.count(tokens, cursor)
    assert (counts.own_steps, counts.tokens, counts.cursor) == (1, 7, 15)
    work = BoundaryWork(captured=[(0, 0)])
    assert counts.state(work) == b"state"
    assert counts.state(BoundaryWork()) is None


def test_of_what_the_script_of_another_rank_gives_only_the_state_is_kept() -> None:
    counts = Counts(cursor=10)
    for tokens, cursor in ((7, 15), (-1, 3)):
        counts.count(*counts.given(tokens, cursor, b"state", is_head=False))
    counts.heard(14, 20)
    assert (counts.own_steps, counts.tokens, counts.cursor) == (2, 14, 20)
    assert counts.state(BoundaryWork(captured=[(0, 0)])) == b"state"


def test_a_length_in_tokens_is_estimated_from_the_tokens_of_a_step() -> None:
    length, counts = JobLength(steps=None, tokens=1000), Counts()
    assert counts.progress(5, length, learners=2) == 0.0
    counts.count(10, 1)
    assert counts.progress(5, length, learners=2) == 0.1
    assert counts.progress(500, length, learners=2) == 1.0
