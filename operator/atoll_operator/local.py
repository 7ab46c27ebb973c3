"""Local mode: supervised processes in place of pods (the second executor)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll_operator.plan import Planned
from atoll_protos.errors import SpecError
from atoll_protos.names import PERMANENT_EXITS, Env, ExitCode

BACKOFF_SECONDS = (0.5, 30.0)
STEADY_SECONDS = 60.0  # a process that ran so long starts its back-off afresh
STOP_SECONDS = 8.0


class JobFailedError(Exception):
    """A process ended with a permanent code; the text is its last line."""


@dataclass(slots=True, kw_only=True)
class Child:
    """One planned process and its present start."""

    planned: Planned
    log: Path
    process: subprocess.Popen[bytes] | None = None
    instance: str = ""
    restarts: int = -1
    started_at: float = 0.0
    start_at: float = 0.0
    attempt: int = 0
    done: bool = False


class Supervisor:
    """Starts what is planned, again with back-off when it ends, and stops it all."""

    def __init__(self, planned: list[Planned], out: Path) -> None:
        self.out = out
        self.children = [
            Child(planned=each, log=out / "logs" / f"{each.name}.log") for each in planned
        ]

    def look(self, now: float) -> bool:
        """Start what is due and note what has ended; says whether anything changed."""
        changed = False
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, child.process.returncode, now)
                changed = True
            if child.process is None and not child.done and now >= child.start_at:
                self._start(child, now)
                changed = True
        if changed:
            self._write()
        return changed

    def kill(self, child: Child) -> None:
        """kill -9, as `--chaos` does."""
        if child.process is not None:
            child.process.kill()

    def stop(self) -> None:
        """SIGTERM to learners first, then to shards; SIGKILL to what does not end in time."""
        for role in ("learner", "evaluator", "shard"):
            running = [
                child.process
                for child in self.children
                if child.planned.role == role and child.process is not None
            ]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            for process in running:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start(self, child: Child, now: float) -> None:
        child.restarts += 1
        uid = f"{child.planned.name}-{child.restarts}-{os.urandom(4).hex()}"
        child.instance = uid
        command = [word for word in child.planned.command if word != "--new" or child.restarts == 0]
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log, _named(child.planned):
            child.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=child.planned.folder or None,
                env={
                    **os.environ,
                    "PATH": _path(),
                    **child.planned.env,
                    Env.UID: uid,
                    Env.INSTANCE: uid,
                },
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
        child.started_at = now

    def _ended(self, child: Child, code: int, now: float) -> None:
        child.process = None
        if code in PERMANENT_EXITS:
            raise JobFailedError(f"{child.planned.name} (exit code {code}): {last_line(child.log)}")
        if code == ExitCode.FINAL:
            child.done = True
            return
        child.attempt = 0 if now - child.started_at > STEADY_SECONDS else child.attempt + 1
        low, high = BACKOFF_SECONDS
        child.start_at = now + min(high, low * 2 ** max(0, child.attempt - 1))

    def _write(self) -> None:
        rows = [
            {
                "role": child.planned.role,
                ("shard" if child.planned.role == "shard" else "slot"): _name(child.planned),
                "pid": child.process.pid if child.process else None,
                "instance": child.instance,
                "restarts": child.restarts,
            }
            for child in self.children
        ]
        write_json(self.out / "processes.json", rows)


def _path() -> str:
    """PATH with this environment first: a template's `python` has Atoll, as in its image."""
    return os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))


@contextlib.contextmanager
def _named(planned: Planned) -> Iterator[None]:
    """A command or folder that is not there is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise SpecError(
            f"spec: the template of {planned.name}",
            f"{planned.command[0]} in {planned.folder or 'the present folder'}: {error.strerror}",
            "mend its command or workingDir",
        ) from error


def _name(planned: Planned) -> str | int:
    if planned.role == "shard":
        return int(planned.name.removeprefix("shard-"))
    return planned.name


def free_ports(count: int) -> tuple[int, ...]:
    """Loopback ports that nobody has at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)


def last_line(path: Path) -> str:
    """The last line that a process wrote."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file at once."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
