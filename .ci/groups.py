"""Run the checks and the groups of tests one after the other, and count the tests of all groups.

Several processes of pytest share the tests of a group, but for those on clusters.
`tests/cluster prepare` builds Kubernetes, which takes minutes on a new machine, and seconds where
its cache has these versions. It runs before all tests, so that none shares the machine with it. So
does the installation of object stores and Slurm, which takes a minute on a new machine.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

BIN = Path(sys.executable).parent
CHECKS = (
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["mypy"],
    ["lint-imports"],
    ["python", "tests/journeys.py"],  # only prints: it fails where a journey does not run
)
# `tests` is the command of the README, with the selection that pyproject.toml gives it.
GROUPS = {
    "tests": [],
    "seeds": ["-m", "seeds"],
    "local": ["tests/local", "tests/wire"],
    "cluster": ["tests/cluster"],
    "long": ["-m", "long"],
}
# What only reports: every night, alone.
REPORTS = {
    "drawn": ["nox", "-s", "drawn"],
}
NEED_CLUSTERS = {"cluster", "long"}
NEED_SERVERS = {"local"}
LEFT_OUT = {"long"}  # unless the command line names it
# Tests that may be skipped here, by name. CI has all that the tests need, so there are none.
MAY_SKIP: frozenset[str] = frozenset()


class Count:
    """How many tests passed, failed and were skipped."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0

    def add(self, report: Path, status: int) -> None:
        """Add what pytest wrote about one group, and its exit status."""
        failed_before = self.failed
        for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            name = f"{case.get('classname')}::{case.get('name')}"
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                self.failed += 1
            elif "skipped" not in kinds:
                self.passed += 1
            elif name in MAY_SKIP:
                self.skipped += 1
            else:
                say(f"skipped, which counts as failed here: {name}")
                self.failed += 1
        if status and self.failed == failed_before:
            self.failed += 1  # pytest itself failed: no test ran, or it was interrupted

    def line(self) -> str:
        """Return the last line of the run."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def say(line: str) -> None:
    """Write a line before the next program writes its own."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(*words: str) -> int:
    """Run a program of the environment, say how long it took, and return its exit status."""
    say(f"== {' '.join(words)}")
    began = time.monotonic()
    status = subprocess.run([BIN / words[0], *words[1:]], check=False).returncode
    say(f"== {words[0]}: {time.monotonic() - began:.0f} s")
    return status


def main() -> int:
    """Run the groups that the command line names, or all."""
    wanted = sys.argv[1:] or ["checks", *(group for group in GROUPS if group not in LEFT_OUT)]
    if unknown := set(wanted) - {"checks", *GROUPS, *REPORTS}:
        known = ", ".join(("checks", *GROUPS, *REPORTS))
        say(f"unknown group {', '.join(sorted(unknown))}: there are {known}")
        return 2
    os.environ["CI"] = "true"  # a missing cluster is then a failure
    # Hundreds of processes are started: each would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        return run_groups(wanted, Path(folder))


def run_groups(wanted: list[str], folder: Path) -> int:
    """Stop at the first check that fails, but run every group of tests."""
    if "checks" in wanted:
        for check in CHECKS:
            if run(*check):
                return 1
    if any(run(*words) for name, words in REPORTS.items() if name in wanted):
        return 1
    if NEED_CLUSTERS & set(wanted):
        run("python", "tests/cluster", "prepare")  # the tests fail and say why, if it does
    if NEED_SERVERS & set(wanted):
        run("python", "tests/local/installed.py")  # likewise
    count, groups = Count(), [group for group in GROUPS if group in wanted]
    for group in groups:
        report = folder / f"{group}.xml"
        words = ("-q", "--durations=15", f"--junitxml={report}", *GROUPS[group])
        count.add(report, run("pytest", *words))
    if groups:
        say(count.line())
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
