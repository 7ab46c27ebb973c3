"""Settings of all tests: marks that come from the folder, what a path selects, hypothesis."""

from pathlib import Path

import pytest
from hypothesis import settings

# The checks run on busy machines: a slow example is no failure.
settings.register_profile("atoll", deadline=None)
settings.load_profile("atoll")

TESTS = Path(__file__).resolve().parent
MARK_OF_FOLDER = {"local": "local", "wire": "local", "cluster": "cluster"}
# Of a test of real processes that hangs, and of a long one. No test depends on how fast the machine
# is, but one that hangs must not take all the time that the others have.
HANGS_SECONDS, LONG_HANGS_SECONDS = 1200, 3600


def folder_of(path: Path) -> str:
    """Return the folder of `tests/` in which a path lies; empty for a path outside."""
    path = path.resolve()
    inside = path != TESTS and path.is_relative_to(TESTS)
    return path.relative_to(TESTS).parts[0] if inside else ""


def pytest_configure(config: pytest.Config) -> None:
    """A path on the command line asks for what is there, also where the default leaves it out."""
    named = {folder_of(Path(arg.split("::")[0])) for arg in config.invocation_params.args}
    default = next(word[3:] for word in config.getini("addopts") if word.startswith("-m="))
    if named & MARK_OF_FOLDER.keys() and config.option.markexpr == default:
        config.option.markexpr = "not long"


@pytest.hookimpl(tryfirst=True)  # before pytest itself selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts real processes or clusters, by its folder, so that no file can forget it."""
    for item in items:
        if mark := MARK_OF_FOLDER.get(folder_of(item.path)):
            item.add_marker(mark)
            if config.option.timeout is None:  # the command line gives no other
                long = item.get_closest_marker("long") is not None
                item.add_marker(pytest.mark.timeout(LONG_HANGS_SECONDS if long else HANGS_SECONDS))
