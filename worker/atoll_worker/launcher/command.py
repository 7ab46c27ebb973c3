"""The command line of `atoll-worker launch`, and the environment that it reads.

Options and the variables PET_* are torchrun's, read by its own parser. Hosts meet by c10d alone:
torchrun's default, `static`, cannot bring processes together a second time.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set: where the store in which hosts meet is also that of
torch.distributed, a host that joins later waits for an address that never comes.
"""

import os
import shutil
import sys
import uuid
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from torch.distributed import run as torchrun
from torch.distributed.launcher.api import LaunchConfig

from atoll_protos.errors import SpecError
from atoll_protos.torchrun import Torchrun
from atoll_worker.launcher import agent
from atoll_worker.launcher.exiting import end_as
from atoll_worker.launcher.probes import begun

USAGE: Final = "atoll-worker launch [OPTIONS of torchrun] -- SCRIPT.py|COMMAND [ARGUMENTS]"
THREADS: Final = "OMP_NUM_THREADS"
LOOPBACK: Final = "localhost"


def main(arguments: Sequence[str]) -> NoReturn:
    """Start what follows the two dashes, and end as `agent.run` says. Raises SpecError."""
    begun.set()
    options, given = split(arguments)
    command = words_of(given)
    end_as(agent.run(configuration(options), command))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    given = list(arguments)
    at = given.index("--") if "--" in given else len(given)
    return given[:at], given[at + 1 :]


def words_of(command: Sequence[str]) -> list[str]:
    """What is executed: this Python with a script, any other command as it is. Raises SpecError."""
    if not command:
        raise SpecError("launch", "names no command", f"use {USAGE}")
    if not command[0].endswith(".py"):
        if shutil.which(command[0]) is None:
            problem = f"there is no command {command[0]} in {Path.cwd()}, nor in PATH"
            raise SpecError("launch", problem, "fix its name, or install it")
        return list(command)
    if not Path(command[0]).is_file():
        problem = f"there is no file {command[0]} in {Path.cwd()}"
        raise SpecError("launch", problem, "fix its path, or the working folder")
    return [sys.executable, "-u", *command]


def configuration(options: Sequence[str]) -> LaunchConfig:
    """What torchrun makes of options and PET_*, with what a learner needs. Raises SpecError."""
    try:
        given = torchrun.get_args_parser().parse_args([*options, "command"])
    except SystemExit as stopped:  # it has printed why
        if not stopped.code:
            raise
        problem = "these options are not torchrun's"
        raise SpecError(f"launch {' '.join(options)}", problem, f"use {USAGE}") from None
    except ValueError as error:
        raise SpecError("launch", str(error), "fix the option, or the variable PET_*") from error
    if given.module or given.no_python or given.run_path:
        remedy = "leave it out: what follows the two dashes is run as it stands"
        raise SpecError("launch", "--module, --no-python and --run-path are torchrun's", remedy)
    os.environ.setdefault(Torchrun.OWN_STORE, "1")
    try:
        _meet(given)
        given.log_dir = given.log_dir or os.devnull  # torch would leave an empty folder behind
        config, _, _ = torchrun.config_from_args(given)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise SpecError("launch", str(error), "fix the option, or the variable PET_*") from error
    if config.nproc_per_node < 1:
        problem = f"is {config.nproc_per_node}"
        raise SpecError("PET_NPROC_PER_NODE", problem, "give the number of processes, 1 or more")
    return config


def _meet(given: Namespace) -> None:
    _, hosts_max = torchrun.parse_min_max_nnodes(given.nnodes)
    if given.nproc_per_node != "1":
        os.environ.setdefault(THREADS, "1")
    if hosts_max == 1 and (given.standalone or given.rdzv_backend == "static"):
        given.rdzv_backend, given.rdzv_endpoint = "c10d", f"{LOOPBACK}:0"
        given.rdzv_id, given.local_addr = str(uuid.uuid4()), given.local_addr or LOOPBACK
    if given.rdzv_backend == "static":
        problem = "is static, by which processes that have to start again do not find each other"
        remedy = "set it to c10d, and PET_RDZV_ENDPOINT to HOST:PORT of the first host"
        raise SpecError("PET_RDZV_BACKEND", problem, remedy)
    if given.rdzv_backend == "c10d" and not given.rdzv_endpoint:
        raise SpecError("PET_RDZV_ENDPOINT", "is not set", "set it to HOST:PORT of the first host")
