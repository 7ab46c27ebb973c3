"""Short names for what a change must pass: `nox -l` lists them, `nox -s lint tests` runs two.

No session makes an environment of its own: each uses the one that nox itself is installed in,
which `pip install -e '.[dev]'` has filled.
What follows `--` goes to the program: `nox -s tests -- -k grace`.
"""

import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "docs", "tests"]
BIN = Path(sys.executable).parent


def program(session: nox.Session, name: str, *words: str) -> None:
    """Run a program of this environment."""
    session.run(str(BIN / name), *words, *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting and the direction of imports."""
    session.run(str(BIN / "ruff"), "check", ".", external=True)
    session.run(str(BIN / "ruff"), "format", "--check", ".", external=True)
    session.run(str(BIN / "lint-imports"), external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Types, strictly."""
    program(session, "mypy")


@nox.session
def size(session: nox.Session) -> None:
    """Files that five journeys run through, and lines by package: only prints."""
    session.run(sys.executable, "tests/journeys.py", external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Links, rule numbers and generated tables of the documents."""
    program(session, "pytest", "-q", "tests/unit/docs")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit, paper, sim and chart, as `pytest` without words."""
    program(session, "pytest")


@nox.session
def seeds(session: nox.Session) -> None:
    """More seeds of the simulation."""
    program(session, "pytest", "-m", "seeds")


@nox.session
def planted(session: nox.Session) -> None:
    """Bugs planted in production code, one at a time: the tests must notice each."""
    with session.chdir(Path(__file__).parent / "tests"):
        session.run(sys.executable, "-m", "planted", *session.posargs, external=True)


@nox.session
def drawn(session: nox.Session) -> None:
    """Bugs that are drawn in the files of the last day; names those that no test notices."""
    locks = ("install", "--quiet", "--require-hashes", "-r", "requirements/mutation.txt")
    session.run(str(BIN / "pip"), *locks, external=True)
    words = session.posargs or ("--draw", "150")
    with session.chdir(Path(__file__).parent / "tests"):
        session.run(sys.executable, "-m", "planted", *words, external=True)


@nox.session
def local(session: nox.Session) -> None:
    """Real processes, real gRPC, kills, on this machine."""
    program(session, "pytest", "tests/local", "tests/wire")


@nox.session
def cluster(session: nox.Session) -> None:
    """Real Kubernetes clusters, as root; the first time Kubernetes is built."""
    session.run(sys.executable, "tests/cluster", "prepare", external=True)
    program(session, "pytest", "tests/cluster")


@nox.session
def long(session: nox.Session) -> None:
    """What takes minutes each, as root."""
    session.run(sys.executable, "tests/cluster", "prepare", external=True)
    program(session, "pytest", "-m", "long")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks that follow `--`, or list them."""
    folder = Path(__file__).parent / "tests"
    found = sorted(
        path.stem for path in (folder / "bench").glob("*.py") if "__main__" in path.read_text()
    )
    if not session.posargs:
        session.log("nox -s bench -- NAME...: %s", ", ".join(found))
    with session.chdir(folder):
        for name in session.posargs:
            session.run(sys.executable, "-m", f"bench.{name}", external=True)
