"""A store in memory with conditional create, that can be away, refuse, or lose its answers."""

import hashlib
import math
import random
from collections.abc import Callable, Sequence

from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.files import Store, StoreMissing, StoreUnavailable, object_name

REPLACE_SECONDS_MIN = 1.0

Watcher = Callable[[str, bytes], None]


class MemoryStore:
    """See atoll_syncer.storage.files.Store. It outlives the processes that use it."""

    def __init__(
        self,
        rng: random.Random,
        *,
        keeps_entries: bool = False,
        clock: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.rng, self.clock = rng, clock
        self.keeps_entries = keeps_entries  # as an object store does
        self.heartbeat_seconds = 2.0 if keeps_entries else 1.0
        self.data: dict[str, bytes] = {}
        self.away = False
        self.lost_answers = 0.0  # share of creates that happen and yet raise
        self.conflicts = 0.0  # share of creates that meet others' requests: nothing is stored
        self.is_forbidden = False  # nothing may be written: a permission is gone
        self.replaced_at: dict[str, float] = {}
        self.on_create: list[Watcher] = []
        self.on_delete: list[Callable[[str], None]] = []

    @property
    def is_in_trouble(self) -> bool:
        return bool(self.away or self.lost_answers or self.conflicts or self.is_forbidden)

    def open(self) -> None:
        """See Store: it needs nothing."""

    def adopt(self, source: Store, name: str) -> bool:
        """See Store: no two stores share memory."""
        return False

    def create(self, name: str, data: bytes) -> bool:
        self._check_write(name)
        if self.conflicts and self.rng.random() < self.conflicts:
            raise StoreUnavailable(name, "a conflict, after which nothing is there", "try again")
        if name in self.data:
            return False
        self.data[name] = data
        for watch in self.on_create:
            watch(name, data)
        if self.rng.random() < self.lost_answers:
            raise StoreUnavailable(name, "the answer got lost", "try again")
        return True

    def replace(self, name: str, data: bytes) -> None:
        """An object store takes one write a second to a name."""
        self._check_write(name)
        before, now = self.replaced_at.get(name, -math.inf), self.clock()
        if self.keeps_entries and now < before + REPLACE_SECONDS_MIN:
            raise StoreUnavailable(name, "too many writes to this name", "try again")
        self.data[name], self.replaced_at[name] = data, now

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        data = b"".join(parts)
        name = object_name(epoch, hashlib.sha256(data).hexdigest())
        self._check_write(name)
        self.data[name] = data
        return name

    def read(self, name: str) -> bytearray:
        self._check(name)
        if name not in self.data:
            raise StoreMissing(name, "there is no such name", "nothing to do")
        return bytearray(self.data[name])

    def names(self, prefix: str, after: str = "") -> list[str]:
        self._check(prefix)
        return sorted(name for name in self.data if name.startswith(prefix) and name > after)

    def delete(self, name: str) -> None:
        self._check_write(name)
        if self.data.pop(name, None) is not None:
            for watch in self.on_delete:
                watch(name)

    def tidy(self) -> None:
        """See Store: a writer in memory leaves nothing half-written."""

    def _check_write(self, name: str) -> None:
        self._check(name)
        if self.is_forbidden:
            raise StoreUnavailable(name, "403: no permission to write", "give it back")

    def _check(self, name: str) -> None:
        if self.away:
            raise StoreUnavailable(name, "the store is away", "try again")
