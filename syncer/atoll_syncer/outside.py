"""What a shard's process is given from outside: interfaces, and `Machine`, which holds them all.

The driver and the service know nothing else of the machine that they run on: no environment, no
clock, no thread, no file. `__main__` makes a Machine of real parts, tests/sim one in virtual time
with symbols in place of tensors.
"""

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import NOBODY, Expected
from atoll_protos.identity import Identity
from atoll_protos.layout import Layout
from atoll_protos.length import Length
from atoll_protos.run import RunFile, Sync
from atoll_syncer.background import Executors
from atoll_syncer.metrics import Metrics
from atoll_syncer.model.effects import Drop, Merge, Stage, StoreHeld, StoreSeed
from atoll_syncer.model.history import History
from atoll_syncer.numbers.values import Outcome, Payload
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.export import Part
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.snapshots import SNAPSHOT_ENTRIES
from atoll_syncer.storage.store import Store, StoreCorrupt, StoreError, StoreMissing

Written = tuple[int, int, int]  # slice, version and epoch of a commit on the tape


class Port(Protocol):
    """The way out to one session; see port.SessionPort."""

    def send(self, message: pb.ToLearner) -> None:
        """Queue a control message."""

    def publish(self, fragment: int) -> None:
        """The session lacks this slice's head."""

    def publish_companion(self, objects: Sequence[str], *, changed: bool) -> None:
        """The session, an observer's, is to get the companion that these objects hold."""

    def end(self, end: pb.End) -> None:
        """Say why and close both streams."""


class Making(Protocol):
    """See numbers.values.Making."""

    def compute(self) -> None:
        """Make the version in memory."""

    def write(self, store: Store) -> Outcome:
        """Make it durable. Raises StoreFull and StoreUnavailable: call again."""


class Values(Protocol):
    """The values of one shard; see numbers.values.Values, which says more of each method."""

    @property
    def layout(self) -> Layout:
        """Of the whole model."""

    @property
    def staged_bytes(self) -> int:
        """Memory that offers, seeds and held versions take."""

    def examine(self, head: pb.Transfer, payload: bytearray) -> Any:
        """Verify a whole transfer, in any thread. Raises TransferError."""

    def stage(self, name: Stage, offer: Any) -> None:
        """Keep an offer until it is merged or dropped."""

    def drop(self, name: Drop) -> None:
        """Forget an offer."""

    def keep(self, session: int, slice_: int, arrived: Any) -> None:
        """Keep a session's seed, or the version that it held, of one slice."""

    def forget(self, session: int) -> None:
        """Drop what `keep` kept of a session."""

    def begin_merge(self, effect: Merge, run: str, epoch: int) -> Making:
        """The head's successor."""

    def begin_seed(self, effect: StoreSeed, run: str, epoch: int) -> Sequence[Making]:
        """Version 0 of every slice, by fragment."""

    def begin_held(self, effect: StoreHeld, run: str, epoch: int) -> Making:
        """A learner's version under the next number."""

    def committed(self, slice_: int) -> None:
        """The entry that names the slice's coming version is durable."""

    def publish_payload(self, slice_: int, number: int, base: int | None) -> Payload:
        """A version for a receiver that holds number `base`, or nothing known."""

    def exported(self) -> Mapping[int, Any]:
        """The newest version of every slice, as it is exported."""

    def restore(self, history: History, store: Store) -> Mapping[int, StoreCorrupt | StoreMissing]:
        """Read the heads back; returns those that are lost. Raises StoreUnavailable."""


class TapeWriter(Protocol):
    """See storage.tape.Tape."""

    dropped_lines: int

    @property
    def waiting_lines(self) -> int:
        """Lines that wait for room on the disk."""

    def write(self, run: str, record: Mapping[str, object]) -> StoreError | None:
        """Append one record; returns why it must wait."""

    def commits(self, lowest: Mapping[int, int]) -> Set[Written]:
        """The commits that it has, at least those from the `lowest` version of each slice on.

        In any thread, while nothing is written. Raises StoreUnavailable.
        """

    def sync(self) -> None:
        """Make what is written durable, in any thread. Raises StoreFull and StoreUnavailable."""

    def give_way(self, full: str) -> int:
        """Free bytes on the volume of this path, which is full; returns how many."""

    def close(self) -> None:
        """Write what waits, and close."""


class Exporter(Protocol):
    """See storage.export.Export. Both raise StoreFull and StoreUnavailable: call again."""

    def write_part(self, run: str, shard: int, bases: Mapping[int, Any]) -> Part:
        """Write one shard's final bases."""

    def assemble(
        self, run: str, layout: Layout, parts: Sequence[Part], companions: Sequence[Iterable[bytes]]
    ) -> None:
        """Write the model from all shards' parts, and the companions, each by its parts."""


Asker = Callable[[Any], Awaitable[Any]]  # a request to the registrar; None: it does not answer
Reached = Callable[[], tuple[int, int | None]]  # the tick, and the length of the job in ticks
KeepExporting = Callable[[Reached], Coroutine[Any, Any, None]]
MakeValues = Callable[[Layout, int, Sync], Values]  # of one shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a shard's process is given from outside."""

    run_file: RunFile
    shard: int
    pod: str
    instance: str  # of this process start
    new_run: str  # the random id of a run that it would begin
    fresh: bool  # no run of this job can exist yet
    store: Store
    journal: Journal
    tape: TapeWriter
    exporter: Exporter
    ask: Asker | None  # of the registrar; None: this is the registrar
    metrics: Metrics
    executors: Executors
    make_values: MakeValues
    clock: Callable[[], float]  # monotonic seconds
    server: Any  # a grpc.aio.Server whose port is bound, not started
    health_server: Any = None  # one more, in plain text, which gets the health service alone
    identity: Identity | None = None  # this shard's own, with TLS; None: plain text
    snapshot_entries: int = SNAPSHOT_ENTRIES  # of the log, from one snapshot to the next
    keep_exporting: KeepExporting | None = None  # of the registrar, where a schedule is given
    expected: Expected = NOBODY  # the job's learners, as far as they are known
    read_expected: Callable[[], Expected | None] | None = None  # now; None: they stay
    read_length: Callable[[], Length | None] | None = None  # of the job, now; None: it stays
    watch: Callable[[Shard], Shard] = lambda shard: shard  # for tests, which look at every input
    new_secret: Callable[[], str] = lambda: secrets.token_hex(
        16
    )  # of a session, or a key; 128 bits
