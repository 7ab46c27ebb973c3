"""A learner's or observer's side of the protocol: a state machine without I/O.

A learner *joins* (joining.py) until all shards have welcomed it and all slices are adopted; it
*trains*, and every slice goes around this circle on its own:

     base held: steps and tokens are counted
        -> captured at a boundary; offered for a Call, or at its due position  (handover.py)
        -> a Publish of a newer version arrives, and is adopted at a boundary  (adoption.py)

and it is *finished* when every shard has said Final and the final versions are adopted. Then it
stays connected until the training process leaves.

What the driver (transport/transport.py, or the simulation) must do:
1. Perform the effects of one input in order, and all of them before the next input.
2. For each Dial: call `connected` at most once, and then `disconnected` exactly once.
3. For each incoming value: call `publish_started` with its head before memory is allocated, and
   drop the session if it returns False. When the value is whole and verified, keep it under (shard,
   fragment, number) until Promote or Discard names it, and call `published`.
4. On SendOffer, read the capture region at once. If its counter shows that it was overwritten, send
   nothing and, as long as the session lasts, call `capture_lost`.
5. Call `tick_time` when `deadline()` is reached; any input may change the deadline.
6. Let `now` be monotonic seconds, the same for all inputs.

It can rely on this: at most one Adopt and one Capture per slice are outstanding, at most two
candidates per slice are kept, no offer is sent without its credit, and nothing but a Join is sent
to a shard that has not welcomed this process.
"""

from collections.abc import Sequence
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.length import Length, heard
from atoll_protos.names import REGISTRAR_SHARD
from atoll_worker.link.messages import Boundary, Finished, JobLength, Tick
from atoll_worker.rules import (
    adoption,
    companions,
    handover,
    joining,
    reports,
    silence,
    validation,
)
from atoll_worker.rules.effects import (
    Command,
    Effect,
    HangUp,
    PlaceValue,
    SendHeld,
    SendMessage,
    SendSeed,
    TelemetryRecord,
)
from atoll_worker.rules.learner_state import Connection, LearnerState

REPORT_SECONDS: Final = 2.0  # without boundaries: the training thread is slow or stuck


class Exchange:
    """See the module: inputs carry `now`, and return the effects that they have."""

    def __init__(self, state: LearnerState) -> None:
        self.state = state
        self._reported_at = 0.0
        self._evaluation: pb.Evaluation | None = None

    # ------------------------------------------------------------ inputs

    def start(self, now: float) -> list[Effect]:
        self._reported_at = now
        return joining.begin(self.state)

    def connected(self, shard: int, now: float) -> list[Effect]:
        return joining.connected(self.state, shard)

    def disconnected(self, shard: int, reason: str, now: float) -> list[Effect]:
        return joining.disconnected(self.state, shard, reason, now)

    def message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        """Before its Welcome every kind but that and End is ignored."""
        known = self.state.shards[shard]
        silence.heard(known, now)
        if not known.open:
            return []
        if objection := validation.of_message(self.state, shard, message):
            return joining.hang_up(self.state, shard, objection)
        match message.WhichOneof("kind"):
            case "welcome":
                return self._welcome(shard, message.welcome, now)
            case "end":
                return joining.refused(self.state, shard, message.end)
        return self._welcomed_message(shard, message, now) if known.welcomed else []

    def heard(self, shard: int, now: float) -> None:
        """Bytes of a value have come."""
        silence.heard(self.state.shards[shard], now)

    def publish_started(self, shard: int, publish: pb.Publish, now: float) -> bool:
        if not self.state.shards[shard].open or validation.of_publish(self.state, shard, publish):
            return False
        return adoption.started(self.state, shard, publish, now)

    def published(self, shard: int, publish: pb.Publish, now: float) -> list[Effect]:
        effects = adoption.arrived(self.state, shard, publish, now)
        return [*effects, *handover.proceed(self.state)]

    def capture_lost(self, shard: int, offer: pb.Offer) -> list[Effect]:
        return handover.lost(self.state, shard, offer.slice, offer.base, offer.capture)

    def boundary(self, boundary: Boundary, now: float) -> list[Effect]:
        state = self.state
        effects = [] if boundary.again else self._count(boundary)
        records = []
        for shard, fragment, number in boundary.adopted:
            record, more = adoption.adopted(state, shard, fragment, number)
            records.append(record)
            effects += more
        if boundary.captured:
            state.progress.data_state = boundary.data_state
        for key in boundary.captured:
            handover.captured(state, *key)
        if not boundary.again or records:
            line = state.progress.telemetry(boundary, state.tick, records)
            effects.append(TelemetryRecord(line))
        effects += [*joining.start(state), *self._hand_over(boundary, now)]
        return [*effects, *self._finish(), *self._report(now)]

    def leave(self, reason: str, now: float) -> list[Effect]:
        return reports.leave(self.state, reason)

    def evaluated(self, evaluation: pb.Evaluation) -> list[Effect]:
        """The registrar gets the newest measurement of an observer, again when it is back."""
        self._evaluation = evaluation
        if not self.state.shards[REGISTRAR_SHARD].welcomed:
            return []
        return [SendMessage(REGISTRAR_SHARD, pb.ToShard(evaluation=evaluation))]

    def logged(self, values: Sequence[tuple[str, float]]) -> list[Effect]:
        """What the script logs belongs to the tick of the step lines around it."""
        record = {"event": "logged", "tick": self.state.tick, "values": dict(values)}
        return [TelemetryRecord(record)]

    def troubled(self, trouble: str, now: float) -> list[Effect]:
        """What is wrong with this process's credentials, in one line (rule 37); empty: nothing."""
        if trouble == self.state.trouble:
            return []
        self.state.trouble = trouble
        said = [TelemetryRecord({"event": "warning", "reason": trouble})] if trouble else []
        return [*said, *self._report(now)]

    def renewed(self, shards: Sequence[int]) -> list[Effect]:
        """Dial again where a certificate was replaced, if nothing is under way (rule 41)."""
        if self.state.step_waits or not self.state.started:
            return []
        return [HangUp(each) for each in shards if joining.is_quiet(self.state, each)]

    def tick_time(self, now: float) -> list[Effect]:
        effects = [*joining.dial_due(self.state, now), *silence.leave_silent(self.state, now)]
        if now >= self._reported_at + REPORT_SECONDS:  # the same float as in `deadline`
            effects += self._report(now)
        return effects

    def deadline(self) -> float:
        dials = [each.dial_at for each in self.state.shards if each.dial_at is not None]
        return min([self._reported_at + REPORT_SECONDS, silence.deadline(self.state), *dials])

    # ------------------------------------------------------------ what follows from them

    def _count(self, boundary: Boundary) -> list[Effect]:
        """For this learner and for every slice, before anything else happens."""
        state, before = self.state, self.state.tick
        state.progress.count(boundary)
        state.clock.reached += 1
        if state.sync.lockstep:
            handover.catch_up(state)
        for each in state.slices.values():
            each.count(boundary.tokens)
        return self._moved_from(before)

    def _hand_over(self, boundary: Boundary, now: float) -> list[Effect]:
        state = self.state
        if state.configure.observer:
            return []
        if not state.sync.lockstep:
            soon = [] if boundary.again else handover.due_soon(state, now)
            return [*handover.answers(state), *handover.captures(state, soon)]
        effects = [] if boundary.again else handover.begin_wait(state)
        effects += handover.hand_over(state, boundary.captured)
        return [*effects, *adoption.adopt_all(state), *handover.proceed(state)]

    def _report(self, now: float) -> list[Effect]:
        self._reported_at = now
        return reports.report(self.state)

    def _welcomed_message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        """Kinds that are not known are ignored: they may be newer."""
        match message.WhichOneof("kind"):
            case "call" if not self.state.sync.lockstep:
                return handover.called(self.state, shard, message.call)
            case "tick":
                effects = self._hear(heard(message.tick.length))
                return [*effects, *self._tick(shard, message.tick.tick, now)]
            case "send_seed":
                return self._send_seed(shard)
            case "send_held":
                return self._send_held(shard, message.send_held.version)
            case "final":
                return self._final(shard, message.final, now)
            case "send_companion":
                return companions.asked(self.state, message.send_companion)
            case "companion_taken":
                companions.taken(self.state)
        return []

    def _welcome(self, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
        """What died with the last session is sent again."""
        state = self.state
        silence.welcomed(state.shards[shard], welcome.epoch, now)
        effects = joining.welcomed(state, shard, welcome, now)
        if state.shards[shard].connection is not Connection.WELCOMED:
            return effects
        if state.sync.lockstep:
            newest = {each.slice: each.version.number for each in welcome.newest}
            effects += handover.hand_over_again(state, shard, newest)
        effects += self._hear(heard(welcome.length))
        effects += self._tick(shard, welcome.tick, now)
        if shard == REGISTRAR_SHARD and self._evaluation is not None:
            effects += self.evaluated(self._evaluation)
        return [*effects, *joining.start(state), *self._report(now)]

    def _tick(self, shard: int, tick: int, now: float) -> list[Effect]:
        state, known, before = self.state, self.state.shards[shard], self.state.tick
        known.tick = max(known.tick, tick)
        state.clock.reached = max(state.clock.reached, known.tick - 1)
        state.clock.move(min(each.tick for each in state.shards), now)
        return self._moved_from(before)

    def _moved_from(self, tick: int) -> list[Effect]:
        now = self.state.tick
        return [Command(Tick(tick=now))] if now > tick else []

    def _hear(self, told: Length) -> list[Effect]:
        """Note a new length: a wait in step() may end, or a hand-over begin (rule 27)."""
        state = self.state
        known, length = state.length, state.length.also(told)
        if length == known:
            return []
        state.length = length
        effects: list[Effect] = []
        if (length.steps, length.tokens) != (known.steps, known.tokens):
            effects.append(Command(JobLength(steps=length.steps, tokens=length.tokens or None)))
        if state.step_waits:
            effects += handover.begin_wait(state)
        return [*effects, *handover.proceed(state)]

    def _send_seed(self, shard: int) -> list[Effect]:
        """The capture regions hold version 0 until the first capture (rule 1)."""
        if self.state.captures_asked:
            reason = f"shard {shard} asks for a seed, but training has begun; start again"
            return joining.fail(self.state, ExitCode.TRY_AGAIN, reason)
        return [SendSeed(shard)]

    def bad_seed(self, tensor: str) -> list[Effect]:
        reason = (
            f"model.{tensor}: has values that are not finite, and the job would begin with"
            " them; initialise it, or load another checkpoint"
        )
        return joining.fail(self.state, ExitCode.BAD_INPUT, reason)

    def _send_held(self, shard: int, wanted: pb.SliceVersion) -> list[Effect]:
        """Send the base that is held, if it is that version or a later one of the run (rule 22)."""
        each = self.state.slices.get((shard, wanted.slice))
        known = each is not None and each.held is not None and not each.orphaned
        if each is None or not known or each.number < wanted.version.number:
            reason = f"slice {wanted.slice}: version {wanted.version.number} is not held here"
            return [TelemetryRecord({"event": "not held", "shard": shard, "reason": reason})]
        version = pb.SliceVersion(slice=wanted.slice, version=each.held)
        return [SendHeld(shard, pb.Held(version=version, lineage=each.lineage))]

    def _final(self, shard: int, final: pb.Final, now: float) -> list[Effect]:
        numbers = {each.slice: each.version.number for each in final.versions}
        self.state.shards[shard].final = numbers
        effects = self._finish()
        effects += self._report(now) if effects else []
        return [*effects, *handover.proceed(self.state)]

    def _finish(self) -> list[Effect]:
        """When all final versions are adopted, the model takes them once more (rule 27)."""
        state = self.state
        if state.finished or not all(map(state.is_final, state.slices.values())):
            return []
        state.finished = True
        if state.configure.observer:
            return [Command(Finished())]
        again = [PlaceValue(*each.key, each.number) for each in state.slices.values()]
        end = Finished(again=tuple(state.slices), companion=companions.finished(state))
        return [*again, Command(end)]
