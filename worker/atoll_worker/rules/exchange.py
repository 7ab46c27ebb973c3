"""A learner's or observer's side of the protocol, as a machine without I/O.

Inputs carry `now` (monotonic seconds) and return effects for the transport process to perform in
order. The training process sees only Commands, which it obeys at its step boundaries.
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.layout import Layout
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.run import RunFile
from atoll_worker.link.messages import Boundary, Finished, Tick
from atoll_worker.rules import adoption, joining, lockstep, offers, reports
from atoll_worker.rules.effects import Command, Effect, Record, SendHeld, SendMessage, SendSeed
from atoll_worker.rules.slices import SliceState
from atoll_worker.rules.state import Line, new_state

REPORT_SECONDS: Final = 2.0  # so a shard sees a stalled training thread, not a lost learner


class Exchange:
    """The dispatch; the rules are in joining, adoption, offers, lockstep and reports.

    The driver: performs effects in order; says `disconnected` once for every Dial; keeps a value
    under (shard, fragment, number) from `published` until Promote or Discard; calls `tick_time`
    at `deadline`.
    """

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
        self._state = new_state(
            run_file=run_file,
            layout=layout,
            slot=slot,
            uid=uid,
            instance=instance,
            observer=observer,
        )
        self._reported_at = 0.0
        self._evaluation: pb.Evaluation | None = None

    # ------------------------------------------------------------ what the driver reads

    @property
    def run(self) -> str:
        """Empty until the registrar has welcomed this process."""
        return self._state.run

    @property
    def slot(self) -> str:
        """Empty for an observer."""
        return self._state.slot

    @property
    def incarnation(self) -> int:
        """As the registrar gave it; 0 before."""
        return self._state.incarnation

    @property
    def slices(self) -> dict[tuple[int, int], SliceState]:
        """By (shard, fragment); to be read only."""
        return self._state.slices

    # ------------------------------------------------------------ inputs: connections

    def start(self, now: float) -> list[Effect]:
        """Begin to join."""
        self._reported_at = now
        return joining.begin(self._state)

    def connected(self, shard: int, now: float) -> list[Effect]:
        """The control stream is open."""
        return joining.connected(self._state, shard)

    def disconnected(self, shard: int, reason: str, now: float) -> list[Effect]:
        """Both streams are gone, or could not be opened."""
        return joining.disconnected(self._state, shard, reason, now)

    def message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        """A control message of a shard; before its Welcome nothing else counts."""
        match message.WhichOneof("kind"):
            case "welcome":
                return self._welcome(shard, message.welcome, now)
            case "end":
                return joining.refused(self._state, shard, message.end)
        if self._state.sides[shard].welcomed:
            return self._welcomed_message(shard, message, now)
        return []

    # ------------------------------------------------------------ inputs: values

    def publish_started(self, shard: int, publish: pb.Publish, now: float) -> bool:
        """Whether the coming value may be received; if not, the session is to be dropped."""
        return adoption.started(self._state, shard, publish, now)

    def published(self, shard: int, publish: pb.Publish, now: float) -> list[Effect]:
        """A value is whole, verified, decoded and kept by the driver."""
        effects = adoption.arrived(self._state, shard, publish, now)
        return [*effects, *lockstep.proceed(self._state)]

    def capture_lost(self, shard: int, fragment: int, base: int) -> list[Effect]:
        """A SendOffer could not be performed: its region has been overwritten since."""
        return offers.lost(self._state, shard, fragment, base)

    # ------------------------------------------------------------ inputs: training process

    def boundary(self, boundary: Boundary, now: float) -> list[Effect]:
        """A step is finished, or more work at the same boundary is."""
        state = self._state
        if not boundary.again:
            self._count(boundary)
        effects: list[Effect] = []
        records = []
        for shard, fragment, number in boundary.adopted:
            record, more = adoption.adopted(state, shard, fragment, number)
            records.append(record)
            effects += more
        for key in boundary.captured:
            offers.captured(state, *key)
        if not boundary.again or records:
            effects.append(Record(state.work.line(boundary, state.clock.tick, records)))
        effects += joining.start(state)
        effects += self._hand_over(boundary)
        return [*effects, *self._finish(), *self._report(now)]

    def leave(self, reason: str, now: float) -> list[Effect]:
        """The training process ends."""
        return reports.leave(self._state, reason)

    def evaluated(self, evaluation: pb.Evaluation) -> list[Effect]:
        """An observer's measurement; the registrar gets the newest, again when it is back."""
        self._evaluation = evaluation
        if not self._state.sides[REGISTRAR_SHARD].welcomed:
            return []
        return [SendMessage(REGISTRAR_SHARD, pb.ToShard(evaluation=evaluation))]

    # ------------------------------------------------------------ inputs: time

    def tick_time(self, now: float) -> list[Effect]:
        """Time has passed: dial again, and report when no boundary comes."""
        effects = joining.dial_due(self._state, now)
        if now >= self._reported_at + REPORT_SECONDS:  # as `deadline` says it, to the bit
            effects += self._report(now)
        return effects

    def deadline(self) -> float:
        """When `tick_time` is due at the latest."""
        dials = [side.dial_at for side in self._state.sides if side.dial_at is not None]
        return min([self._reported_at + REPORT_SECONDS, *dials])

    # ------------------------------------------------------------ steps

    def _count(self, boundary: Boundary) -> None:
        state = self._state
        state.work.count(boundary)
        if state.run_file.sync.lockstep:
            lockstep.catch_up(state)
        for each in state.slices.values():
            each.count(boundary.tokens)

    def _hand_over(self, boundary: Boundary) -> list[Effect]:
        state = self._state
        if state.observer:
            return []
        if not state.run_file.sync.lockstep:
            return [*offers.answers(state), *offers.captures(state)]
        effects = [] if boundary.again else lockstep.begin_wait(state)
        effects += lockstep.hand_over(state, boundary.captured)
        return [*effects, *adoption.adopt_all(state), *lockstep.proceed(state)]

    def _report(self, now: float) -> list[Effect]:
        self._reported_at = now
        return reports.report(self._state)

    # ------------------------------------------------------------ messages

    def _welcomed_message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        match message.WhichOneof("kind"):
            case "call" if not self._state.run_file.sync.lockstep:
                return offers.called(self._state, shard, message.call)
            case "tick":
                return self._tick(shard, message.tick.tick, now)
            case "send_seed":
                return self._send_seed(shard)
            case "send_held":
                return self._send_held(shard, message.send_held.version)
            case "final":
                return self._final(shard, message.final, now)
        return []

    def _welcome(self, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
        state = self._state
        effects = joining.welcomed(state, shard, welcome, now)
        if state.sides[shard].line is not Line.WELCOMED:
            return effects
        if state.run_file.sync.lockstep:
            heads = {each.slice: each.version.number for each in welcome.heads}
            effects += lockstep.hand_over_again(state, shard, heads)
        effects += self._tick(shard, welcome.tick, now)
        if shard == REGISTRAR_SHARD and self._evaluation is not None:
            effects += self.evaluated(self._evaluation)
        return [*effects, *joining.start(state), *self._report(now)]

    def _tick(self, shard: int, tick: int, now: float) -> list[Effect]:
        state = self._state
        side = state.sides[shard]
        side.tick = max(side.tick, tick)
        if not state.clock.move(min(each.tick for each in state.sides), now):
            return []
        return [Command(Tick(tick=state.clock.tick))]

    def _send_seed(self, shard: int) -> list[Effect]:
        """Rule 1: version 0 is the same whoever sends it, as long as its regions still hold it."""
        if self._state.captures_asked:
            reason = f"shard {shard} asks for a seed, and training has begun: start again"
            return joining.fail(self._state, ExitCode.TRY_AGAIN, reason)
        return [SendSeed(shard)]

    def _send_held(self, shard: int, wanted: pb.SliceVersion) -> list[Effect]:
        """Rule 22: the base held, bit for bit, if it is that version or a later one of the run."""
        each = self._state.slices.get((shard, wanted.slice))
        known = each is not None and each.held is not None and not each.disowned
        if each is None or not known or each.number < wanted.version.number:
            reason = f"slice {wanted.slice}: version {wanted.version.number} is not held here"
            return [Record({"event": "not held", "shard": shard, "reason": reason})]
        version = pb.SliceVersion(slice=wanted.slice, version=each.held)
        return [SendHeld(shard, pb.Held(version=version, lineage=each.lineage))]

    def _final(self, shard: int, final: pb.Final, now: float) -> list[Effect]:
        numbers = {each.slice: each.version.number for each in final.versions}
        self._state.sides[shard].final = numbers
        effects = self._finish()
        return [*effects, *self._report(now)] if effects else []

    def _finish(self) -> list[Effect]:
        """Rule 27: every shard has said Final, and its final values are adopted."""
        state = self._state
        if state.finished:
            return []
        for (shard, fragment), each in state.slices.items():
            final = state.sides[shard].final
            if final is None or each.number < final.get(fragment, each.number + 1):
                return []
        state.finished = True
        return [Command(Finished())]
