"""What a shard's process is given from outside: nothing else of the machine is known to it.

`__main__` makes a Machine of real parts, tests/sim one in virtual time with symbols for tensors.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll_protos.job.expected import NOBODY, Expected
from atoll_protos.job.layout import Layout
from atoll_protos.job.length import Length
from atoll_protos.job.run_file import RunFile, Sync
from atoll_protos.network.identity import Identity
from atoll_syncer.duties.background import Executors
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.snapshots import SNAPSHOT_ENTRIES
from atoll_syncer.storage.store import Store

if TYPE_CHECKING:
    from atoll_syncer.checkpoints.places import Place
    from atoll_syncer.numbers.values import TensorValues
    from atoll_syncer.storage.bucket_export import BucketExport
    from atoll_syncer.storage.export import Export
    from atoll_syncer.storage.tape import Tape

Asker = Callable[[Any], Awaitable[Any]]  # a request to the registrar; None: it does not answer
OpenPlace = Callable[[str], "Place"]  # by its URL
MakeValues = Callable[[Layout, int, Sync], "TensorValues"]  # of one shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Of one process of a shard."""

    run_file: RunFile
    shard: int
    pod: str
    instance: str  # of this process start
    new_run: str  # the random id of a run that it would begin
    fresh: bool  # no run of this job can exist yet
    store: Store
    journal: Journal
    tape: "Tape"
    exporter: "Export | BucketExport"
    ask: Asker | None  # of the registrar; None: this is the registrar
    metrics: ShardMetrics
    executors: Executors
    make_values: MakeValues
    clock: Callable[[], float]  # monotonic seconds
    open_server: Callable[[], Any]  # a grpc.aio.Server whose port is bound, not started
    health_server: Any = None  # one more, in plain text, which gets the health service alone
    standby: bool = False  # another process of the shard waits
    identity: Identity | None = None  # this shard's own, with TLS; None: plain text
    snapshot_entries: int = SNAPSHOT_ENTRIES  # of the log, from one snapshot to the next
    open_place: OpenPlace | None = None  # of checkpoints; None: there are none
    scratch: Path = Path()  # a folder for what is made here and sent elsewhere
    expected: Expected = NOBODY  # the job's learners, as far as they are known
    read_expected: Callable[[], Expected | None] | None = None  # now; None: they stay
    read_length: Callable[[], Length | None] | None = None  # of the job, now; None: it stays
    watch: Callable[[Shard], Shard] = lambda shard: shard  # for tests, which look at every input
    new_secret: Callable[[], str] = secrets.token_hex  # of a session, or a key
