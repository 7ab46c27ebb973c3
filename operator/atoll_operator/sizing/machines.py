"""Memory, processors and disks of a learner and of a shard, and requests to a bucket.

Seconds of a processor for each value were measured on two busy cores, with gRPC and TLS: upper
bounds. `python -m bench.sizing` in tests/ measures them again, without these two. Bytes are counted
in the code.
"""

import math
from dataclasses import dataclass
from typing import Final

from atoll_operator.api.job.spec import Spec
from atoll_operator.api.job.syncer_fields import StorageType
from atoll_operator.sizing.traffic import MERGE_SECONDS, Traffic, fragments
from atoll_protos.transfer import codecs
from atoll_protos.transfer.codecs import Wire

DAY_SECONDS: Final = 86_400
SHARD_BYTES: Final = 0.2e9  # of memory, beside the values
PART_BYTES: Final = 64 << 20  # of an object, in one request
TRANSPORT_SECONDS: Final = 6e-9  # of a learner's processors for each value that is due
THREAD_SECONDS: Final = 2.6e-9  # of its busiest thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Bytes, byte/s and cores: of each host of a learner beside the training, and of each shard."""

    learner_memory: float
    learner_cores: float
    learner_network: float  # bit/s of the busier direction
    learner_thread: float  # seconds of its busiest thread in a tick
    shards_exact: float
    shards_least: int  # the same in whole shards
    shard_memory: float
    shard_cores: float
    shard_network: float
    shard_writes: float
    shard_room: float
    store_writes_per_day: float | None  # requests of all shards; None: no bucket


def machines(spec: Spec, parameters: int, moves: Traffic) -> Machines:
    tick_seconds = moves.tick_seconds
    shards, learners, due = spec.syncer.shards, spec.learners, parameters / spec.sync.period
    held = 12 if codecs.base_encoding(spec.sync.wire.down) == codecs.encoding_of(Wire.F32) else 8
    hosts, rate = spec.learner.hosts, max(moves.up, moves.down)
    merging = 5 * learners * due / tick_seconds * MERGE_SECONDS
    bucket = spec.syncer.storage.type is StorageType.OBJECT_STORE
    return Machines(
        learner_memory=(held * parameters + 20 * due) / hosts,
        learner_cores=TRANSPORT_SECONDS * due / tick_seconds / hosts,
        learner_network=rate / hosts,
        learner_thread=THREAD_SECONDS * due / hosts,
        shards_exact=merging,
        shards_least=math.ceil(merging),
        shard_memory=(10 * parameters + 4 * (learners + 1) * due) / shards + SHARD_BYTES,
        shard_cores=(5 * learners + 13) * due / tick_seconds * MERGE_SECONDS / shards,
        shard_network=learners * rate / shards,
        shard_writes=8 * due / tick_seconds / shards,
        shard_room=20 * parameters / shards + 0.6e9,
        store_writes_per_day=_store_writes(spec, parameters, tick_seconds) if bucket else None,
    )


def _store_writes(spec: Spec, parameters: int, tick_seconds: float) -> float:
    """Parts of objects, entries of the log, heartbeats."""
    shards = spec.syncer.shards
    commits = shards * fragments(spec) / (spec.sync.period * tick_seconds) * DAY_SECONDS
    parts = math.ceil(8 * parameters / fragments(spec) / shards / PART_BYTES)
    beats = shards * DAY_SECONDS / (1 if spec.syncer.standby else 2)
    return commits * (parts + 1) + beats
