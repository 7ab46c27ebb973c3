"""The table of exit codes and of refusals: every code has one row, and the row says it all."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import EXITS, REFUSALS, ExitCode, exit_code_of, is_failure, is_permanent


def test_every_code_has_one_row_and_numbers_stay_as_they_are() -> None:
    assert [*EXITS] == [*ExitCode] == [0, 64, 65, 66, 70, 74, 75, 77]
    assert all(row.meaning and bool(row.reason) == bool(row.remedy) for row in EXITS.values())
    assert {*REFUSALS} == {n for n in pb.Code.values() if n != pb.CODE_UNSPECIFIED}
    assert all(row.remedy for row in REFUSALS.values())


def test_only_exits_that_no_new_start_can_fix_are_permanent() -> None:
    """A bug is not among them: it may not come again, and costs the other learners nothing."""
    assert {code for code in range(-20, 256) if is_permanent(code)} == {64, 65, 66}
    assert not is_permanent(None)
    assert all(is_failure(code) for code in (64, 65, 66))


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        *((0, False), (1, True), (64, True), (70, True), (74, True), (75, False), (77, False)),
        *((-2, False), (-6, True), (-9, False), (-11, True), (-15, False)),  # signals
    ],
)
def test_what_counts_as_a_failure_in_a_row(code: int, failure: bool) -> None:
    assert is_failure(code) is failure


def test_a_refusal_is_retried_or_has_an_exit_code_of_its_own() -> None:
    """Only a new process holds no other run's state, and only a new image speaks another protocol.

    A code of a newer version ends the process, which is started again.
    """
    retried = {code for code, row in REFUSALS.items() if row.retry}
    passing = {pb.SLOT_HELD, pb.NOT_READY, pb.STORE_LOST}
    assert retried == passing | {pb.BAD_MESSAGE, pb.BAD_TRANSFER, pb.REPLACED}
    again = {code for code in REFUSALS if exit_code_of(code) is ExitCode.TRY_AGAIN}  # type: ignore[arg-type]
    assert again == retried | {pb.OTHER_RUN, pb.OTHER_PROTOCOL}
    assert exit_code_of(99) is ExitCode.TRY_AGAIN  # type: ignore[arg-type]
