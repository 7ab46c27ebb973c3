"""Starting processes that outlive the command, and finding and ending them without pid files."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.lab.layout import LabError, run_folder

LAB_MARK = "ATOLL_LAB"  # in the environment of every process of a lab: the lab's folder
CLUSTER_MARK = "ATOLL_LAB_CLUSTER"  # of every process of a control plane: the cluster's name
NODE_MARK = "ATOLL_LAB_NODE"  # of every process of a node: the node's short name
SECONDS_MAX = 300.0  # of every wait: only what hangs takes so long, however busy the machine is


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of the lab as the kernel shows it."""

    pid: int
    name: str
    cluster: str  # name, or "" for a process of a node
    node: str  # short name, or "" for a process of a control plane
    boots: bool  # pid 1 of a node


def run(*argv: str | Path, stdin: str | None = None) -> str:
    """Run a command to its end and return what it prints; LabError with its words if it fails."""
    done = subprocess.run(
        [str(word) for word in argv], input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-2000:]
        raise LabError(f"{' '.join(str(word) for word in argv[:6])} failed: {words}")
    return done.stdout


def mark_children() -> None:
    """Let everything that this command starts be found by a later `down`."""
    os.environ[LAB_MARK] = str(run_folder())


def start(argv: Sequence[str | Path], log: Path, environment: Mapping[str, str] = {}) -> int:
    """Start a daemon in a session of its own and return its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**os.environ, LAB_MARK: str(run_folder()), **environment},
            start_new_session=True,
        )
    child.returncode = 0  # it is not ours to wait for
    return child.pid


def wait_for(what: str, ready: Callable[[], bool], seconds_max: float, look: Path) -> None:
    """Ask until `ready`, or raise LabError that names the log to look at."""
    deadline = time.monotonic() + seconds_max
    while not ready():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {seconds_max:.0f} s; see {look}")
        time.sleep(0.05)


def of_lab() -> list[Process]:
    """Find every process that carries the lab's mark, but for this command and its parents."""
    mark = f"{LAB_MARK}={run_folder()}"
    own = _ancestors()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in own:
            continue
        try:
            words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            if mark in words:
                found.append(_describe(entry, dict(word.partition("=")[::2] for word in words)))
        except OSError:  # it ended meanwhile
            continue
    return found


def _describe(entry: Path, environment: Mapping[str, str]) -> Process:
    status = dict(line.partition(":")[::2] for line in (entry / "status").read_text().splitlines())
    program = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
    node = environment.get(NODE_MARK, "")
    inner = status["NSpid"].split()
    boots = bool(node) and len(inner) == 2 and inner[1] == "1"
    return Process(
        pid=int(entry.name),
        name="init" if boots else Path(program).name or status["Name"].strip(),
        cluster=environment.get(CLUSTER_MARK, ""),
        node=node,
        boots=boots,
    )


def _ancestors() -> set[int]:
    pid, found = os.getpid(), set()
    while pid > 0:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def boot_process(node: str) -> int | None:
    """Return the pid of a node's pid 1 as this machine sees it; None when the node is off."""
    return next((p.pid for p in of_lab() if p.node == node and p.boots), None)


def kill(pid: int) -> None:
    """End a process at once; one that has ended already is no error."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def runs(pid: int) -> bool:
    """Whether a thread of a process is left. Until the last one has gone its ports are taken.

    The first thread may be a zombie, with nothing to be read of the process, before the others.
    """
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if thread.read_text().rpartition(")")[2].split()[0] != "Z":
                return True
    return False


def kill_all(
    which: Callable[[Process], bool] = lambda process: True, seconds_max: float = SECONDS_MAX
) -> None:
    """End every process of the lab, or those that are named; their ports are free then."""
    deadline = time.monotonic() + seconds_max
    killed: dict[int, str] = {}
    while True:
        left = {each.pid: each.name for each in of_lab() if which(each)}
        killed = {pid: name for pid, name in killed.items() if runs(pid)} | left
        if not killed:
            return
        if time.monotonic() > deadline:
            words = ", ".join(f"{name} {pid}" for pid, name in killed.items())
            raise LabError(f"these do not end: {words}")
        for pid in left:
            kill(pid)
        time.sleep(0.02)
