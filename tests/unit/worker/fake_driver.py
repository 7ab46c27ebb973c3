"""A learner's machine between shards and a training process that a test speaks for."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS, ExitCode
from atoll_protos.job.layout import TensorSpec
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_worker.link.messages import (
    Adopt,
    Boundary,
    Capture,
    Fail,
    JobLength,
    Proceed,
    Start,
    Tick,
)
from atoll_worker.rules.exchange import Exchange
from atoll_worker.rules.learner_state import (
    Command,
    Dial,
    Discard,
    Effect,
    HangUp,
    LearnerState,
    PlaceValue,
    Promote,
    SendHeld,
    SendMessage,
    SendOffer,
    SendSeed,
)
from unit.worker.fixtures import CONFIGURE

RUN = "run-1"
Kind = TypeVar("Kind")


def digest(shard: int, fragment: int, number: int, epoch: int) -> str:
    return f"{shard}/{fragment} v{number} e{epoch}"


def told(*ends: int, revision: int = 1) -> pb.Tick:
    """The job is as long as the last of these."""
    length = pb.Length(revision=revision, steps=ends[-1], ends=sorted(ends))
    return pb.Tick(tick=0, length=length)


def word_of(effect: Effect) -> str:
    """The effect in words; the first one is its kind."""
    match effect:
        case SendMessage(shard, message):
            return _word_of_message(shard, message)
        case PlaceValue(shard, fragment):
            return f"place {shard}/{fragment}"
        case SendOffer(shard, offer):
            return f"offer {shard}/{offer.slice} {offer.base} {offer.capture}"
        case SendHeld(shard, held):
            return f"gives {shard}/{held.version.slice} {held.version.version.number}"
        case Promote(shard, fragment, number) | Discard(shard, fragment, number):
            return f"{type(effect).__name__.lower()} {shard}/{fragment} {number}"
        case Dial(shard) | HangUp(shard) | SendSeed(shard):
            return f"{type(effect).__name__.lower()} {shard}"
        case Command(command):
            return _word_of_command(command)
    return type(effect).__name__.lower()


def _word_of_command(command: Any) -> str:
    match command:
        case Adopt(shard=shard, fragment=fragment, number=number):
            return f"adopt {shard}/{fragment} {number}"
        case Capture(slices=slices):
            return " ".join(("capture", *(f"{shard}/{fragment}" for shard, fragment in slices)))
        case JobLength(steps=steps):
            return f"length {steps}"
        case Fail(exit_code=code):
            return f"fail {ExitCode(code).name}"
        case Start(cursor=cursor, tick=tick):
            return f"start {cursor} {tick}"
        case Tick(tick=tick):
            return f"tick {tick}"
    return type(command).__name__.lower()


def _word_of_message(shard: int, message: pb.ToShard) -> str:
    kind = str(message.WhichOneof("kind"))
    match kind, getattr(message, kind):
        case "join", join:
            words = [join.incarnation, join.proof, "starting" * join.starting]
        case "report", report:
            flags = [name for name in ("training", "finished") if getattr(report, name)]
            words = [report.t_m, report.cursor, *flags]
        case "model", model:
            words = [len(model.tensors)]
        case "evaluation", evaluation:
            words = [evaluation.tick]
        case _:
            words = []
    return " ".join(str(each) for each in (kind, shard, *words) if each != "")


@dataclass
class LearnerSide:
    """Feeds inputs, keeps effects until they are taken, carries out commands at step boundaries."""

    run_file: RunFile
    exchange: Exchange
    now: float = 100.0
    seen: list[Effect] = field(default_factory=list)
    inbox: list[Any] = field(default_factory=list)
    sent: list[SendOffer] = field(default_factory=list)  # all offers
    own_steps: int = 0
    cursor: int = 0
    data_state: Callable[[int], bytes | None] = lambda cursor: None  # what the script keeps

    def feed(self, effects: list[Effect]) -> None:
        self.seen += effects
        self.inbox += [effect.command for effect in effects if isinstance(effect, Command)]
        self.sent += [effect for effect in effects if isinstance(effect, SendOffer)]

    def take(self, kind: type[Kind]) -> list[Kind]:
        """The effects or commands of a kind since they were last taken."""
        found, rest = list[Kind](), list[Effect]()
        for effect in self.seen:
            each = effect.command if isinstance(effect, Command) else effect
            if isinstance(each, kind):
                found.append(each)
            else:
                rest.append(effect)
        self.seen = rest
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

    def later(self, seconds: float) -> None:
        """So much later the transport asks what is due."""
        self.now += seconds
        self.feed(self.exchange.tick_time(self.now))

    def newest(self, shard: int, number: int, epoch: int = 1) -> list[pb.SliceVersion]:
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

    # ------------------------------------------------------------ scenes

    def play(self, scene: str) -> "LearnerSide":
        """Inputs (see `_do`), each with a semicolon behind it.

        Behind `=>` stands what has come of it and of those before it, in the words of `word_of`, or
        `none`; kinds that are named nowhere in the scene are not looked at, and `no dial` names one
        that is not to come.
        """
        parts = [each.partition("=>") for each in scene.split(";")]
        wanted = [[word.strip() for word in words.split(",")] for _, _, words in parts]
        named = [word.removeprefix("no ") for words in wanted for word in words if word]
        kinds = {word.split()[0] for word in named}
        for (order, asked, _), words in zip(parts, wanted, strict=True):
            self._do(*order.split())
            if asked:
                came = [each for each in map(word_of, self.seen) if each.split()[0] in kinds]
                expected = [each for each in words if each != "none" and each[:3] != "no "]
                assert came == expected, f"{came} at {order}of {scene}"
                self.seen.clear()
        return self

    def _do(self, verb: str, *given: str) -> None:
        """One input, such as `value 0/1 5 2`: version 5 of slice 1 of shard 0, of epoch 2."""
        match verb, given:
            case "welcome", [shard, *fields]:  # such as epoch=2 or run=other
                pairs = [each.split("=") for each in fields]
                known = {key: int(text) if text.isdigit() else text for key, text in pairs}
                self.welcome(int(shard), **known)
            case "end", [shard, code]:
                refusal = cast(pb.Code, pb.Code.Value(code))
                self.end(int(shard), refusal, retry=REFUSALS[refusal].retry)  # as a shard says it
            case "bytes", [shard]:
                self.exchange.heard(int(shard), self.now)
            case "later", [seconds]:
                self.later(float(seconds))
            case _:
                self._do_numbers(verb, [int(n) for each in given for n in each.split("/")])

    def _do_numbers(self, verb: str, numbers: list[int]) -> None:
        match verb, numbers:
            case "begin", [*tick_and_number]:
                self.begin(*tick_and_number)
            case "join", []:
                self.join()
            case "dials", []:
                self.feed(self.exchange.start(self.now))
            case "connect", [shard]:
                self.feed(self.exchange.connected(shard, self.now))
            case "back", [shard]:
                self.welcome(shard)
            case "back", [shard, number, *epoch]:
                newest = self.newest(shard, number, sum(epoch) or 1)
                self.welcome(shard, newest=newest, epoch=sum(epoch) or 1)
            case "leave", []:
                self.feed(self.exchange.leave("terminated", self.now))
            case "seed", [shard]:
                self.receive(shard, send_seed=pb.SendSeed())
            case _:
                self._do_when_welcomed(verb, numbers)

    def _do_when_welcomed(self, verb: str, numbers: list[int]) -> None:
        match verb, numbers:
            case "step", [*tokens]:
                self.step(tokens=sum(tokens) or 10)
            case "pace", [count]:
                for _ in range(count):
                    self.step()
                    assert self.take(Proceed) == [Proceed()], "nothing is due here"
            case "again", []:
                self.again()
            case "value", [shard, fragment, number, *epoch]:
                self.value(shard, fragment, number, epoch=sum(epoch) or 1)
            case "misfit", [shard, fragment, number, base]:
                publish = self.publish(shard, fragment, number, difference=True, base=base)
                assert not self.exchange.publish_started(shard, publish, self.now)
            case "call", [shard, fragment, base]:
                self.call(shard, fragment, base)
            case "torn", [nth]:
                sent = self.sent[nth]
                self.feed(self.exchange.capture_lost(sent.shard, sent.offer))
            case "lose", [shard]:
                self.lose(shard)
            case "held", [shard, fragment, number, *epoch]:
                version = self.publish(shard, fragment, number, epoch=sum(epoch) or 1).version
                self.receive(shard, send_held=pb.SendHeld(version=version))
            case "tick", [tick]:
                self.ticks(tick)
            case "tick", [shard, tick]:
                self.receive(shard, tick=pb.Tick(tick=tick))
            case "ends", ends:
                self.receive(0, tick=told(*ends))
            case "final", [shard, number]:
                self.receive(shard, final=pb.Final(versions=self.newest(shard, number)))
            case _:
                raise AssertionError(f"{verb} {numbers} is no input")

    # ------------------------------------------------------------ short cuts

    def join(self, tick: int = 0, cursor: int = 0) -> None:
        """Welcomed by every shard."""
        self.feed(self.exchange.start(self.now))
        for shard in range(self.run_file.shards):
            self.welcome(shard, tick=tick, cursor=cursor)

    def begin(self, tick: int = 0, number: int = 0) -> "LearnerSide":
        """Joined, every slice adopted, nothing done yet."""
        self.join(tick)
        for shard, fragment in self.exchange.state.slices:
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
    slot, uid = ("", "") if observer else ("here-0", "uid")
    configure = replace(
        CONFIGURE,
        run_file=run_file,
        layout=run_file.layout(tensors),
        slot=slot,
        uid=uid,
        instance="uid-1",
        observer=observer,
    )
    return LearnerSide(run_file, Exchange(LearnerState(configure=configure)))
