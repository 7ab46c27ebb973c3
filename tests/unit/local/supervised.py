"""Processes that a supervisor starts in tests, with a clock that the test moves."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll_operator.local.child import Child
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files
from atoll_operator.local.supervisor import Supervisor

FOREVER = 1e6  # a wait of so long that does not end before runs into the time limit of a test
SLEEP = "import time; time.sleep(600)"
BOOM = "raise ValueError('boom')"


def learner(*command: str) -> Planned:
    return Planned(role="learner", name="here-0", command=command, env={})


def python(script: str) -> Planned:
    return learner(sys.executable, "-c", script)


def exiting(code: int) -> Planned:
    return python(f"import sys; sys.exit({code})")


def shard(number: int, code: int) -> Planned:
    return replace(exiting(code), role="shard", name=f"shard-{number}", shard=number)


def hosts(*planned: Planned, needed: int = 2) -> list[Planned]:
    """The hosts of one learner, which trains with so many of them."""
    return [
        replace(each, name=f"here-0-{n}", slot="here-0", host=n, hosts_needed=needed)
        for n, each in enumerate(planned)
    ]


class Run:
    """A supervisor of these processes, whose clock the test moves; `child` is the first."""

    def __init__(self, planned: tuple[Planned, ...], out: Path) -> None:
        self.said: list[str] = []
        self.supervisor = Supervisor(planned, Files(out, self.said.append), self.said.append)
        self.child, *self.others = self.supervisor.children
        self.now = 0.0

    def look(self, **more: Any) -> None:
        self.supervisor.supervise(self.now, **{"final": False, **more})

    def start(self, *, final: bool = False) -> bool:
        """Let time pass until it is started; says whether it is."""
        if self.child.process is None:
            self.now += 60.0
            self.look(final=final)
        return self.child.process is not None

    def wait(self, *children: Child) -> None:
        for each in children or (self.child,):
            assert each.process is not None
            each.process.wait(60)

    def end(self, **more: Any) -> None:
        """Wait for its end, and let the supervisor see it a moment after its start."""
        self.wait()
        self.now += 0.1
        self.look(**more)

    def end_again_and_again(self, times: int, **more: Any) -> None:
        for _ in range(times):
            assert self.start()
            self.end(**more)


Start = Callable[..., Run]
