from dataclasses import dataclass

import pytest

from atoll_protos.errors import SpecError
from bytegpt.options import option, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a test."""

    count: int = option(3, "how many")
    step_seconds_min: float = option(0.5, "a floor")
    data: tuple[str, ...] = option((), "files")


def test_fields_are_options_with_dashes() -> None:
    given = ["--count", "4", "--step-seconds-min", "0.25", "--data", "a", "b"]
    assert parse(Options, given, "test") == Options(count=4, step_seconds_min=0.25, data=("a", "b"))
    assert parse(Options, [], "test") == Options()


@pytest.mark.parametrize("given", [["--count", "x"], ["--size", "4"], ["extra"]])
def test_a_wrong_option_is_a_spec_error(given: list[str]) -> None:
    with pytest.raises(SpecError, match=f"test: .*{given[0]}.*see test --help"):
        parse(Options, given, "test")
