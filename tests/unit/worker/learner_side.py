"""A learner's machine between shards and a training process that a test speaks for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.layout import TensorSpec
from atoll_protos.run import Region, RunFile, Sync
from atoll_worker.link.messages import Adopt, Boundary, Capture
from atoll_worker.rules.effects import Command, Effect, SendMessage
from atoll_worker.rules.exchange import Exchange

RUN = "run-1"
Kind = TypeVar("Kind")


def digest(shard: int, fragment: int, number: int, epoch: int) -> str:
    return f"{shard}/{fragment} v{number} e{epoch}"


@dataclass
class LearnerSide:
    """Feeds inputs, keeps effects until they are taken, carries out commands at step boundaries."""

    run_file: RunFile
    exchange: Exchange
    now: float = 100.0
    seen: list[Effect] = field(default_factory=list)
    inbox: list[Any] = field(default_factory=list)
    own_steps: int = 0
    cursor: int = 0
    data_state: Callable[[int], bytes | None] = lambda cursor: None  # what the script keeps

    def feed(self, effects: list[Effect]) -> None:
        self.seen += effects
        self.inbox += [effect.command for effect in effects if isinstance(effect, Command)]

    def take(self, kind: type[Kind]) -> list[Kind]:
        """The effects or commands of a kind since they were last taken."""
        found: list[Kind] = [
            each
            for effect in self.seen
            if isinstance(each := effect.command if isinstance(effect, Command) else effect, kind)
        ]
        self.seen = [
            effect
            for effect in self.seen
            if not isinstance(effect.command if isinstance(effect, Command) else effect, kind)
        ]
        return found

    def messages(self, kind: str) -> list[tuple[int, Any]]:
        """(shard, message) of a kind since they were last taken."""
        found, rest = [], []
        for effect in self.seen:
            if isinstance(effect, SendMessage) and effect.message.WhichOneof("kind") == kind:
                found.append((effect.shard, getattr(effect.message, kind)))
            else:
                rest.append(effect)
        self.seen = rest
        return found

    # ------------------------------------------------------------ shards

    def welcome(self, shard: int, **fields: Any) -> None:
        self.feed(self.exchange.connected(shard, self.now))
        known: dict[str, Any] = {"run": RUN, "incarnation": 3, "epoch": 1, "session": 1}
        self.receive(shard, welcome=pb.Welcome(**{**known, **fields}))

    def receive(self, shard: int, **message: Any) -> None:
        self.feed(self.exchange.message(shard, pb.ToLearner(**message), self.now))

    def end(self, shard: int, code: pb.Code, *, retry: bool = False) -> None:
        end = pb.End(code=code, reason="because", remedy="do this", retry=retry)
        self.receive(shard, end=end)

    def lose(self, shard: int) -> None:
        self.feed(self.exchange.disconnected(shard, "lost", self.now))

    def publish(self, shard: int, fragment: int, number: int, **fields: Any) -> pb.Publish:
        epoch = fields.pop("epoch", 1)
        version = pb.Version(
            run=fields.pop("run", RUN),
            number=number,
            epoch=epoch,
            digest=digest(shard, fragment, number, epoch),
        )
        return pb.Publish(version=pb.SliceVersion(slice=fragment, version=version), **fields)

    def value(self, shard: int, fragment: int, number: int, **fields: Any) -> None:
        """A value arrives whole."""
        publish = self.publish(shard, fragment, number, **fields)
        assert self.exchange.publish_started(shard, publish, self.now)
        self.feed(self.exchange.published(shard, publish, self.now))

    def call(self, shard: int, fragment: int, base: int) -> None:
        self.receive(shard, call=pb.Call(slice=fragment, base=base, due=8))

    def ticks(self, tick: int) -> None:
        for shard in range(self.run_file.shards):
            self.receive(shard, tick=pb.Tick(tick=tick))

    def heads(self, shard: int, number: int, epoch: int = 1) -> list[pb.SliceVersion]:
        fragments = range(self.run_file.sync.fragment_count)
        return [self.publish(shard, p, number, epoch=epoch).version for p in fragments]

    # ------------------------------------------------------------ training process

    def step(self, *, tokens: int = 10, loss: float = 1.0, blocked_seconds: float = 0.0) -> None:
        """One step, with what was asked for until then."""
        self.own_steps += 1
        self.cursor += 1
        self._boundary(tokens, loss, blocked_seconds, again=False)

    def again(self) -> None:
        """More work at the same boundary."""
        self._boundary(0, 1.0, 0.0, again=True)

    def _boundary(self, tokens: int, loss: float, blocked_seconds: float, *, again: bool) -> None:
        inbox, self.inbox = self.inbox, []
        adopted = tuple(
            (each.shard, each.fragment, each.number) for each in inbox if isinstance(each, Adopt)
        )
        captured = tuple(key for each in inbox if isinstance(each, Capture) for key in each.slices)
        boundary = Boundary(
            own_steps=self.own_steps,
            tokens=tokens,
            loss=loss,
            step_seconds=0.0 if again else 1.0,
            blocked_seconds=blocked_seconds,
            cursor=self.cursor,
            adopted=adopted,
            captured=captured,
            again=again,
            data_state=self.data_state(self.cursor) if captured else None,
        )
        self.feed(self.exchange.boundary(boundary, self.now))

    # ------------------------------------------------------------ short cuts

    def join(self, tick: int = 0, cursor: int = 0) -> None:
        """Welcomed by every shard."""
        self.feed(self.exchange.start(self.now))
        for shard in range(self.run_file.shards):
            self.welcome(shard, tick=tick, cursor=cursor)

    def begin(self, tick: int = 0, number: int = 0) -> "LearnerSide":
        """Joined, every slice adopted, nothing done yet."""
        self.join(tick)
        for shard, fragment in self.exchange.slices:
            self.value(shard, fragment, number)
        self.again()
        self.seen.clear()
        self.inbox.clear()
        return self


def learner_side(
    *, shards: int = 2, steps: int | None = 40, observer: bool = False, **sync: Any
) -> LearnerSide:
    """A learner of two slices a shard, H = 8; keywords as of Sync."""
    settings = Sync(**{"fragments": 2, "period": 8, "overlap": 2, **sync})
    run_file = RunFile(
        job="tiny",
        regions=(Region(name="here", learners=2),),
        shards=shards,
        steps=steps,
        tokens=None if steps else 1000,
        sync=settings,
    )
    count = settings.fragment_count * shards
    tensors = [
        TensorSpec(name=f"t{n}", shape=(4,), dtype="float32", merge="rda") for n in range(count)
    ]
    exchange = Exchange(
        run_file=run_file,
        layout=run_file.layout(tensors),
        slot="" if observer else "here-0",
        uid="" if observer else "uid",
        instance="uid-1",
        observer=observer,
    )
    return LearnerSide(run_file, exchange)
