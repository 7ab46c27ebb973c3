"""Settings of all tests: the marks that come from the folder, and hypothesis."""

from pathlib import Path

import pytest
from hypothesis import settings

# The checks run on busy machines: a slow example is no failure.
settings.register_profile("atoll", deadline=None)
settings.load_profile("atoll")

TESTS = Path(__file__).resolve().parent
MARK_OF_FOLDER = {"local": "local", "wire": "local", "cluster": "cluster"}


@pytest.hookimpl(tryfirst=True)  # before pytest itself selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts real processes or clusters, by its folder, so that no file can forget it."""
    for item in items:
        if item.path.is_relative_to(TESTS):
            folder = item.path.relative_to(TESTS).parts[0]
            if folder in MARK_OF_FOLDER:
                item.add_marker(MARK_OF_FOLDER[folder])
