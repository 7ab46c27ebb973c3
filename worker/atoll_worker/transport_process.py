"""`python -m atoll_worker.transport_process`, started by the training process only.

While the training process copies its model, it ignores the signals meant for that, tunes the
allocator, and imports what it needs. Then it waits for Configure.
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--memory-fd", type=int, required=True)
    flags = parser.parse_args()
    outlive_signals()
    yield_to_training()
    allocator.tune()
    logs.configure()
    from atoll_protos.network.channels import Folder
    from atoll_worker.job import needed_of
    from atoll_worker.transport.carrier import Numbers
    from atoll_worker.transport.control_stream import Dialler
    from atoll_worker.transport.transport import Telemetry, Transport

    try:
        end = open_transport_end(flags.link_fd, flags.memory_fd)
    except EOFError:
        sys.exit(0)
    configure = end.configure
    folder = Folder(path=configure.tls_folder, needed=needed_of(configure.slot))
    dialler = Dialler(folder)
    numbers = Numbers(end.memory, configure.run_file.sync, configure.layout)

    async def serve() -> int:
        transport = Transport(
            end=end,
            numbers=numbers,
            telemetry=Telemetry(configure.telemetry_folder, configure.slot),
            open_channel=dialler.open,
            ready=dialler.ready,
            trouble=dialler.trouble,
            outlived=dialler.outlived,
            now=time.monotonic,
        )
        await transport.run()
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
    """Without it the scheduler lets a process that a socket wakes preempt the one that woke it."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; it only helps
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # `chrt --idle` is lower, and stays
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    main()
