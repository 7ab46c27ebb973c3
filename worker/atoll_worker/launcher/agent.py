"""The agent of torchrun, which starts and watches the processes of this host, as a job needs it."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import structlog
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    WorkerGroup,
    WorkerSpec,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from atoll_protos.environment import Env
from atoll_protos.exits import RANK_ENDED, ExitCode
from atoll_worker.launcher import first_cause
from atoll_worker.launcher.lines import Lines
from atoll_worker.launcher.rendezvous import Meeting, leave, open_meeting

STOP_SECONDS: Final = 30.0  # for processes to leave the job after a signal; as torchrun's
AGAIN_STOP_SECONDS: Final = 5.0  # the same of a learner that has lost one: it starts again anyhow
KILLED_SECONDS_MAX: Final = 10.0  # until a process that was killed has left its devices
LAST_HOST_SECONDS: Final = 30.0  # for the others to finish as well
LOOK_SECONDS: Final = 0.5  # c10d counts the hosts that are there, and tells nobody of a change
FIRST_TO_FAIL: Final = "atoll/first-to-fail"  # in the store of a round: the number of a host
AGAIN: Final = "atoll/again"  # the same: how many hosts have left it to meet again

log = structlog.get_logger()


class Agent(LocalElasticAgent):
    """Watches the processes of one host; `codes` is how they have ended, by global rank."""

    def __init__(self, spec: WorkerSpec, logs: Lines) -> None:
        super().__init__(spec, logs, start_method="spawn", exit_barrier_timeout=LAST_HOST_SECONDS)
        self.logs = logs
        self.codes: dict[int, int] = {}
        self.starts = 0
        self.stop_seconds = STOP_SECONDS
        self.instance = os.environ.get(Env.INSTANCE, "")

    def _start_workers(self, worker_group: WorkerGroup) -> Any:
        self.codes = {}
        if self.starts and self.instance:  # no two starts share a name
            os.environ[Env.INSTANCE] = f"{self.instance}-again-{self.starts}"
        self.starts += 1
        started = super()._start_workers(worker_group)
        for handler in self._handlers().values():
            for kept in (handler._stdout, handler._stderr):
                if kept is not None:  # the process has its own; ours would keep the pipe open
                    kept.close()
        self.logs.start()
        return started

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            result: RunResult = super()._invoke_run(role)
        except (RendezvousError, DistError):  # host 0 is gone, and the ranks wait for it in vain
            self.stop_seconds = AGAIN_STOP_SECONDS
            raise
        return result

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ended = [rank for rank, code in self.exit_codes().items() if code == ExitCode.FINAL]
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            seen = {rank: int(failure.exitcode) for rank, failure in result.failures.items()}
            self.codes = seen | {rank: 0 for rank in self.exit_codes() if rank not in seen}
            self._say_who(ended)
            code = first_cause.code_of(self.codes)
            if first_cause.ends_launcher(code, self._began_here(code)):
                self._remaining_restarts = 0
            if code == ExitCode.BAD_DEVICE:  # the others may wait for a device, too
                self.stop_seconds = AGAIN_STOP_SECONDS
        return result

    def _began_here(self, code: int) -> bool:
        """Whether a learner of several hosts fails with this code because of a process of this one.

        A process may fail with an error of torch, and not 75, since one of another host has ended.
        Who fails first says so in the store; a host that is gone says nothing, which is waited for.
        """
        handler, group = self._worker_group.spec.rdzv_handler, self._worker_group
        if not isinstance(handler, Meeting) or code in first_cause.CONSEQUENCES:
            return False
        here = str(group.group_rank)
        try:
            if self._of_round.compare_set(FIRST_TO_FAIL, "", here).decode() != here:
                return False
            if first_cause.ends_at_once(code) or not first_cause.is_own(code):
                return True
            deadline = time.monotonic() + handler.seconds_to_notice + LOOK_SECONDS
            while time.monotonic() < deadline:
                if handler.present + self._of_round.add(AGAIN, 0) < group.group_world_size:
                    return False
                time.sleep(LOOK_SECONDS)
        except (RendezvousError, DistError):  # host 0 is gone
            return False
        return True

    @property
    def _of_round(self) -> Any:
        return self._worker_group.store

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self.stop_seconds = AGAIN_STOP_SECONDS
        with contextlib.suppress(DistError):
            self._of_round.add(AGAIN, 1)
        try:
            super()._restart_workers(worker_group)
        finally:
            self.stop_seconds = STOP_SECONDS

    def _say_who(self, ended: Sequence[int]) -> None:
        """Which rank failed first, for which the `ended` may be why, and its last words."""
        rank = first_cause.first_cause(self.codes)
        if rank is None:
            return
        code = self.codes[rank]
        self.logs.finish()
        before = first_cause.ended_before(ended)
        how = first_cause.words(code)
        number, name = os.environ.get(Env.HOST), socket.gethostname()
        host = f"host {number} ({name})" if number else name
        log.warning(
            f"rank {rank} on {host} has ended ({how}), and all ranks with it{before}",
            **{"rank" if code in first_cause.CONSEQUENCES else RANK_ENDED: rank},
        )
        if code > 0 or first_cause.is_own(code):  # one that was killed has nothing to say
            self.logs.say_again(rank, f"what rank {rank} said last:")

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: int | None = None
    ) -> None:
        """Stop the processes alone, unlike torch: they fail if data loaders' workers end first."""
        del timeout  # torch's would be waited for after ours
        processes = [handler.proc for handler in self._handlers().values()]
        for process in processes:
            process.send_signal(death_sig)
        deadline = time.monotonic() + self.stop_seconds
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:  # torch would not wait for it, and the next ones need its memory
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_SECONDS_MAX)
        super()._shutdown(death_sig, timeout=0)

    def exit_codes(self) -> dict[int, int]:
        """How the processes of the last start that have ended did so, by global rank."""
        workers = self._worker_group.workers
        return {
            workers[local].global_rank: int(handler.proc.returncode)
            for local, handler in self._handlers().items()
            if handler.proc.returncode is not None
        }

    def _handlers(self) -> dict[int, Any]:
        return getattr(self._pcontext, "subprocess_handlers", {})


def run(config: LaunchConfig, command: Sequence[str]) -> int:
    """Run the command for each process of this host; the exit code, or -N for the signal N."""
    _quieten()
    shared = {each.name for each in fields(WorkerSpec)} & {each.name for each in fields(config)}
    first, *rest = [*_ends_with_parent(), *command]
    signal.signal(signal.SIGTERM, _ended_by)  # torch does so when it starts processes
    agent = handler = None
    try:
        handler = open_meeting(config, os.environ)
        spec = WorkerSpec(
            **{name: getattr(config, name) for name in shared},
            local_world_size=config.nproc_per_node,
            entrypoint=first,
            args=tuple(word.replace("$", "$$") for word in rest),  # torch would fill in templates
            rdzv_handler=handler,
        )
        agent = Agent(spec, Lines())
        result = agent.run()
        if result is not None and not result.is_failed():
            handler.shutdown()  # no host that comes later is waited for
        else:
            leave(handler)
    except SignalException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        leave(handler)
        return first_cause.code_after_signal(int(error.sigval), agent.exit_codes() if agent else {})
    except (RendezvousError, DistError) as error:
        log.warning(f"the hosts of this learner do not meet: {error}")
        return int(ExitCode.TRY_AGAIN)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if agent is not None:
            agent.logs.finish()
    if result is None:  # the other hosts have ended, and nobody meets any more
        return int(ExitCode.TRY_AGAIN)
    return first_cause.code_of(agent.codes) if result.is_failed() else int(ExitCode.FINAL)


def _ended_by(number: int, _: object) -> None:
    raise SignalException("told to end", sigval=signal.Signals(number))


def _ends_with_parent() -> list[str]:
    """The start of a command whose process is killed when the launcher dies; else empty."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _quieten() -> None:
    """What torchrun says of processes that end comes after their own words, and hides them."""
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
