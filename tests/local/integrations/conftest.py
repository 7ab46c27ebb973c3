"""What the callbacks' tests share."""

from collections.abc import Callable

import pytest

Alone = Callable[[int], None]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """The job of a process without a launcher has so many steps."""
    return lambda steps: monkeypatch.setenv("ATOLL_STEPS", str(steps))
