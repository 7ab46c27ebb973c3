"""One process of a shard that does nothing but append: it takes the shard over, and ends deposed.

It says on standard output when its term has begun.
"""

import os
import sys
import time
from itertools import count

from atoll_protos.exits import ExitCode
from atoll_syncer.model.log import Taken, TermBegun
from atoll_syncer.storage.journal import DeposedError, Journal
from atoll_syncer.storage.store import StoreUnavailable
from local.stores.opened import a_store

TRY_AGAIN_SECONDS = 0.1


def main(where: str, endpoint: str, pod: str) -> None:
    """Append until another process has the shard."""
    store = a_store(where, endpoint)
    store.open()
    journal = Journal(store, time.time)
    epoch = journal.read().epoch + 1
    journal.append(TermBegun(epoch=epoch, pod=pod, instance=f"{pod}-{os.getpid()}"))
    print(epoch, flush=True)  # noqa: T201
    for number in count(1):
        record = Taken(slot=f"{pod}-0", incarnation=number, uid="u", instance=f"i-{number}")
        while True:
            try:
                journal.append(record)
                break
            except StoreUnavailable:
                time.sleep(TRY_AGAIN_SECONDS)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DeposedError:
        sys.exit(ExitCode.SUPERSEDED)
