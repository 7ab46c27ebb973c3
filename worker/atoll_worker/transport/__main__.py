"""`python -m atoll_worker.transport`: the transport process, started by the training process only.

It does first what must not come too late: it ignores the signals that are meant for the training
process, and tunes the allocator before grpc is imported. Then it imports its own modules, which
takes most of its start, and only after that waits for Configure: `training.process` starts it
early, while the training process still imports torch and builds the model. Configure says whether
it is the transport of a learner or observer, or the lane process of one of a learner's hosts.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Coroutine
from typing import Any

import structlog

from atoll_protos import allocator, logs
from atoll_protos.exits import ExitCode
from atoll_worker.link.socket import open_transport_end, outlive_signals


def main() -> None:
    """Serve one learner, one host of it, or an observer; then end without waiting for threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--memory-fd", type=int, required=True)
    flags = parser.parse_args()
    outlive_signals()
    yield_to_training()
    allocator.tune()
    logs.configure()
    from atoll_protos.channels import Folder
    from atoll_worker.settings import needed_of
    from atoll_worker.transport.client import Dialler
    from atoll_worker.transport.hand import LaneProcess
    from atoll_worker.transport.hands import Hands
    from atoll_worker.transport.numbers import ArrayNumbers
    from atoll_worker.transport.telemetry import Telemetry
    from atoll_worker.transport.transport import Outside, Transport

    try:
        end = open_transport_end(flags.link_fd, flags.memory_fd)
    except EOFError:
        sys.exit(0)
    configure = end.configure
    dialler = Dialler(Folder(path=configure.tls_folder, needed=needed_of(configure.slot)))
    numbers = ArrayNumbers(end.memory, end.run_file.sync, end.layout)

    async def serve() -> int:
        if configure.is_hand:
            return await LaneProcess(
                end=end, numbers=numbers, open_channel=dialler.open, ready=dialler.ready
            ).run()
        hands = Hands(
            share=configure.share,
            secret=configure.secret,
            silence_seconds_max=configure.silence_seconds,
        )
        outside = Outside(
            end=end,
            numbers=numbers,
            telemetry=Telemetry(configure.telemetry_folder, configure.slot),
            open_channel=dialler.open,
            ready=dialler.ready,
            trouble=dialler.trouble,
            outlived=dialler.outlived,
            clock=time.monotonic,
            hands=hands if configure.hands else None,
        )
        await Transport(outside).run()
        return 0

    code = asyncio.run(until_a_bug(serve()))
    sys.stderr.flush()
    os._exit(code)


async def until_a_bug(work: Coroutine[Any, Any, int]) -> int:
    """Its exit code. What it raises is a bug: another process begins without its state."""
    try:
        return await work
    except Exception as error:
        structlog.get_logger().error("a bug ends this process", exc_info=error)
        return int(ExitCode.BUG)


def yield_to_training() -> None:
    """A message never takes the core from the training thread that has just sent it.

    The scheduler lets a process that is woken by a socket preempt the process that woke it, except
    in this class.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; it only helps
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    main()
