"""What one session is to be sent, and its Bulk streams.

What a shard's process is given from outside: nothing else of the machine is known to it.

`__main__` makes a Machine of real parts, tests/sim one in virtual time with symbols for tensors.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import NOBODY, Expected, RunFile, Sync
from atoll_protos.job.schedule import Length
from atoll_protos.network.credentials import Identity
from atoll_protos.transfer.gathering import Gathering
from atoll_syncer.duties.background import Executors
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.files import Store
from atoll_syncer.storage.journal import SNAPSHOT_ENTRIES, Journal

if TYPE_CHECKING:
    from atoll_syncer.checkpoints.copies import Place
    from atoll_syncer.numbers.values import TensorValues
    from atoll_syncer.storage.export import BucketExport, Export
    from atoll_syncer.storage.tape import Tape


class SessionPort:
    """Ordered control messages, and the slices that the session lacks."""

    def __init__(self, secret: str = "", peer: Identity | None = None, lanes: int = 1) -> None:
        self.secret = secret  # of its Welcome
        self.peer = peer  # who has opened it; None in plain text
        self.control: deque[pb.ToLearner] = deque()
        self.control_ready = asyncio.Event()
        self.lanes = lanes  # Bulk streams that it has (rule 34)
        self.streams: dict[int, Any] = {}  # those that are open, by lane
        self.incoming: Gathering | None = None  # made with the first stream
        self.lacking: dict[int, None] = {}  # slices in order of request, each once
        self.lacks = asyncio.Event()
        self.ending = asyncio.Event()
        self.shut_out = False
        self.bulk_over = asyncio.Event()  # a stream ended by itself, so the session must end too
        self.closed = asyncio.Event()  # the session is over, and all streams with it

    def send(self, message: pb.ToLearner) -> None:
        """Queue a control message; a newer tick replaces an unsent older one."""
        if message.HasField("welcome"):
            message.welcome.secret, message.welcome.lanes = self.secret, self.lanes
        if message.HasField("tick") and self.control and self.control[-1].HasField("tick"):
            self.control.pop()
        self.control.append(message)
        self.control_ready.set()

    def publish(self, fragment: int) -> None:
        self.lacking[fragment] = None
        self.lacks.set()

    async def next_lacking(self) -> int:
        """Take the slice that was asked for first; wait for one."""
        while not self.lacking:
            self.lacks.clear()
            await self.lacks.wait()
        fragment = next(iter(self.lacking))
        del self.lacking[fragment]
        return fragment

    def end(self, end: pb.End) -> None:
        if not self.ended:
            self.send(pb.ToLearner(end=end))
            self.shut_out = end.code == pb.NOT_ALLOWED
            self.ending.set()

    @property
    def machine(self) -> str:
        """Of its learner's certificate."""
        return self.peer.machine if self.peer else ""

    @property
    def ended(self) -> bool:
        return self.ending.is_set()


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
    identity: Identity | None = None  # this shard's own, with TLS; None: plain text
    snapshot_entries: int = SNAPSHOT_ENTRIES  # of the log, from one snapshot to the next
    open_place: OpenPlace | None = None  # of checkpoints; None: there are none
    record: tuple[Path, int] | None = None  # the folder, and how many merges of each slice
    scratch: Path = Path()  # a folder for what is made here and sent elsewhere
    expected: Expected = NOBODY  # the job's learners, as far as they are known
    read_expected: Callable[[], Expected | None] | None = None  # now; None: they stay
    read_length: Callable[[], Length | None] | None = None  # of the job, now; None: it stays
    watch: Callable[[Shard], Shard] = lambda shard: shard  # for tests, which look at every input
    new_secret: Callable[[], str] = secrets.token_hex  # of a session, or a key
