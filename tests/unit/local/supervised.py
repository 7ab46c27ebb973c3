"""Processes that a supervisor starts in tests, with a clock that the test moves."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll_operator.local.child import Child
from atoll_operator.local.local_status import JobNow, JobState
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import Files
from atoll_operator.local.supervisor import ROLES, Supervisor

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


class IdleSupervisor(Supervisor):
    """A supervisor that starts and stops nothing, and notes what is asked of it."""

    def __init__(self, children: Iterable[Child] = ()) -> None:
        super().__init__((), Files(Path(), print), print)
        self.children, self.done, self.new = [*children], list[Any](), list[bool]()

    def supervise(self, now: float, job: JobNow, *, new: bool = True) -> None:
        self.done.append("pass")
        self.new.append(new)
        super().supervise(now, job, new=new)

    def follow(self, planned: Iterable[Any], now: float) -> None:
        self.done.append(list(planned))

    def stop(self, roles: Sequence[str] = ROLES) -> None:
        self.done.append(("stop", roles))

    def resume(self) -> None:
        super().resume()
        self.done.append("resume")

    def _start(self, child: Child, now: float) -> None:
        pass

    def _write(self) -> None:
        pass


class Run:
    """A supervisor of these processes, whose clock the test moves; `child` is the first."""

    def __init__(self, planned: tuple[Planned, ...], out: Path) -> None:
        self.said: list[str] = []
        self.supervisor = Supervisor(planned, Files(out, self.said.append), self.said.append)
        self.child, *self.others = self.supervisor.children
        self.now = 0.0

    def look(self, state: JobState = JobState.TRAINING) -> None:
        self.supervisor.supervise(self.now, JobNow(state=state))

    def start(self, state: JobState = JobState.TRAINING) -> bool:
        """Let time pass until it is started; says whether it is."""
        if self.child.process is None:
            self.now += 60.0
            self.look(state)
        return self.child.process is not None

    def wait(self, *children: Child) -> None:
        for each in children or (self.child,):
            assert each.process is not None
            each.process.wait(60)

    def end(self, state: JobState = JobState.TRAINING) -> None:
        """Wait for its end, and let the supervisor see it a moment after its start."""
        self.wait()
        self.now += 0.1
        self.look(state)

    def end_again_and_again(self, times: int, state: JobState = JobState.TRAINING) -> None:
        for _ in range(times):
            assert self.start()
            self.end(state)


Start = Callable[..., Run]
