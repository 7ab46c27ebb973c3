"""One shard as a machine without I/O: inputs with `now` in, effects out (PROTOCOL.md)."""

from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.layout import Layout
from atoll_protos.run import RunFile, Sync
from atoll_syncer.model import log
from atoll_syncer.model.effects import Effect, Exit
from atoll_syncer.model.log import History
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import new_state
from atoll_syncer.rules import clock as reports
from atoll_syncer.rules import (
    ending,
    merging,
    publishing,
    registrar,
    reign,
    runs,
    seeding,
    transfers,
)
from atoll_syncer.rules import recovery as recovering
from atoll_syncer.rules import rounds as committing
from atoll_syncer.rules import sessions as joining
from atoll_syncer.rules.admission import end_session

PERIODIC_SECONDS: Final = 0.25


class Shard:
    """The dispatch; each rule is in the module of its topic.

    The driver performs effects in order; an Append is answered by `appended` once it is durable,
    a Merge or StoreHeld by `merged`, a StoreSeed by `seeded`. Nothing that depends on an entry is
    sent before `appended`. `new_run` is the random id that this process would mint.
    """

    def __init__(
        self,
        *,
        run_file: RunFile,
        shard: int,
        pod: str,
        instance: str,
        history: History,
        fresh: bool,
        new_run: str,
        now: float,
    ) -> None:
        self.state = new_state(
            run_file=run_file,
            shard=shard,
            pod=pod,
            instance=instance,
            history=history,
            fresh=fresh,
            new_run=new_run,
            now=now,
        )
        self._periodic_at = now

    # ------------------------------------------------------------ what the driver reads

    @property
    def number(self) -> int:
        """Of this shard."""
        return self.state.number

    @property
    def pod(self) -> str:
        """Whose process this is."""
        return self.state.pod

    @property
    def instance(self) -> str:
        """This process start."""
        return self.state.instance

    @property
    def registrar(self) -> bool:
        """Whether this shard has the second job."""
        return self.state.registrar

    @property
    def run_file(self) -> RunFile:
        """The job's."""
        return self.state.run_file

    @property
    def sync(self) -> Sync:
        """The run file's."""
        return self.state.sync

    @property
    def history(self) -> History:
        """What is durable; to be read only."""
        return self.state.history

    @property
    def layout(self) -> Layout | None:
        """None until a learner has told the model."""
        return self.state.layout

    @property
    def sessions(self) -> dict[int, Session]:
        """To be read only."""
        return self.state.sessions

    @property
    def complete(self) -> bool:
        """The job is Complete."""
        return self.state.complete

    def publish(self, session: int, fragment: int) -> pb.Publish | None:
        """The head as this session gets it, asked for when it is actually sent."""
        return publishing.publish(self.state, session, fragment)

    def held_by(self, session: int, fragment: int) -> int | None:
        """The version number that a session's learner holds, bit for bit."""
        receiver = self.state.sessions.get(session)
        return None if receiver is None else receiver.held.get(fragment)

    # ------------------------------------------------------------ inputs: life

    def start(self, now: float) -> list[Effect]:
        """Begin this process's reign (rule 20)."""
        record = reign.begin(self.state, self.state.history.epoch + 1)
        return [record, *runs.first(self.state), *self.tick_time(now)]

    def appended(self, entry: log.Entry, now: float) -> list[Effect]:
        """The entry is durable."""
        state = self.state
        state.history.apply(entry)
        match entry:
            case log.Reign():
                return reign.begun(state, now)
            case log.RunStarted():
                return runs.started(entry)
            case log.Taken():
                return joining.taken(state, entry, now)
            case log.Begun(shard=shard) if shard == state.number:
                state.marked = True
                return [*recovering.found_empty(state, now), *self._move(now)]
            case log.Seeded():
                return seeding.seeded(state)
            case log.Committed(recovered=True):
                return [*recovering.committed(state, entry), *self._move(now)]
            case log.Committed():
                return [*committing.committed(state, entry, now), *self._move(now)]
            case log.Ended() | log.ShardFinal() | log.Closed():
                return ending.appended(state, entry)
            case _:
                return []

    def deposed(self, now: float) -> list[Effect]:
        """Another process reigns: whatever this one still holds cannot be created."""
        return [Exit(ExitCode.SUPERSEDED, "another process reigns over this shard")]

    def deadline(self) -> float:
        """When `tick_time` is due at the latest."""
        ends = [self._periodic_at + PERIODIC_SECONDS]
        for each in self.state.rounds.values():
            if each.closed_at is None and self.state.serving:
                if each.deadline is not None:
                    ends.append(each.deadline)
                elif each.quorum_at is not None and not self.sync.lockstep:
                    ends.append(each.quorum_at + each.grace_seconds)
        return max(min(ends), self._periodic_at + 0.001)

    def tick_time(self, now: float) -> list[Effect]:
        """Time has passed."""
        self._periodic_at = now
        return [*runs.time_passed(self.state, now), *self._move(now)]

    # ------------------------------------------------------------ inputs: sessions

    def session_opened(self, session: int, join: pb.Join, now: float) -> list[Effect]:
        """A Join; answered by Welcome or by the session's end."""
        return joining.opened(self.state, session, join, now)

    def session_closed(self, session: int, now: float) -> list[Effect]:
        """Both streams are gone."""
        if session not in self.state.sessions:
            return []
        return [*joining.closed(self.state, session), *self._move(now)]

    def message(self, session: int, message: pb.ToShard, now: float) -> list[Effect]:
        """A control message of a session."""
        state, sender = self.state, self.state.sessions.get(session)
        if sender is None:
            return []
        kind = message.WhichOneof("kind")
        match kind:
            case "report" if sender.welcomed and sender.slot:
                if not reports.reported(state, sender, message.report, now):
                    return []
                return [*recovering.heard(state, sender, now), *self._move(now)]
            case "leave" if sender.slot in state.slots:
                state.slots[sender.slot].left = message.leave.reason or "left"
                return []
            case "model" if sender.welcomed:
                return joining.modelled(state, sender, message.model)
            case "evaluation" if sender.join.observer:
                state.evaluation = message.evaluation
                return []
        return [end_session(session, pb.BAD_MESSAGE, f"message {kind} is out of place here")]

    # ------------------------------------------------------------ inputs: transfers

    def transfer_started(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Its head has come: an Accept, or its session's end."""
        return transfers.started(self.state, session, transfer)

    def transfer_verified(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Whole, checksum right, all values finite: only now it counts (rule 12)."""
        return transfers.verified(self.state, session, transfer, now)

    def transfer_rejected(self, session: int, reason: str, now: float) -> list[Effect]:
        """Truncated, corrupt, not finite: that session ends and nothing else."""
        return transfers.rejected(self.state, session, reason)

    # ------------------------------------------------------------ inputs: values

    def lost(self, fragments: set[int], now: float) -> list[Effect]:
        """What the store does not give back of these slices' heads; before the first session."""
        return recovering.restored(self.state, fragments, now)

    def seeded(self, digests: tuple[str, ...], objects: tuple[str, ...]) -> list[Effect]:
        """Version 0 is written, by slice."""
        return seeding.stored(self.state, digests, objects)

    def merged(self, fragment: int, digest: str, name: str, now: float) -> list[Effect]:
        """A round's version is written, or one that a learner held."""
        recovery = self.state.recovery
        if recovery is not None and fragment in recovery.asked:
            return recovering.stored(self.state, fragment, digest, name)
        return committing.merged(self.state, fragment, digest, name)

    def part_written(self, file: str, digest: str) -> list[Effect]:
        """This shard's part of the export is there."""
        return ending.part_written(self.state, file, digest)

    def exported(self) -> list[Effect]:
        """The index is written."""
        return ending.exported()

    # ------------------------------------------------------------ inputs: registrar

    def answered(self, reply: Any, now: float) -> list[Effect]:
        """The registrar's answer to an Ask."""
        match reply:
            case pb.HelloReply():
                return [*runs.told(self.state, reply, now), *self._move(now)]
            case pb.MarkBegunReply():
                self.state.marked = True
                return self._move(now)
            case pb.ReportFinalReply():
                self.state.part_told = True
                return []
            case _:
                return []

    def registrar_request(self, token: int, request: Any, now: float) -> list[Effect]:
        """A call of another shard or of the operator; Reply follows once it is durable."""
        return registrar.requested(self.state, token, request)

    # ------------------------------------------------------------ what may have become possible

    def _move(self, now: float) -> list[Effect]:
        """What is lost, the clock, the end, rounds that are due, rounds that may close."""
        state = self.state
        back = recovering.move(state, now)
        if not state.serving or state.history.ended:
            return back
        return [
            *back,
            *reports.move_clock(state, now),
            *ending.last_rounds(state, now),
            *merging.start_due(state, now),
            *merging.look_at_all(state, now),
            *ending.end_when_done(state),
        ]
