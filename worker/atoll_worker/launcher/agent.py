"""The agent of torchrun, which starts and watches the processes of this host, as a job needs it."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import structlog
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous
from torch.distributed.launcher.api import LaunchConfig

from atoll_protos.environment import Env
from atoll_protos.exits import ExitCode, is_permanent
from atoll_worker.launcher import outcome
from atoll_worker.launcher.lines import OfRanks

STOP_SECONDS: Final = 30.0  # for processes to leave the job after a signal; as torchrun's

log = structlog.get_logger()


class Agent(LocalElasticAgent):
    """Watches the processes of one host; `codes` is how they have ended, by global rank."""

    def __init__(self, spec: WorkerSpec, logs: OfRanks) -> None:
        super().__init__(spec, logs, start_method="spawn")
        self.logs = logs
        self.codes: dict[int, int] = {}
        self.starts = 0
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
        self.logs.lines.start()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            seen = {rank: int(failure.exitcode) for rank, failure in result.failures.items()}
            self.codes = seen | {rank: 0 for rank in self.exit_codes() if rank not in seen}
            self._say_who()
            if is_permanent(outcome.code_of(self.codes)):
                self._remaining_restarts = 0  # another start cannot help
        return result

    def _say_who(self) -> None:
        """Which rank failed first, and its last lines where others have written after it."""
        rank = outcome.first_cause(self.codes)
        if rank is None:
            return
        code = self.codes[rank]
        self.logs.lines.finish()
        log.warning(
            f"rank {rank} has ended ({outcome.words(code)}), and all ranks with it", rank=rank
        )
        if code > 0:
            self.logs.lines.say_again(rank, f"what rank {rank} said last:")

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, *more: Any, **named: Any
    ) -> None:
        """Stop the processes. torch would send the signal to what they have started, too.

        Workers of a data loader that end before their owner make it fail instead of leaving.
        """
        processes = [handler.proc for handler in self._handlers().values()]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(death_sig)
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        super()._shutdown(death_sig, *more, **named)

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
    """Start the command once for each process of this host, and wait for all.

    Returns what the launcher should exit with; a negative number is a signal.
    """
    _quieten()
    shared = {each.name for each in fields(WorkerSpec)} & {each.name for each in fields(config)}
    first, *rest = [*_ends_with_parent(), *command]
    try:
        handler = rendezvous.get_rendezvous_handler(
            RendezvousParameters(
                backend=config.rdzv_backend,
                endpoint=config.rdzv_endpoint,
                run_id=config.run_id,
                min_nodes=config.min_nodes,
                max_nodes=config.max_nodes,
                local_addr=config.local_addr,
                **config.rdzv_configs,
            )
        )
    except RendezvousError as error:
        return _not_met(error)
    spec = WorkerSpec(
        **{name: getattr(config, name) for name in shared},
        local_world_size=config.nproc_per_node,
        entrypoint=first,
        args=tuple(word.replace("$", "$$") for word in rest),  # torch would fill in templates
        rdzv_handler=handler,
    )
    agent = Agent(spec, OfRanks())
    meet_again = False
    try:
        result = agent.run()
    except SignalException as error:
        meet_again = True  # the hosts that stay may go on with one that comes later
        return outcome.code_after_signal(int(error.sigval), agent.exit_codes())
    except RendezvousError as error:
        return _not_met(error)
    finally:
        agent.logs.lines.finish()
        if not meet_again:
            handler.shutdown()
    if result is None:  # the other hosts have ended, and nobody meets any more
        return int(ExitCode.TRY_AGAIN)
    return outcome.code_of(agent.codes) if result.is_failed() else int(ExitCode.FINAL)


def _not_met(error: RendezvousError) -> int:
    log.warning(f"the hosts of this learner have not met: {error}")
    return int(ExitCode.TRY_AGAIN)


def _ends_with_parent() -> list[str]:
    """The start of a command whose process is killed when the launcher dies; else empty."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _quieten() -> None:
    """What torchrun says of processes that end comes after their own words, and hides them."""
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
