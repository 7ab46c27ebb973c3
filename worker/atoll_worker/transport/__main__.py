"""`python -m atoll_worker.transport`: the transport process, started by the training process only.

It does first what must not come too late: it ignores the signals that are meant for the training
process, and tunes the allocator before grpc is imported. Then it imports its own modules, which
takes most of its start, and only after that waits for Configure: `training.process` starts it
early, while the training process still imports torch and builds the model.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time

from atoll_protos import allocator, logs
from atoll_worker.link.socket import open_transport_end, outlive_signals


def main() -> None:
    """Serve one learner or observer, then end without waiting for threads."""
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
    from atoll_worker.transport.numbers import ArrayNumbers
    from atoll_worker.transport.telemetry import Telemetry
    from atoll_worker.transport.transport import Outside, Transport

    try:
        end = open_transport_end(flags.link_fd, flags.memory_fd)
    except EOFError:
        sys.exit(0)
    needed = needed_of(end.configure.slot)
    dialler = Dialler(Folder(path=end.configure.tls_folder, needed=needed))
    outside = Outside(
        end=end,
        numbers=ArrayNumbers(end.memory, end.run_file.sync, end.layout),
        telemetry=Telemetry(end.configure.telemetry_folder, end.configure.slot),
        open_channel=dialler.open,
        ready=dialler.ready,
        trouble=dialler.trouble,
        clock=time.monotonic,
    )

    async def serve() -> None:
        await Transport(outside).run()

    asyncio.run(serve())
    sys.stderr.flush()
    os._exit(0)


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
