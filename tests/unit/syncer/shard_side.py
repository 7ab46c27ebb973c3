"""One shard of the rules with everything around it done at once: disk, merges, learners."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import NOBODY, Expected, Region, RunFile, Sync
from atoll_protos.job.schedule import Length
from atoll_protos.names import PROTOCOL
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Effect,
    EndSession,
    MergeOffers,
    Send,
    StoreHeld,
    StoreSeed,
)
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Entry
from atoll_syncer.model.roster import NOTHING_FOUND, PLAIN_TEXT, Certificate
from atoll_syncer.model.state import Beginning, ShardState
from atoll_syncer.rules import runs
from atoll_syncer.rules.shard import Shard

RUN = "run-new"
KEY = "key of the registrar"
FRAGMENTS = 2
E = TypeVar("E")


def run_file(
    *, shards: int = 1, steps: int | None = 100, tokens: int | None = None, **sync: Any
) -> RunFile:
    """Two regions of two learners, H = 8, two fragments."""
    return RunFile(
        job="unit",
        regions=(Region(name="a", learners=2), Region(name="b", learners=2)),
        shards=shards,
        steps=steps,
        tokens=tokens,
        sync=Sync(**{"fragments": FRAGMENTS, "period": 8, "overlap": 2, "quorum": 1, **sync}),
    )


def layout_of(shards: int, *merge: str) -> Any:
    tensors = [
        TensorSpec(name=f"t{n}", shape=(8,), dtype="float32", merge=rule)
        for n, rule in enumerate(merge or ("rda",) * FRAGMENTS * shards)
    ]
    return build_layout(tensors, FRAGMENTS, shards)


def digest(fragment: int, number: int, epoch: int = 1) -> str:
    """As long as a real one; another for each version."""
    return f"{fragment:08d}{number:04d}{epoch:04d}".ljust(64, "0")


def version(
    fragment: int, number: int, *, epoch: int = 1, run: str = RUN, name: str = ""
) -> pb.SliceVersion:
    """The whole name of a version."""
    name = name or digest(fragment, number, epoch)
    return pb.SliceVersion(
        slice=fragment, version=pb.Version(run=run, number=number, epoch=epoch, digest=name)
    )


@dataclass
class Side:
    """See the module. `entries` are durable; `effects` wait to be looked at with `take`."""

    shard: Shard
    job: RunFile
    durable: bool = True  # entries are, at once
    skip_merges: bool = False  # the test answers them
    lingering: bool = False  # streams of an ended session stay open
    reads: bool = True  # all values at the start
    now: float = 100.0
    entries: list[Entry] = field(default_factory=list)
    queue: list[Entry] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    instances: dict[int, str] = field(default_factory=dict)
    count: int = 0

    @property
    def state(self) -> ShardState:
        return self.shard.state

    def feed(self, effects: list[Effect]) -> "Side":
        """Perform effects as the driver does."""
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Append) and not self.durable:
                self.queue.append(effect.entry)
            elif isinstance(effect, Append):
                self.append(effect.entry)
            elif isinstance(effect, MergeOffers) and self.skip_merges:
                continue
            elif isinstance(effect, MergeOffers):
                number = self.state.history.heads[effect.slice].number + 1
                name = digest(effect.slice, number, self.state.term.epoch)
                states = f"states {name}" if effect.data_states else ""
                merged = (effect.slice, name, f"object {name}", self.now, NOTHING_FOUND, states)
                self.feed(self.shard.merged(*merged))
            elif isinstance(effect, StoreSeed):
                names = tuple(digest(fragment, 0) for fragment in range(FRAGMENTS))
                self.feed(self.shard.seeded(names, tuple(f"object {name}" for name in names)))
            elif isinstance(effect, StoreHeld):
                recovery = self.state.recovery
                assert recovery is not None
                held = recovery.asked[effect.slice].held
                assert held is not None
                name = held.version.version.digest
                self.feed(self.shard.merged(effect.slice, name, f"object {name}'", self.now))
            elif self.lingering:
                continue
            elif isinstance(effect, EndSession) and effect.session in self.instances:
                del self.instances[effect.session]
                self.feed(self.shard.session_closed(effect.session, self.now))
        return self

    def append(self, entry: Entry) -> None:
        """The entry is durable."""
        self.entries.append(entry)
        self.feed(self.shard.appended(entry, self.now))

    def flush(self) -> None:
        """What waits for the disk."""
        while self.queue:
            self.append(self.queue.pop(0))

    def take(self, kind: type[E]) -> list[E]:
        """Effects of a kind so far, once."""
        taken: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def sent(self, kind: str) -> list[tuple[int, Any]]:
        """(session, message) of one kind of control message, once."""
        sends = [e for e in self.effects if isinstance(e, Send) and e.message.HasField(kind)]
        self.effects = [effect for effect in self.effects if effect not in sends]
        return [(each.session, getattr(each.message, kind)) for each in sends]

    def ends(self) -> list[pb.End]:
        return [each.end for each in self.take(EndSession)]

    # ------------------------------------------------------------ what happens

    def start(self) -> "Side":
        self.feed(self.shard.start(self.now))
        while self.reads and (fragment := self.shard.next_unread()) is not None:
            self.read(fragment)
        return self

    def read(self, fragment: int) -> None:
        """The slice's values are read from the store."""
        self.feed(self.shard.read_back(fragment, self.now))

    def wait(self, seconds: float) -> "Side":
        """Time passes, in the steps in which the driver looks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.feed(self.shard.tick_time(self.now))
        return self

    def join(
        self, slot: str, instance: str = "", *, certificate: Certificate = PLAIN_TEXT, **fields: Any
    ) -> int:
        """A session's first message; returns its number."""
        self.count += 1
        name = instance or f"{slot}-process"
        defaults = {
            "protocol": PROTOCOL,
            "run_hash": self.job.hash,
            "layout_digest": layout_of(self.job.shards).digest,
            "uid": f"{slot}-uid",
        }
        join = pb.Join(slot=slot, instance=name, **{**defaults, **fields})
        if "proof" not in fields:
            join.proof = proof(join)
        self.instances[self.count] = name
        self.feed(self.shard.session_opened(self.count, join, self.now, certificate))
        return self.count

    def hear_tick(self, tick: int, **fields: Any) -> None:
        """Another shard's Hello to the registrar, at this tick."""
        request = pb.HelloRequest(shard=1, run_hash=self.job.hash, tick=tick, **fields)
        self.feed(self.shard.registrar_request(0, request, self.now))

    def leave(self, session: int) -> None:
        """Both streams are gone."""
        self.instances.pop(session, None)
        self.feed(self.shard.session_closed(session, self.now))

    def model(self, session: int) -> None:
        message = pb.ToShard(model=layout_of(self.job.shards).to_model())
        self.feed(self.shard.message(session, message, self.now))

    def seed(self, session: int) -> None:
        for fragment in range(FRAGMENTS):
            self.send(session, pb.Transfer(seed=pb.Seed(slice=fragment), encoding=pb.F32))

    def send(self, session: int, transfer: pb.Transfer) -> None:
        """A whole transfer."""
        self.feed(self.shard.transfer_started(session, transfer, self.now))
        self.feed(self.shard.transfer_verified(session, transfer, self.now))

    def progress(self, t_m: int, steps: int | None = None, **fields: Any) -> pb.ToShard:
        """What a learner reports after a step, on the heads unless `slices` says otherwise."""
        steps = t_m if steps is None else steps
        since = pb.Counters(steps=steps, tokens=10 * steps)
        slices = [
            pb.SliceProgress(slice=n, held=h.number, since=since, digest=h.digest[:16])
            for n, h in sorted(self.state.history.heads.items())
        ]
        defaults = {"t_m": t_m, "step_seconds": 1.0, "training": True, "slices": slices}
        return pb.ToShard(report=pb.Report(**{**defaults, **fields}))

    def report(self, session: int, t_m: int, steps: int | None = None, **fields: Any) -> None:
        message = self.progress(t_m, steps, **fields)
        self.feed(self.shard.message(session, message, self.now))

    def offer(self, session: int, fragment: int, steps: int, **fields: Any) -> None:
        """An offer on the head."""
        head = self.state.history.heads[fragment]
        defaults = {
            "base": head.number,
            "base_digest": head.digest,
            "capture": steps,
            "counters": pb.Counters(steps=steps, tokens=10 * steps),
            "cursor": steps,
        }
        offer = pb.Offer(slice=fragment, **{**defaults, **fields})
        self.send(session, pb.Transfer(offer=offer, encoding=pb.BF16))

    def held(self, session: int, wanted: pb.SliceVersion, **fields: Any) -> None:
        held = pb.Held(version=wanted, **fields)
        self.send(session, pb.Transfer(held=held, encoding=pb.BF16))


def proof(join: pb.Join, key: str = KEY, run: str = RUN) -> str:
    """What the registrar's Welcome gives for the Joins at other shards."""
    return runs.made(key, run, join, join.incarnation)


def side(
    *,
    shard: int = 0,
    fresh: bool = True,
    pod: str = "pod",
    entries: tuple[Entry, ...] = (),
    history: History | None = None,
    job: RunFile | None = None,
    expected: Expected = NOBODY,
    length: Length | None = None,
) -> Side:
    """A process that has read these entries, or a log with this history."""
    job = job or run_file()
    beginning = Beginning(
        run_file=job,
        shard=shard,
        pod=pod,
        instance=f"{pod}-1",
        fresh=fresh,
        new_run=RUN,
        new_key=KEY,
        expected=expected,
        length=length,
    )
    made = Shard(beginning, history or History.of(entries), 100.0)
    return Side(shard=made, job=job, entries=list(entries))


def begun(*slots: str, steps: int | None = 100, **more: Any) -> tuple[Side, list[int]]:
    """A registrar with version 0 and these learners in training, at step 0."""
    one = side(job=run_file(steps=steps, **more)).start()
    sessions = [one.join(slot) for slot in slots]
    one.model(sessions[0])
    one.seed(sessions[0])
    for session in sessions:
        one.report(session, 0)
    one.effects.clear()
    return one, sessions


def step_all(one: Side, sessions: list[int], ticks: range, **fields: Any) -> None:
    """Everybody reports these steps."""
    for t_m in ticks:
        one.now += 1.0
        for session in sessions:
            one.report(session, t_m, **fields)


def head_of(entries: list[Entry], fragment: int) -> log.Committed:
    """The newest commit of a slice."""
    return [e for e in entries if isinstance(e, log.Committed) and e.slice == fragment][-1]
