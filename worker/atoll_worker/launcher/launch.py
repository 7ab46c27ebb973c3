"""`atoll-worker launch`: the command line, the starts of torchrun, and what the launcher ends with.

Options and the variables PET_* are torchrun's, read by its own parser. torchrun starts the ranks by
a rendezvous of ours (meeting.py). It starts none again by itself, since it does so whatever has
ended a rank: `run` does, unless another start cannot help.
"""

import contextlib
import itertools
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import uuid
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Final, NoReturn

import structlog
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from atoll_protos.environment import MEETING_PORT, Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import RANK_ENDED, ExitCode, is_failure, is_permanent
from atoll_worker.launcher.meeting import (
    BACKEND,
    LOOPBACK,
    PARAMETER,
    Lines,
    LocalRanks,
    Meeting,
    OneHost,
    RoundOverError,
    ending_with_parent,
)
from atoll_worker.launcher.probes import begun

log = structlog.get_logger()

USAGE: Final = "atoll-worker launch [OPTIONS of torchrun] -- SCRIPT.py|COMMAND [ARGUMENTS]"
THREADS: Final = "OMP_NUM_THREADS"
INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # else that of the host's name
TERMINATED: Final = -int(Signals.SIGTERM)
CONSEQUENCES: Final = frozenset({int(ExitCode.TRY_AGAIN), TERMINATED, 128 - TERMINATED})


def main(arguments: Sequence[str]) -> NoReturn:
    """Start what follows the two dashes, and end as `run` returns. Raises SpecError."""
    begun.set()
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    config, host = configuration(words[:at])
    end_as(run(config, command(words[at + 1 :]), host))


def command(words: Sequence[str]) -> list[str]:
    """Return what is executed: this Python with a script, else the command. Raises SpecError."""
    if not words:
        raise SpecError("launch", "names no command", f"use {USAGE}")
    if not words[0].endswith(".py"):
        if shutil.which(words[0]) is None:
            problem = f"there is no command {words[0]} in {Path.cwd()}, nor in PATH"
            raise SpecError("launch", problem, "fix its name, or install it")
        return list(words)
    if not Path(words[0]).is_file():
        problem = f"there is no file {words[0]} in {Path.cwd()}"
        raise SpecError("launch", problem, "fix its path, or the working folder")
    return [sys.executable, "-u", *words]


def configuration(options: Sequence[str]) -> tuple[LaunchConfig, int]:
    """Return what torchrun makes of options and PET_*, and this host's number, or SpecError."""
    parser = torchrun.get_args_parser()
    parser.usage = USAGE
    parser.set_defaults(node_rank=os.environ.get(Env.HOST) or os.environ.get("PET_NODE_RANK"))
    try:
        args = parser.parse_args([*options, "command"])
    except SystemExit as stopped:  # it has printed why
        if not stopped.code:
            raise
        problem = "these options are not torchrun's"
        raise SpecError(f"launch {' '.join(options)}", problem, f"use {USAGE}") from None
    except ValueError as error:
        raise SpecError("launch", str(error), "fix the option, or the variable PET_*") from error
    if args.module or args.no_python or args.run_path:
        remedy = "leave it out: what follows the two dashes is run as it stands"
        raise SpecError("launch", "--module, --no-python and --run-path are torchrun's", remedy)
    try:
        host = host_of(args)
        args.log_dir = os.devnull  # else torchrun makes a folder
        config, _, _ = torchrun.config_from_args(args)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise SpecError("launch", str(error), "fix the option, or the variable PET_*") from error
    if config.nproc_per_node < 1:
        problem = f"is {config.nproc_per_node}"
        raise SpecError("PET_NPROC_PER_NODE", problem, "give the number of processes, 1 or more")
    return config, host


def host_of(args: Namespace) -> int:
    """Return this host's number, and what depends on being the only one. Raises SpecError."""
    _, hosts = torchrun.parse_min_max_nnodes(args.nnodes)
    number, args.node_rank, args.rdzv_backend = args.node_rank, 0, BACKEND
    if args.nproc_per_node != "1":
        os.environ.setdefault(THREADS, "1")
    if hosts == 1:
        args.rdzv_id, args.rdzv_endpoint = str(uuid.uuid4()), LOOPBACK
        for name in INTERFACES:
            os.environ.setdefault(name, "lo")
        return 0
    if not args.rdzv_endpoint:
        raise SpecError("PET_RDZV_ENDPOINT", "is not set", "set it to HOST:PORT of host 0")
    text = "" if number is None else str(number)
    if not text.isdecimal() or int(text) >= hosts:
        problem = f"is {text or 'not set'}, and PET_NNODES says that there are {hosts} hosts"
        raise SpecError(Env.HOST, problem, f"give the number of this host, from 0 to {hosts - 1}")
    return int(text)


def run(config: LaunchConfig, words: Sequence[str], host: int) -> int:
    """Run the command for each rank of this host; the exit code, or -N for the signal N."""
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False  # what it has to say of ranks that end would hide their last words
    logger.addHandler(logging.NullHandler())
    ranks, lines = LocalRanks(), Lines()
    for name in config.signals_to_handle.split(","):
        signal.signal(Signals[name.strip()], ranks.end)
    meeting = OneHost(config.run_id, ranks)
    if config.max_nodes > 1:
        address = parse_rendezvous_endpoint(config.rdzv_endpoint, MEETING_PORT)
        meeting = Meeting(config, host, address, ranks)
    try:
        return run_until_over(config, words, meeting, lines)
    finally:
        lines.finish()
        meeting.leave()


def run_until_over(
    config: LaunchConfig, words: Sequence[str], meeting: OneHost, lines: Lines
) -> int:
    """Start the ranks again and again, until another start cannot help or `run` is to end."""
    first, *rest = [*ending_with_parent(), *words]
    rest = [word.replace("$", "$$") for word in rest]  # torchrun fills in templates
    once = replace(
        config,
        rdzv_configs={PARAMETER: meeting},
        max_restarts=0,
        logs_specs=lines,
        signals_to_handle="",
    )
    instance, restarts = os.environ.get(Env.INSTANCE), 0
    for start in itertools.count():
        if meeting.ranks.signal:
            return -int(meeting.ranks.signal)
        if start and instance:  # no two starts share a name
            os.environ[Env.INSTANCE] = f"{instance}-again-{start}"
        try:
            elastic_launch(once, first)(*rest)
            if not meeting.ranks.signal:
                meeting.close()
            return int(ExitCode.FINAL)
        except RoundOverError:
            continue
        except SignalException as error:
            return -int(error.sigval)
        except (RendezvousError, DistError) as error:
            problem = str(error).partition("\n")[0]  # torch adds a stack of C++
            log.warning(f"the hosts of this learner do not meet: {problem}")
            return int(ExitCode.TRY_AGAIN)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            finished = config.nproc_per_node - len(codes)
        if meeting.ranks.signal:  # who leaves first, with 0, may break others' collectives
            return int(ExitCode.FINAL) if finished else -int(meeting.ranks.signal)
        code = explain(codes, finished, lines)
        if restarts == config.max_restarts or ends_launcher(code, meeting):
            return code
        restarts += 1
    raise AssertionError


def first_cause(codes: Mapping[int, int]) -> int:
    """Return the rank that has ended the others, by exit codes in the order of their arrival.

    One rank fails, and the others with it: they lose it in a collective (75, or an error of torch),
    or are stopped. A rank that failed may take longer to end than one that has noticed it, so the
    code says more than the order. A negative code is a signal.
    """

    def order(rank: int) -> tuple[bool, ...]:
        code = codes[rank]
        first = [not is_permanent(code), code != ExitCode.SUPERSEDED, code != ExitCode.BAD_DEVICE]
        return *first, code in CONSEQUENCES

    return min(codes, key=order)


def explain(codes: Mapping[int, int], finished: int, lines: Lines) -> int:
    """Log which rank failed first, and its last words; return its exit code."""
    rank = first_cause(codes)
    code = codes[rank]
    lines.finish()
    number, name = os.environ.get(Env.HOST), socket.gethostname()
    where = f"host {number} ({name})" if number else name
    more = f"; {finished} of this host ended with exit code 0" if finished else ""
    log.warning(
        f"rank {rank} on {where} has ended ({in_words(code)}), and all ranks with it{more}",
        **{"rank" if code in CONSEQUENCES else RANK_ENDED: rank},
    )
    if code > 0 or is_failure(code):  # one that was killed has nothing to say
        lines.repeat(rank, f"what rank {rank} said last:")
    return code


def ends_launcher(code: int, meeting: OneHost) -> bool:
    """Whether the launcher ends with this code, although its ranks may start again in place.

    It does where another start cannot help, or only on another machine (a broken GPU). One of
    several hosts also does so where the learner failed because of this host, or has to leave its
    place to another: whoever starts it again counts its failures.
    """
    at_once = is_permanent(code) or code == ExitCode.BAD_DEVICE
    of_rank = is_failure(code) or code == ExitCode.SUPERSEDED  # and not of whoever has killed it
    began_here = code not in CONSEQUENCES and meeting.began_here(wait=of_rank and not at_once)
    return at_once or (began_here and of_rank)


def in_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return Signals(-code).name if -code in {*Signals} else f"signal {-code}"


def end_as(code: int) -> NoReturn:
    """End with a code; for a signal (negative) by it, without a core.

    Python is not shut down: a thread that comes back from a store of torch meanwhile would end the
    process by SIGABRT. The first process of a container is not ended by its own signals; it exits
    with 128 + N.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)
