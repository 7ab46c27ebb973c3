r"""A learner's or observer's side of the protocol: a state machine without I/O.

Theory of operation
-------------------
`Exchange` is what the transport process thinks with. It has no clock, thread, socket or array. Each
input is a method call that carries `now`, and returns the effects which the input has; the driver
(transport/transport.py) performs them. The simulation runs the same class in virtual time.

          shards                                          training process
     connected, disconnected, message,                boundary, leave, evaluated
     publish_started, published  \                     /
                                  v                   v
                              +---------------------------+
        time: tick_time ----> |         Exchange          |
                              |  State: shards, slices,   |
                              |  clock, own progress      |
                              +---------------------------+
                                  |                   |
     Dial, HangUp, SendMessage,   v                   v   Command: Start, Tick, Adopt, Capture,
     SendOffer, SendSeed, SendHeld                        Proceed, Finished, Fail, GiveCompanion
                   Place, Promote, Discard: values; Record: telemetry

A learner's life: it *joins* (joining.py) until all shards have welcomed it and all slices are
adopted; it *trains*, and every slice goes around this circle on its own:

     base held: steps and tokens are counted
        -> the slice is captured at a boundary             (handover.py)
        -> it is offered, for a Call or at its due position (handover.py)
        -> a Publish of a newer version arrives            (adoption.py)
        -> it is adopted at a boundary and is the new base  (adoption.py), counters begin at 0;

and it is *finished* when every shard has said Final and the final versions are adopted. Then it
stays connected until the training process leaves.

What the driver must do:
1. Perform the effects of one input in order, and all of them before the next input.
2. For each Dial: call `connected` at most once, and then `disconnected` exactly once.
3. For each incoming value: call `publish_started` with its head before memory is allocated, and
   drop the session if it returns False. When the value is whole and verified, keep it under (shard,
   fragment, number) until Promote or Discard names it, and call `published`.
4. On SendOffer, read the capture region at once. If its counter shows that it was overwritten, send
   nothing and, as long as the session lasts, call `capture_lost`.
5. Call `tick_time` when `deadline()` is reached; any input may change the deadline.
6. Let `now` be monotonic seconds, the same for all inputs.

What it can rely on: at most one Adopt and one Capture per slice are outstanding; at most two
candidates per slice are kept; no offer is sent without its credit; nothing is sent to a shard that
has not welcomed this process, except a Join.
"""

from collections.abc import Sequence
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.layout import Layout
from atoll_protos.length import Length, heard
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.run import RunFile
from atoll_worker.link.messages import Boundary, Finished, JobLength, Tick
from atoll_worker.rules import adoption, companions, handover, joining, reports, validation
from atoll_worker.rules.effects import (
    Command,
    Effect,
    HangUp,
    Place,
    Record,
    SendHeld,
    SendMessage,
    SendSeed,
)
from atoll_worker.rules.slices import SliceState
from atoll_worker.rules.state import Connection, new_state

REPORT_SECONDS: Final = 2.0  # without boundaries: the training thread is slow or stuck


class Exchange:
    """See the module's theory of operation. `layout` must be the one that the run's hash names.

    `slot` is empty for an observer; `instance` is this start of the process, and no other's.
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
        frozen_digest: str = "",
        has_companion: bool = False,
    ) -> None:
        self._state = new_state(
            run_file=run_file,
            layout=layout,
            slot=slot,
            uid=uid,
            instance=instance,
            observer=observer,
            frozen_digest=frozen_digest,
            has_companion=has_companion,
        )
        self._reported_at = 0.0
        self._evaluation: pb.Evaluation | None = None

    # ------------------------------------------------------------ what the driver reads

    @property
    def run(self) -> str:
        """The run's id; empty until the registrar has welcomed this process."""
        return self._state.run

    @property
    def slot(self) -> str:
        """The learner's name, region and ordinal; empty for an observer."""
        return self._state.slot

    @property
    def incarnation(self) -> int:
        """The number that the registrar gave to this instance; 0 before."""
        return self._state.incarnation

    @property
    def owes_companion(self) -> bool:
        """Whether the registrar may still need what this learner has given for the export."""
        return self._state.companion_owed

    @property
    def slices(self) -> dict[tuple[int, int], SliceState]:
        """All slices by (shard, fragment), to be read only."""
        return self._state.slices

    # ------------------------------------------------------------ inputs: connections

    def start(self, now: float) -> list[Effect]:
        """Begin to join; the first input."""
        self._reported_at = now
        return joining.begin(self._state)

    def connected(self, shard: int, now: float) -> list[Effect]:
        """The control stream is open."""
        return joining.connected(self._state, shard)

    def disconnected(self, shard: int, reason: str, now: float) -> list[Effect]:
        """Both streams are gone, or could not be opened."""
        return joining.disconnected(self._state, shard, reason, now)

    def message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        """A control message of a shard; before its Welcome every other kind is ignored."""
        if not self._state.shards[shard].open:
            return []
        if objection := validation.of_message(self._state, shard, message):
            return joining.hang_up(self._state, shard, objection)
        match message.WhichOneof("kind"):
            case "welcome":
                return self._welcome(shard, message.welcome, now)
            case "end":
                return joining.refused(self._state, shard, message.end)
        if self._state.shards[shard].welcomed:
            return self._welcomed_message(shard, message, now)
        return []

    # ------------------------------------------------------------ inputs: values

    def publish_started(self, shard: int, publish: pb.Publish, now: float) -> bool:
        """Whether the coming value may be received; if not, the session is to be dropped."""
        if not self._state.shards[shard].open or validation.of_publish(self._state, shard, publish):
            return False
        return adoption.started(self._state, shard, publish, now)

    def published(self, shard: int, publish: pb.Publish, now: float) -> list[Effect]:
        """A value is whole, verified and decoded, and the driver keeps it."""
        effects = adoption.arrived(self._state, shard, publish, now)
        return [*effects, *handover.proceed(self._state)]

    def capture_lost(self, shard: int, offer: pb.Offer) -> list[Effect]:
        """A SendOffer could not be performed: its region has been overwritten since."""
        return handover.lost(self._state, shard, offer.slice, offer.base, offer.capture)

    # ------------------------------------------------------------ inputs: training process

    def boundary(self, boundary: Boundary, now: float) -> list[Effect]:
        """A step is finished, or more work at the same boundary (`boundary.again`)."""
        state = self._state
        if not boundary.again:
            self._count(boundary)
        effects: list[Effect] = []
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
            effects.append(Record(state.progress.telemetry(boundary, state.clock.tick, records)))
        effects += joining.start(state)
        effects += self._hand_over(boundary, now)
        return [*effects, *self._finish(), *self._report(now)]

    def leave(self, reason: str, now: float) -> list[Effect]:
        """The training process ends."""
        return reports.leave(self._state, reason)

    def evaluated(self, evaluation: pb.Evaluation) -> list[Effect]:
        """An observer's measurement; the registrar gets the newest, again when it is back."""
        self._evaluation = evaluation
        if not self._state.shards[REGISTRAR_SHARD].welcomed:
            return []
        return [SendMessage(REGISTRAR_SHARD, pb.ToShard(evaluation=evaluation))]

    # ------------------------------------------------------------ inputs: credentials

    def troubled(self, trouble: str, now: float) -> list[Effect]:
        """What is wrong with this process's credentials now, in one line; empty: nothing.

        Open sessions go on, so the shards hear it while they can (rule 37).
        """
        state = self._state
        if trouble == state.trouble:
            return []
        state.trouble = trouble
        said = [Record({"event": "warning", "reason": trouble})] if trouble else []
        return [*said, *self._report(now)]

    def renewed(self, shards: Sequence[int]) -> list[Effect]:
        """These sessions began with certificates that others have replaced: dial again (rule 41).

        Not while a Call is to be answered, a version is on its way or `step()` waits for one.
        """
        state = self._state
        if state.step_waits or not state.started:
            return []
        return [HangUp(each) for each in shards if joining.is_quiet(state, each)]

    # ------------------------------------------------------------ inputs: time

    def tick_time(self, now: float) -> list[Effect]:
        """The deadline is reached: dial again, and report when no boundary comes."""
        effects = joining.dial_due(self._state, now)
        if now >= self._reported_at + REPORT_SECONDS:  # the same float as in `deadline`
            effects += self._report(now)
        return effects

    def deadline(self) -> float:
        """When `tick_time` is due at the latest."""
        dials = [each.dial_at for each in self._state.shards if each.dial_at is not None]
        return min([self._reported_at + REPORT_SECONDS, *dials])

    # ------------------------------------------------------------ steps

    def _count(self, boundary: Boundary) -> None:
        """Count the step for this learner and for every slice, before anything else happens."""
        state = self._state
        state.progress.count(boundary)
        if state.run_file.sync.lockstep:
            handover.catch_up(state)
        for each in state.slices.values():
            each.count(boundary.tokens)

    def _hand_over(self, boundary: Boundary, now: float) -> list[Effect]:
        """After counting and adoptions: offer what is captured, and ask for what is due."""
        state = self._state
        if state.observer:
            return []
        if not state.run_file.sync.lockstep:
            soon = [] if boundary.again else handover.due_soon(state, now)
            return [*handover.answers(state), *handover.captures(state, soon)]
        effects = [] if boundary.again else handover.begin_wait(state)
        effects += handover.hand_over(state, boundary.captured)
        return [*effects, *adoption.adopt_all(state), *handover.proceed(state)]

    def _report(self, now: float) -> list[Effect]:
        """Report to every shard; the next one is due REPORT_SECONDS from now at the latest."""
        self._reported_at = now
        return reports.report(self._state)

    # ------------------------------------------------------------ messages

    def _welcomed_message(self, shard: int, message: pb.ToLearner, now: float) -> list[Effect]:
        """Messages of an open session. Kinds that are not known are ignored: they may be newer."""
        match message.WhichOneof("kind"):
            case "call" if not self._state.run_file.sync.lockstep:
                return handover.called(self._state, shard, message.call)
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
                return companions.asked(self._state, message.send_companion)
            case "companion_taken":
                companions.taken(self._state)
        return []

    def _welcome(self, shard: int, welcome: pb.Welcome, now: float) -> list[Effect]:
        """A session begins; what died with the last one is sent again."""
        state = self._state
        effects = joining.welcomed(state, shard, welcome, now)
        if state.shards[shard].connection is not Connection.WELCOMED:
            return effects
        if state.run_file.sync.lockstep:
            heads = {each.slice: each.version.number for each in welcome.heads}
            effects += handover.hand_over_again(state, shard, heads)
        effects += self._hear(heard(welcome.length))
        effects += self._tick(shard, welcome.tick, now)
        if shard == REGISTRAR_SHARD and self._evaluation is not None:
            effects += self.evaluated(self._evaluation)
        return [*effects, *joining.start(state), *self._report(now)]

    def _tick(self, shard: int, tick: int, now: float) -> list[Effect]:
        """Move the job's clock if the slowest shard has moved (rule 8)."""
        state = self._state
        known = state.shards[shard]
        known.tick = max(known.tick, tick)
        if not state.clock.move(min(each.tick for each in state.shards), now):
            return []
        return [Command(Tick(tick=state.clock.tick))]

    def _hear(self, told: Length) -> list[Effect]:
        """The job may have another length (rule 27).

        One that waits in step() goes on, if it was at the former end, or hands everything over, if
        it is at the new one.
        """
        state = self._state
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
        """Send version 0: the capture regions hold it until the first capture (rule 1)."""
        if self._state.captures_asked:
            reason = f"shard {shard} asks for a seed, but training has begun; start again"
            return joining.fail(self._state, ExitCode.TRY_AGAIN, reason)
        return [SendSeed(shard)]

    def bad_seed(self, tensors: Sequence[str]) -> list[Effect]:
        """The model that the job would begin with has values that are not finite."""
        reason = (
            f"model.{tensors[0]}: has values that are not finite, and the job would begin with"
            " them; initialise it, or load another checkpoint"
        )
        return joining.fail(self._state, ExitCode.BAD_INPUT, reason)

    def _send_held(self, shard: int, wanted: pb.SliceVersion) -> list[Effect]:
        """Send the base that is held, if it is that version or a later one of the run (rule 22)."""
        each = self._state.slices.get((shard, wanted.slice))
        known = each is not None and each.held is not None and not each.orphaned
        if each is None or not known or each.number < wanted.version.number:
            reason = f"slice {wanted.slice}: version {wanted.version.number} is not held here"
            return [Record({"event": "not held", "shard": shard, "reason": reason})]
        version = pb.SliceVersion(slice=wanted.slice, version=each.held)
        return [SendHeld(shard, pb.Held(version=version, lineage=each.lineage))]

    def _final(self, shard: int, final: pb.Final, now: float) -> list[Effect]:
        """A shard's last versions are known; they may have arrived already, or may still come."""
        numbers = {each.slice: each.version.number for each in final.versions}
        self._state.shards[shard].final = numbers
        effects = self._finish()
        effects += self._report(now) if effects else []
        return [*effects, *handover.proceed(self._state)]

    def _finish(self) -> list[Effect]:
        """Finish when every shard has said Final and its final versions are adopted (rule 27).

        The model may have been trained on since it took the first of them, and with Blend it has
        only a share of them. It takes all of them once more, so that a finished learner has the
        job's values.
        """
        state = self._state
        if state.finished:
            return []
        if not all(state.is_final(each) for each in state.slices.values()):
            return []
        state.finished = True
        gives = companions.finished(state)
        if state.observer:
            return [Command(Finished()), *gives]
        again = [Place(*each.key, each.number) for each in state.slices.values()]
        return [*again, Command(Finished(again=tuple(state.slices))), *gives]
