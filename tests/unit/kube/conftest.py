"""Fixtures of the Kubernetes executor's tests."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from atoll_operator.kube.plan.kept import Kept, same


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)


@pytest.fixture(autouse=True)
def what_is_kept_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every test: what is given again is what would be made now, so no input is left out."""
    get = Kept.get

    def checked(self: Kept[Any], key: Hashable, given: object, make: Callable[[], Any]) -> Any:
        found = get(self, key, given, make)
        assert same(found, make()), f"what is kept for {key} is not what it would be now"
        return found

    monkeypatch.setattr(Kept, "get", checked)
