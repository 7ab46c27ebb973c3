"""Plant every bug of the list, one at a time, and see that the tests it names notice.

    cd tests && python -m planted                     all bugs
    cd tests && python -m planted --list worker       those of worker.toml
    cd tests && python -m planted ID...               those alone, with what pytest said
    cd tests && python -m planted --draw 99 FILE...   that many bugs that nobody has thought of
    cd tests && python -m planted --draw 99           in files that have changed since yesterday

A worker has a copy of the repository in a temporary folder. First all tests that the bugs name must
pass, each in one of the copies. Then a worker puts a bug into its file, runs the bug's tests until
one fails (first the one that failed the last time), and puts the file back. A bug is caught when a
test *fails*: an error at import or in a fixture is no proof, and a run that ends by its time limit
is none either. Ends with 1 when a bug of the list survives. There are twice as many workers as
cores, since some bugs make a test wait.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from planted import drawn
from planted.bugs import FOLDER, ROOT, Bug, load

PACKAGES = ("operator", "worker", "syncer", "protos", "examples", "tests")
SECONDS_MAX = 240.0  # of one bug's tests
TEST_SECONDS_MAX = 75  # of one test: beyond the 60 s after which a test gives a wait up itself
CLEAN_SECONDS_MAX = 1200.0  # of some of the named tests, without a bug
CLEAN_FILES = 6  # of tests in one run without a bug
Given = TypeVar("Given")
Result = TypeVar("Result")
FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll" / "planted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one bug went; `caught_by` is empty for one that survived."""

    bug: Bug
    caught_by: str
    said: str  # what pytest wrote
    seconds: float


class Copy:
    """The repository in a folder of its own, in which one bug at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changes = 0
        self._server: subprocess.Popen[str] | None = None
        listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def pytest(self, tests: list[str], seconds_max: float) -> tuple[int, str]:
        """Run tests here: pytest's exit status (-1: it took too long), and what it wrote."""
        output = self.folder / "pytest.txt"
        words = ["-x", "-q", "-rf", "--no-header", "-p", "no:cacheprovider", "-m", ""]
        words += ["-n", "0", "--hypothesis-profile=planted"]
        words += [f"--timeout={TEST_SECONDS_MAX}", *tests]
        job = {"words": words, "output": str(output), "seconds_max": seconds_max}
        server = self._server = self._server or self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline()), output.read_text(errors="replace")

    def close(self) -> None:
        """End the process that runs pytest, and the run that it may be in."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()

    def _start(self) -> "subprocess.Popen[str]":
        """It has this folder's packages, as have all processes that tests start.

        Python keeps what it has compiled here, whatever the environment says of other folders.
        """
        own = {
            "PYTHONPATH": os.pathsep.join(str(self.folder / name) for name in PACKAGES),
            "PYTHONDONTWRITEBYTECODE": "",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [sys.executable, str(FOLDER / "server.py")],
            cwd=self.folder,
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # of Ctrl-C it hears from this process, which ends it
        )

    def write(self, name: str, text: str) -> None:
        """Change a file. Each change has another time, so that Python compiles it again."""
        path = self.folder / name
        path.write_text(text)
        self._changes += 1
        changed = path.stat().st_mtime + self._changes
        os.utime(path, (changed, changed))

    def attempt(self, bug: Bug, edit: tuple[str, str], last: str) -> Outcome:
        """Plant it, run its tests, first of all the `last` that caught it, take it out again."""
        name, planted = edit
        began, right = time.monotonic(), (self.folder / name).read_text()
        self.write(name, planted)
        caught_by = said = ""
        named = [last] if last.startswith(bug.tests) else []
        try:
            for tests in filter(None, (named, list(bug.tests))):
                status, said = self.pytest(tests, SECONDS_MAX)
                if status == 1 and (failed := FAILED.search(said)):
                    caught_by = failed.group(1)
                    break
                if status and not bug.holds:  # a drawn one, of which nothing is to be proven
                    caught_by = f"pytest::which ended with {status}"
                    break
        finally:
            self.write(name, right)
        seconds = time.monotonic() - began
        return Outcome(bug=bug, caught_by=caught_by, said=said, seconds=seconds)


def chosen(words: argparse.Namespace) -> list[Bug]:
    """The bugs that the command line asks for."""
    if words.draw:
        names = words.ids or drawn.changed_files(ROOT, words.since)
        return drawn.draw(ROOT, names, load(), count=words.draw, seed=words.seed)
    paths = [FOLDER / f"{name}.toml" for name in words.list]
    bugs = load(paths or None)
    unknown = set(words.ids) - {bug.id for bug in bugs}
    if unknown:
        raise SystemExit(f"no such bug: {', '.join(sorted(unknown))}")
    return [bug for bug in bugs if not words.ids or bug.id in words.ids]


def say(line: str) -> None:
    """A line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Progress:
    """How many of them are done, and about how many seconds the others take."""

    def __init__(self, count: int) -> None:
        self._count, self._done, self._began = count, 0, time.monotonic()

    def next(self) -> str:
        """One more is done."""
        self._done += 1
        passed = time.monotonic() - self._began
        left = passed / self._done * (self._count - self._done)
        return f"{self._done} of {self._count}, {left:.0f} s left"


class Workers:
    """Copies of the repository, each of which does one thing at a time."""

    def __init__(self, count: int, temporary: Path) -> None:
        self._copies = [Copy(temporary / f"copy{number}") for number in range(count)]
        self.folder = self._copies[0].folder
        self._pool = ThreadPoolExecutor(count)
        self._free: SimpleQueue[Copy] = SimpleQueue()
        for copy in self._copies:
            self._free.put(copy)

    def map(self, do: "Callable[[Copy, Given], Result]", given: list[Given]) -> Iterator[Result]:
        """What each of them came to, as soon as it is known."""

        def in_a_copy(one: Given) -> Result:
            copy = self._free.get()
            try:
                return do(copy, one)
            finally:
                self._free.put(copy)

        for future in as_completed([self._pool.submit(in_a_copy, one) for one in given]):
            yield future.result()

    def close(self) -> None:
        """End all processes, at once: what they were asked for is left out."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for copy in self._copies:
            copy.close()


def run(workers: Workers, bugs: list[Bug], *, show: bool) -> list[Outcome]:
    """Every bug in some worker's copy."""
    edits = {bug.id: bug.planted_in(workers.folder) for bug in bugs}  # before anything is planted
    outcomes, progress = [], Progress(len(bugs))
    caught = json.loads(CACHE.read_text()) if CACHE.exists() else {}

    def attempt(copy: Copy, bug: Bug) -> Outcome:
        return copy.attempt(bug, edits[bug.id], caught.get(bug.id, ""))

    for outcome in workers.map(attempt, bugs):
        outcomes.append(outcome)
        if outcome.bug.holds:
            caught[outcome.bug.id] = outcome.caught_by.partition("[")[0]
        by = outcome.caught_by.partition("::")[2] or "NOBODY"
        say(f"{progress.next()}: {outcome.seconds:5.1f} s  {outcome.bug.id}: {by}")
        if show or not outcome.caught_by:
            say(outcome.said)
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    whole = CACHE.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(caught))
    whole.replace(CACHE)
    return outcomes


def pass_without_bugs(workers: Workers, bugs: list[Bug]) -> None:
    """All tests that the bugs name must pass on the code as it is; else this ends here."""
    tests = sorted({test for bug in bugs for test in bug.tests})
    tests = [test for test in tests if test.partition("::")[0] not in tests or "::" not in test]
    some = [tests[start : start + CLEAN_FILES] for start in range(0, len(tests), CLEAN_FILES)]
    progress = Progress(len(some))
    for status, said in workers.map(lambda copy, few: copy.pytest(few, CLEAN_SECONDS_MAX), some):
        if status != 0:
            say(said)
            raise SystemExit("the tests must pass before a bug is planted")
        say(f"without bugs: {progress.next()}")


def main() -> int:
    """Run, and say in the last line how many were caught."""
    parser = argparse.ArgumentParser(prog="python -m planted")
    parser.add_argument("ids", nargs="*", help="bugs to plant; all without words")
    parser.add_argument("--list", action="append", default=[], help="a file of the list, no suffix")
    parser.add_argument("--draw", type=int, default=0, help="so many bugs that nobody has planted")
    parser.add_argument("--since", default="1 day ago", help="whose files they are drawn in")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of what is drawn")
    parser.add_argument("--only-bugs", action="store_true", help="the tests are known to pass")
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1))
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # copies are removed
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atoll-planted-") as folder:
        bugs = chosen(words)
        if not bugs:
            say("nothing to plant")
            return 0
        workers = Workers(min(words.workers, len(bugs)), Path(folder))
        try:
            if not words.only_bugs:
                pass_without_bugs(workers, bugs)
            outcomes = run(workers, bugs, show=bool(words.ids) and not words.draw)
        finally:
            workers.close()
    survivors = [each.bug for each in outcomes if not each.caught_by]
    for bug in survivors:
        say(f"SURVIVES {bug.id} ({bug.scope or bug.file}): {bug.holds} {bug.breaks}")
    seconds = time.monotonic() - began
    say(f"{len(outcomes) - len(survivors)} of {len(outcomes)} planted bugs caught, {seconds:.0f} s")
    return 1 if survivors and not words.draw else 0


if __name__ == "__main__":
    sys.exit(main())
