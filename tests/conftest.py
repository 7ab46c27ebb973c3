"""Settings of all tests: what a path selects, marks of folders, processes that share the tests."""

import gc
import os
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

from local import fork_server

# The checks run on busy machines: a slow example is no failure.
settings.register_profile("atoll", deadline=None, derandomize=True)
settings.load_profile("atoll")

# Tests share the cores with each other, and with the processes that they start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).resolve().parent
MARK_OF_FOLDER = {"local": "local", "wire": "local", "cluster": "cluster"}
IN_PROCESS = ("seeds",)  # marks of tests that lie in no such folder
PROCESSES_MAX = 8  # half a GB each
# Of a test of real processes that hangs, and of a long one. No test depends on how fast the machine
# is, but one that hangs must not take all the time that the others have.
HANGS_SECONDS, LONG_HANGS_SECONDS = 1200, 3600


def folder_of(path: Path) -> str:
    """Return the folder of `tests/` in which a path lies; empty for a path outside."""
    path = path.resolve()
    inside = path != TESTS and path.is_relative_to(TESTS)
    return path.relative_to(TESTS).parts[0] if inside else ""


def named(config: pytest.Config) -> list[Path]:
    """Return the paths on the command line."""
    paths = (Path(arg.split("::")[0]) for arg in config.invocation_params.args)
    return [path for path in paths if path.exists()]


def default_marks(config: pytest.Config) -> str:
    """Return the selection by marks that is made when the command line makes none."""
    words: list[str] = config.getini("addopts")
    return next(word[3:] for word in words if word.startswith("-m="))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than cores where tests wait too; none, so this one, for files and clusters."""
    folders = {folder_of(path) for path in named(config)}
    if (
        "cluster" in folders
        or config.option.markexpr not in (default_marks(config), *IN_PROCESS)
        or any(path.is_file() for path in named(config))
    ):
        return 0
    wait = config.option.markexpr not in IN_PROCESS
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)) + wait)


def pytest_configure(config: pytest.Config) -> None:
    """A path on the command line asks for what is there, also where the default leaves it out."""
    folders = {folder_of(path) for path in named(config)}
    if folders & MARK_OF_FOLDER.keys() and config.option.markexpr == default_marks(config):
        config.option.markexpr = "not long"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what the marks leave out: large libraries come with it."""
    left_out = folder_of(collection_path) in MARK_OF_FOLDER
    return (left_out and config.option.markexpr in (default_marks(config), *IN_PROCESS)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all of torch are no garbage: do not look for it there."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest itself selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts real processes or clusters, by its folder, so that no file can forget it."""
    for item in items:
        if mark := MARK_OF_FOLDER.get(folder_of(item.path)):
            item.add_marker(mark)
            if config.option.timeout is None:  # the command line gives no other
                long = item.get_closest_marker("long") is not None
                item.add_marker(pytest.mark.timeout(LONG_HANGS_SECONDS if long else HANGS_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests of real processes fork them, but where a new interpreter is what they are about."""
    forks = MARK_OF_FOLDER.get(folder_of(item.path)) == "local"
    if item.get_closest_marker("fresh"):
        forks = False
    with fork_server.installed() if forks else nullcontext():
        return (yield)
