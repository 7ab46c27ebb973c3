"""The table of exit codes and of refusals: every code has one row, and the row says it all."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import (
    EXITS,
    REFUSALS,
    Exit,
    ExitCode,
    Refusal,
    exit_code_of,
    is_failure,
    is_permanent,
)


def test_the_numbers_of_exit_codes_stay_as_they_are() -> None:
    assert {code.value for code in ExitCode} == {0, 64, 65, 70, 75, 77}


def test_every_exit_code_has_a_row() -> None:
    assert list(EXITS) == list(ExitCode)
    assert all(code == row.code for code, row in EXITS.items())


def test_only_exits_that_no_new_start_can_fix_are_permanent() -> None:
    """A bug is not among them: it may not come again, and costs the other learners nothing."""
    assert {code for code in range(-20, 256) if is_permanent(code)} == {64, 65}
    assert not is_permanent(None)


@pytest.mark.parametrize("row", EXITS.values(), ids=lambda row: row.code.name)
def test_a_permanent_exit_has_a_reason_and_a_remedy_for_the_condition(row: Exit) -> None:
    assert row.meaning
    assert bool(row.reason) == bool(row.remedy) == row.permanent
    assert not row.permanent or row.failure


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        *((0, False), (1, True), (64, True), (70, True), (75, False), (77, False)),
        *((-2, False), (-6, True), (-9, False), (-11, True), (-15, False)),  # signals
    ],
)
def test_what_counts_as_a_failure_in_a_row(code: int, failure: bool) -> None:
    assert is_failure(code) is failure


def test_every_code_of_the_protocol_has_a_row() -> None:
    assert set(REFUSALS) == {n for n in pb.Code.values() if n != pb.CODE_UNSPECIFIED}
    assert all(code == row.code and row.remedy for code, row in REFUSALS.items())


@pytest.mark.parametrize("row", REFUSALS.values(), ids=lambda row: pb.Code.Name(row.code))
def test_a_refusal_is_retried_or_has_an_exit_code_of_its_own(row: Refusal) -> None:
    # Only a new process holds no other run's state, and only a new image speaks another protocol.
    again = row.retry or row.code in (pb.OTHER_RUN, pb.OTHER_PROTOCOL)
    assert (exit_code_of(row.code) is ExitCode.TRY_AGAIN) is again


def test_a_code_of_a_newer_version_ends_the_process_which_is_started_again() -> None:
    assert exit_code_of(99) is ExitCode.TRY_AGAIN  # type: ignore[arg-type]
