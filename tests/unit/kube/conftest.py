"""Fixtures of the Kubernetes executor's tests."""

import pytest


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
