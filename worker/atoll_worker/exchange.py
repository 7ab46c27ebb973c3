"""A learner's or observer's side of the protocol, as a machine without I/O.

Inputs carry `now` (monotonic seconds) and return effects for the transport process to perform in
order. The training process sees only Commands, which it obeys at its step boundaries.
"""

import hashlib
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.layout import Layout
from atoll_protos.names import PROTOCOL, REGISTRAR_SHARD, ExitCode
from atoll_protos.run import RunFile
from atoll_worker import schedule
from atoll_worker.effects import (
    Command,
    Dial,
    Discard,
    Effect,
    HangUp,
    Place,
    Promote,
    Record,
    SendMessage,
    SendOffer,
    SendSeed,
)
from atoll_worker.messages import Adopt, Boundary, Capture, Fail, Finished, Proceed, Start, Tick
from atoll_worker.slices import Mark, SliceState

REPORT_SECONDS: Final = 2.0  # a shard sees a stalled training thread, not a lost learner
BACKOFF_SECONDS: Final = (0.2, 10.0)
MEAN_WEIGHT: Final = 0.2
EXIT_CODES: Final = {
    pb.SUPERSEDED: ExitCode.SUPERSEDED,
    pb.OTHER_RUN_HASH: ExitCode.OTHER_JOB,
    pb.OTHER_LAYOUT: ExitCode.OTHER_JOB,
    pb.OTHER_PROTOCOL: ExitCode.OTHER_JOB,
    pb.UNKNOWN_SLOT: ExitCode.BAD_INPUT,
}


@dataclass(slots=True, kw_only=True)
class Side:
    """What is known of one shard."""

    connected: bool = False
    welcomed: bool = False
    ever_welcomed: bool = False
    tick: int = 0
    epoch: int = 0
    final: dict[int, int] | None = None  # fragment: number
    attempt: int = 0
    dial_at: float | None = None


class Exchange:
    """See the module. `instance` is this process start; an observer has no slot."""

    def __init__(
        self,
        *,
        run_file: RunFile,
        layout: Layout,
        slot: str,
        uid: str,
        instance: str,
        observer: bool = False,
    ) -> None:
        self.run_file, self.sync, self.layout = run_file, run_file.sync, layout
        self.slot, self.uid, self.instance, self.observer = slot, uid, instance, observer
        self.run = ""
        self.incarnation = 0
        self.cursor = 0
        self.t_m = 0  # this learner's own steps
        self.position = 0  # on the schedule: the tick at the start, then one a step
        self.tokens = 0
        self.loss = math.nan
        self.boundaries = 0
        self.step_seconds = 0.0
        self.publish_seconds = 0.0
        self.blocked_seconds = 0.0
        self.busy_seconds = 0.0
        self.sides = [Side() for _ in range(run_file.shards)]
        self.slices = {
            (each.shard, each.fragment): SliceState(shard=each.shard, fragment=each.fragment)
            for each in layout.slices
        }
        self.started = False
        self.finished = False
        self.failed = False
        self.leaving = False
        self.waits = False  # lock-step: the training thread waits for Proceed
        self.tick = 0
        self.tick_times: deque[tuple[float, int]] = deque(maxlen=16)
        self.reported_at = 0.0
        self.publish_began: dict[int, float] = {}

    # ------------------------------------------------------------ inputs: connections

    def start(self, now: float) -> list[Effect]:
        """A learner joins the registrar first: it gives the incarnation (rule 4)."""
        if self.observer:
            return [Dial(shard) for shard in range(len(self.sides))]
        return [Dial(REGISTRAR_SHARD)]

    def connected(self, shard: int, now: float) -> list[Effect]:
        """The control stream is open."""
        side = self.sides[shard]
        side.connected, side.dial_at = True, None
        join = pb.Join(
            protocol=PROTOCOL,
            run_hash=self.run_file.hash,
            layout_digest=self.layout.digest,
            slot=self.slot,
            uid=self.uid,
            instance=self.instance,
            incarnation=self.incarnation,
            run=self.run,
            held=[
                pb.SliceVersion(slice=each.fragment, version=each.held)
                for each in self._of(shard)
                if each.held is not None
            ],
            tick_seen=max(side.tick for side in self.sides),
            epochs_seen=[side.epoch for side in self.sides],
            t_m=self.t_m,
            cursor=self.cursor,
            observer=self.observer,
            recovering=not self.started,
        )
        return [SendMessage(shard, pb.ToShard(join=join))]

    def disconnected(self, shard: int, reason: str, now: float) -> list[Effect]:
        """Both streams are gone: the bases stay, the calls died with the session."""
        side = self.sides[shard]
        side.connected = side.welcomed = False
        self.publish_began.pop(shard, None)
        for each in self._of(shard):
            each.call = None
        if self.leaving or self.failed:
            return []
        side.dial_at = now + self._backoff(shard, side.attempt)
        side.attempt += 1
        return [Record({"event": "disconnected", "shard": shard, "reason": reason})]

    def message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        """A control message of a shard."""
        match message.WhichOneof("kind"):
            case "welcome":
                return self._welcome(shard, message.welcome, now)
            case "call":
                return self._call(shard, message.call, now)
            case "tick":
                return self._tick(shard, message.tick.tick, now)
            case "send_seed":
                return [SendSeed(shard)]
            case "final":
                versions = {each.slice: each.version.number for each in message.final.versions}
                self.sides[shard].final = versions
                return self._finish()
            case "end":
                return self._end(shard, message.end)
        return []

    # ------------------------------------------------------------ inputs: values

    def publish_started(self, shard: int, publish: pb.Publish, now: float) -> bool:
        """Whether the coming value fits: a known slice, and a difference only to the base held."""
        state = self.slices.get((shard, publish.version.slice))
        if state is None:
            return False
        self.publish_began[shard] = now
        return not publish.difference or publish.base == state.number

    def published(self, shard: int, publish: pb.Publish, now: float) -> list[Effect]:
        """A value is whole and decoded; the transport keeps it as a candidate."""
        state = self.slices[shard, publish.version.slice]
        number = publish.version.version.number
        began = self.publish_began.pop(shard, now)
        self.publish_seconds = _mean(self.publish_seconds, now - began)
        kept = {each.version.version.number for each in (state.adopting, state.waiting) if each}
        if number in kept:
            return []  # sent again in a newer session: the candidate is still needed
        if number <= max(state.number, *kept, -1):
            return [Discard(shard, state.fragment, number)]
        effects: list[Effect] = []
        if state.waiting is not None:
            effects.append(Discard(*state.key, state.waiting.version.version.number))
        state.waiting = publish
        return [*effects, *self._adopt(state), *self._proceed()]

    def capture_lost(self, shard: int, fragment: int, base: int) -> list[Effect]:
        """The capture was overwritten before it was read: the next one answers."""
        state = self.slices[shard, fragment]
        state.mark = None
        if not self.sync.lockstep and state.number == base:
            state.call = base
        return []

    # ------------------------------------------------------------ inputs: training process

    def boundary(self, boundary: Boundary, now: float) -> list[Effect]:
        """A step is finished, or more work at the same boundary is."""
        effects: list[Effect] = []
        if not boundary.again:
            self._count(boundary)
        resolved = []
        for shard, fragment, number in boundary.adopted:
            record, more = self._adopted(shard, fragment, number)
            resolved.append(record)
            effects += more
        for key in boundary.captured:
            self._captured(key)
        if not boundary.again or resolved:
            effects.append(Record(self._line(boundary, resolved)))
        if not self.started:
            effects += self._start()
        if self.sync.lockstep:
            effects += self._lockstep(boundary)
        else:
            effects += [*self._answers(), *self._captures()]
        return [*effects, *self._finish(), *self._report(now)]

    def leave(self, reason: str, now: float) -> list[Effect]:
        """The training process ends."""
        self.leaving = True
        pending = {f"{s}/{p}": each.tokens for (s, p), each in self.slices.items()}
        record = Record(
            {"event": "end", "reason": reason, "tokens": self.tokens, "pending": pending}
        )
        message = pb.ToShard(leave=pb.Leave(reason=reason))
        return [
            record,
            *(SendMessage(n, message) for n, side in enumerate(self.sides) if side.welcomed),
        ]

    def evaluated(self, evaluation: pb.Evaluation) -> list[Effect]:
        """An observer's measurement, for the registrar."""
        if not self.sides[REGISTRAR_SHARD].welcomed:
            return []
        return [SendMessage(REGISTRAR_SHARD, pb.ToShard(evaluation=evaluation))]

    def tick_time(self, now: float) -> list[Effect]:
        """Time has passed: dial again, and report when no boundary comes."""
        effects: list[Effect] = []
        for number, side in enumerate(self.sides):
            if side.dial_at is not None and now >= side.dial_at:
                side.dial_at = None
                effects.append(Dial(number))
        if now >= self.reported_at + REPORT_SECONDS:  # as `deadline` says it, to the bit
            effects += self._report(now)
        return effects

    def deadline(self) -> float:
        """When `tick_time` is due at the latest."""
        dials = [side.dial_at for side in self.sides if side.dial_at is not None]
        return min([self.reported_at + REPORT_SECONDS, *dials])

    # ------------------------------------------------------------ joining

    def _welcome(self, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
        side = self.sides[shard]
        if welcome.epoch < side.epoch:
            return [HangUp(shard)]  # an older reign than one already seen (rule 20)
        if self.run and welcome.run != self.run:
            reason = f"run {self.run} has ended, {welcome.run} goes on; start again"
            return self._fail(ExitCode.TRY_AGAIN, reason)
        self.run = welcome.run
        side.welcomed = side.ever_welcomed = True
        side.epoch, side.attempt = welcome.epoch, 0
        self.cursor = max(self.cursor, welcome.cursor)
        effects: list[Effect] = []
        if welcome.needs_model and not self.observer:
            effects.append(SendMessage(shard, pb.ToShard(model=self.layout.to_model())))
        if shard == REGISTRAR_SHARD and not self.observer:
            if self.incarnation == 0:
                self.incarnation = welcome.incarnation
                effects.append(
                    Record({"event": "start", "instance": self.instance, "cursor": self.cursor})
                )
            effects += [
                Dial(number)
                for number, other in enumerate(self.sides)
                if not other.connected and not other.ever_welcomed and other.dial_at is None
                and number != REGISTRAR_SHARD
            ]  # fmt: skip
        heads = {each.slice: each.version.number for each in welcome.heads}
        if self.sync.lockstep:
            effects += self._hand_over_again(shard, heads)
        effects += self._tick(shard, welcome.tick, now)
        return [*effects, *self._start(), *self._report(now)]

    def _start(self) -> list[Effect]:
        """Rule 5: the first step comes after all shards have welcomed it, on the job's values."""
        whole = all(side.ever_welcomed for side in self.sides) and all(
            each.held is not None for each in self.slices.values()
        )
        if self.started or not whole:
            return []
        self.started = True
        self.position = self.tick = min(side.tick for side in self.sides)
        if self.observer:
            return []
        start = Start(incarnation=self.incarnation, cursor=self.cursor, tick=self.tick)
        return [Command(start)]

    def _end(self, shard: int, end: pb.End) -> list[Effect]:
        if end.retry or end.code == pb.STORE_LOST:
            return [
                Record({"event": "ended", "shard": shard, "reason": end.reason}),
            ]
        code = EXIT_CODES.get(end.code, ExitCode.TRY_AGAIN)
        return self._fail(code, f"shard {shard}: {end.reason}; {end.remedy}")

    def _fail(self, code: ExitCode, reason: str) -> list[Effect]:
        self.failed = True
        return [Command(Fail(exit_code=int(code), reason=reason))]

    def _backoff(self, shard: int, attempt: int) -> float:
        """Doubling, with jitter that is a function of who asks and how often."""
        low, high = BACKOFF_SECONDS
        digest = hashlib.sha256(f"{self.instance} {shard} {attempt}".encode()).digest()
        jitter = 0.5 + digest[0] / 512
        return float(min(high, low * 2 ** min(attempt, 10))) * jitter

    # ------------------------------------------------------------ the clock

    def _tick(self, shard: int, tick: int, now: float) -> list[Effect]:
        side = self.sides[shard]
        side.tick = max(side.tick, tick)
        lowest = min(each.tick for each in self.sides)
        if lowest <= self.tick:
            return []
        self.tick = lowest
        self.tick_times.append((now, lowest))
        return [Command(Tick(tick=lowest))]

    @property
    def ticks_per_second(self) -> float:
        """The present rate of the job's clock; 0 while unknown."""
        if len(self.tick_times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.tick_times[0], self.tick_times[-1]
        return (high - low) / (last - first) if last > first else 0.0

    # ------------------------------------------------------------ counting and adopting

    def _count(self, boundary: Boundary) -> None:
        self.boundaries += 1
        self.t_m = boundary.t_m
        self.position += 1
        if self.sync.lockstep and self.tick > self.position + self.sync.period:
            self.position = self.tick  # it was away for a round or more: as a joiner (rule 15)
        self.tokens += boundary.tokens
        self.loss, self.cursor = boundary.loss, boundary.cursor
        self.step_seconds = _mean(self.step_seconds, boundary.step_seconds)
        self.busy_seconds += boundary.step_seconds
        self.blocked_seconds += boundary.blocked_seconds
        for each in self.slices.values():
            each.steps += 1
            each.tokens += boundary.tokens

    def _adopt(self, state: SliceState) -> list[Effect]:
        """Hand the newest value to the training process, one at a time a slice."""
        if state.adopting is not None or state.waiting is None:
            return []
        if self.sync.lockstep and self.started and not self._may_adopt(state):
            return []
        state.adopting, state.waiting = state.waiting, None
        number = state.adopting.version.version.number
        blend = self.sync.blend if number > 0 and self.started and not self.observer else 0.0
        adopt = Adopt(shard=state.shard, fragment=state.fragment, number=number, blend=blend)
        return [Place(*state.key, number), Command(adopt)]

    def _adopted(
        self, shard: int, fragment: int, number: int
    ) -> tuple[dict[str, Any], list[Effect]]:
        state = self.slices[shard, fragment]
        publish = state.adopting
        assert publish is not None, "adopted without a command"
        assert publish.version.version.number == number, "adopted another value"
        merged = publish.merged if publish.HasField("merged") else None
        resolved = state.resolve(merged, self.incarnation)
        state.adopt(publish.version.version)
        record = {
            "shard": shard,
            "slice": fragment,
            "version": number,
            "merged": resolved.merged,
            "overlap": resolved.overlap,
            "late": resolved.late,
        }
        effects: list[Effect] = [Promote(shard, fragment, number)]
        return record, [*effects, *self._adopt(state)]

    def _captured(self, key: tuple[int, int]) -> None:
        state = self.slices[key]
        state.capturing = False
        state.mark = Mark(
            boundary=self.boundaries,
            steps=state.steps,
            tokens=state.tokens,
            t_m=self.position,
            cursor=self.cursor,
        )

    # ------------------------------------------------------------ offers

    def _call(self, shard: int, call: pb.Call, now: float) -> list[Effect]:
        state = self.slices.get((shard, call.slice))
        if state is None or state.number != call.base:
            return []
        state.call = call.base
        return [*self._answers(), *self._captures()]

    def _answers(self) -> list[Effect]:
        """Rule 10: from the last finished step, where that is captured."""
        effects: list[Effect] = []
        for state in self.slices.values():
            mark = state.mark
            fresh = mark is not None and mark.boundary == self.boundaries and mark.steps >= 1
            if mark is None or state.call is None or not fresh or state.call != state.number:
                continue
            state.call = None
            effects.append(self._offer(state, mark))
        return effects

    def _offer(self, state: SliceState, mark: Mark) -> Effect:
        state.offers[mark.steps] = mark.tokens
        offer = pb.Offer(
            slice=state.fragment,
            base=state.number,
            capture=mark.steps,
            counters=pb.Counters(steps=mark.steps, tokens=mark.tokens),
            t_m=mark.t_m,
            cursor=mark.cursor,
        )
        return SendOffer(state.shard, offer)

    def _captures(self) -> list[Effect]:
        """Ask for what is called and not answered, and ahead for what will be."""
        if not self.started or self.finished:
            return []
        rate = self.ticks_per_second
        soon = set(schedule.ahead(self.sync, self.tick, rate, self.step_seconds))
        wanted = [
            state
            for state in self.slices.values()
            if not state.capturing and (state.call is not None or state.fragment in soon)
        ]
        return self._ask_captures(wanted)

    def _ask_captures(self, wanted: list[SliceState]) -> list[Effect]:
        for state in wanted:
            state.capturing = True
        keys = tuple(state.key for state in wanted)
        return [Command(Capture(slices=keys))] if keys else []

    # ------------------------------------------------------------ lock-step (rule 15)

    def _may_adopt(self, state: SliceState) -> bool:
        """At hand-over + overlap, while the training thread waits in step()."""
        if not self.waits:
            return False
        return state.awaits_at is None or self.position >= state.awaits_at

    def _lockstep(self, boundary: Boundary) -> list[Effect]:
        if not self.started:
            return []
        effects: list[Effect] = []
        if not boundary.again:
            self.waits = True
            effects += self._ask_captures([s for s in self.slices.values() if self._is_due(s)])
        for key in boundary.captured:
            state = self.slices[key]
            mark = state.mark
            assert mark is not None, "captured"
            state.awaits_at = self.position + (0 if self._at_the_end else self.sync.overlap)
            if self.sides[state.shard].welcomed:
                effects.append(self._offer(state, mark))
        for state in self.slices.values():
            effects += self._adopt(state)
        return [*effects, *self._proceed()]

    @property
    def _at_the_end(self) -> bool:
        return self.run_file.steps is not None and self.position >= self.run_file.steps

    def _is_due(self, state: SliceState) -> bool:
        if state.awaits_at is not None or state.steps < 1:
            return False
        due = schedule.hands_over(self.sync, state.fragment, self.position)
        return due or self._at_the_end

    def _proceed(self) -> list[Effect]:
        """Let step() return when nothing of this boundary is outstanding."""
        if not self.waits or self._at_the_end:
            return []
        for state in self.slices.values():
            awaited = state.awaits_at is not None and self.position >= state.awaits_at
            if state.capturing or state.adopting is not None or awaited:
                return []
        self.waits = False
        return [Command(Proceed())]

    def _hand_over_again(self, shard: int, heads: dict[int, int]) -> list[Effect]:
        """A hand-over that died with its session is sent again on the same base."""
        return [
            self._offer(state, state.mark)
            for state in self._of(shard)
            if state.awaits_at is not None
            and state.mark is not None
            and heads.get(state.fragment) == state.number
        ]

    # ------------------------------------------------------------ reports and the end

    def _report(self, now: float) -> list[Effect]:
        self.reported_at = now
        if self.observer:
            return []
        wall = self.busy_seconds + self.blocked_seconds
        tick_seen = max(side.tick for side in self.sides)
        effects: list[Effect] = []
        for number, side in enumerate(self.sides):
            if not side.welcomed:
                continue
            report = pb.Report(
                t_m=self.position,
                step_seconds=self.step_seconds,
                loss=self.loss,
                tokens=self.tokens,
                cursor=self.cursor,
                slices=[
                    pb.SliceProgress(
                        slice=each.fragment,
                        held=each.number,
                        since=pb.Counters(steps=each.steps, tokens=each.tokens),
                    )
                    for each in self._of(number)
                    if each.held is not None
                ],
                tick_seen=tick_seen,
                epochs_seen=[each.epoch for each in self.sides],
                publish_seconds=self.publish_seconds,
                training=self.started,
                waiting=self.waits,
                finished=self.finished,
                busy_share=self.busy_seconds / wall if wall else 1.0,
                blocked_seconds=self.blocked_seconds,
            )
            effects.append(SendMessage(number, pb.ToShard(report=report)))
        return effects

    def _finish(self) -> list[Effect]:
        """All shards have said Final, and their final values are adopted."""
        if self.finished:
            return []
        for (shard, fragment), state in self.slices.items():
            final = self.sides[shard].final
            if final is None or state.number < final[fragment]:
                return []
        self.finished = True
        return [Command(Finished())]

    def _line(self, boundary: Boundary, adopted: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "t_m": self.t_m,
            "tick": self.tick,
            "tokens": 0 if boundary.again else boundary.tokens,
            "loss": None if math.isnan(self.loss) else self.loss,
            "step_seconds": boundary.step_seconds,
            "blocked_seconds": boundary.blocked_seconds,
            "adopted": adopted,
        }

    def _of(self, shard: int) -> list[SliceState]:
        return [each for each in self.slices.values() if each.shard == shard]


def _mean(mean: float, sample: float) -> float:
    return sample if mean == 0.0 else mean + MEAN_WEIGHT * (sample - mean)
