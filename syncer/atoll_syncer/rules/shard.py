"""One shard as a state machine without I/O: inputs with `now` in, effects out.

`Shard` turns each input into a list of effects, by the rules in the modules of this folder. It
reads no clock, waits for nothing and starts nothing, so a simulation runs it unchanged. What the
driver must do:

1. Read the whole log, and only then make a Shard with the history (storage/takeover says when).
2. Call `start` once, then `lost` with the slices that the store did not give back. Open no
   session before that.
3. Call the inputs one at a time, from one thread, with a monotonic `now` that never goes back.
4. Perform the effects of an input in order, before the next input.
5. Append: create the log's next entry, in order and one at a time, and call `appended` when it
   is durable. Nothing that depends on an entry is sent before that; the rules see to it by
   returning such effects from `appended`. Retry a full or unreachable store for ever. If another
   process holds that position of the log, call `deposed`.
6. Merge and StoreHeld: make the slice's new version, write its objects, then call `merged`.
   StoreSeed likewise, for all slices at once; then call `seeded`.
7. Accept: let the transfer come whose head was given to `transfer_started`; without an Accept it
   must not be received. When it is whole, verify length, checksum and values outside this
   machine, then call `transfer_verified` or `transfer_rejected`. An offer whose Stage effect
   comes back is kept until a Merge takes it or a Drop names it.
   A part of a companion is accepted likewise. When it is whole, ask `part_wanted`, write it as an
   object, then call `part_stored`.
8. PublishHead: when the session's stream is free, ask `publish` for the head and send that. A
   newer request for the same slice replaces one that has not been sent. PublishCompanion: after
   that, send the parts as they lie in these objects.
9. Send, EndSession: deliver in order for each session, and call `session_closed` once both
   streams are gone, also when the other side closed them. After an EndSession nothing that comes
   on the session counts, so its streams may be closed later.
10. Ask: call the registrar until it answers, then call `answered`. A Hello is not repeated; the
    rules ask again by themselves. Reply: answer the call with this token, after the entries
    before it are durable.
11. Call `tick_time` no later than `deadline()`; look at it again after every input.
12. WritePart, WriteIndex: write the export's files, then call `part_written` or `exported`.
13. Tape: append the line. It decides nothing, so a failure delays nothing.
14. Exit: end the process with this code. Renew the heartbeat until then (storage/takeover).

The states that Status shows follow from the parts of the State, in this order:

    Failed       a slice is lost that no learner holds; or else
    Complete     the job's end is logged at the registrar
    Recovering   something is lost, and comes back from learners
    Final        every slice had its last round
    Starting     no run is known yet; or it is not known whether this shard is marked begun
    Seeding      no version 0 yet
    Serving      rounds open and close

Every input changes the part of the State that it is about, and most end with `moves.move`, which
does all that may have become possible.
"""

from collections.abc import Mapping
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.expected import Expected
from atoll_protos.layout import Layout
from atoll_protos.length import Length
from atoll_protos.run import RunFile, Sync
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, Exit, end_session
from atoll_syncer.model.history import History
from atoll_syncer.model.roster import PLAIN_TEXT, Certificate, Session
from atoll_syncer.model.state import Beginning, new_state
from atoll_syncer.rules import (
    answers,
    clock,
    companions,
    data_states,
    ending,
    moves,
    publishing,
    records,
    recovery,
    rounds,
    runs,
    seeding,
    sessions,
    shut_out,
    transfers,
    validation,
)

PERIODIC_SECONDS: Final = 0.25


class Shard:
    """The dispatch of inputs; each rule is in the module of its topic.

    Times are monotonic seconds.
    """

    def __init__(
        self,
        *,
        run_file: RunFile,
        shard: int,
        pod: str,
        instance: str,
        history: History,
        beginning: Beginning,
        now: float,
    ) -> None:
        self.state = new_state(
            run_file=run_file,
            shard=shard,
            pod=pod,
            instance=instance,
            history=history,
            beginning=beginning,
            now=now,
        )
        self._periodic_at = now

    # ------------------------------------------------------------ what the driver reads

    @property
    def number(self) -> int:
        """Index of the shard in its job."""
        return self.state.number

    @property
    def pod(self) -> str:
        """UID of the pod in which this process runs."""
        return self.state.pod

    @property
    def instance(self) -> str:
        """Name of this start of the process."""
        return self.state.instance

    @property
    def registrar(self) -> bool:
        """Whether this shard has the second job."""
        return self.state.registrar

    @property
    def run_file(self) -> RunFile:
        """What the job asks for."""
        return self.state.run_file

    @property
    def sync(self) -> Sync:
        """How learners work together."""
        return self.state.sync

    @property
    def history(self) -> History:
        """What is durable. Only to be read."""
        return self.state.history

    @property
    def layout(self) -> Layout | None:
        """None until a learner has sent the model."""
        return self.state.layout

    @property
    def sessions(self) -> dict[int, Session]:
        """Open sessions by number. Only to be read."""
        return self.state.sessions.open

    @property
    def reached(self) -> tuple[int, int | None]:
        """The tick, and the length of the job in ticks; None: it is given in tokens."""
        return self.state.clock.tick, self.state.ending.length.steps

    @property
    def complete(self) -> bool:
        """The job is Complete."""
        return self.state.ending.complete

    def publish(self, session: int, fragment: int) -> pb.Publish | None:
        """The head as this session gets it, asked for when it is actually sent."""
        return publishing.publish(self.state, session, fragment)

    def held_by(self, session: int, fragment: int) -> int | None:
        """The version number that a session's learner holds, bit for bit."""
        receiver = self.state.sessions.open.get(session)
        return None if receiver is None else receiver.held.get(fragment)

    def commit_again(self, entry: log.Committed) -> dict[str, Any]:
        """The tape's line of a commit that an earlier process has not written."""
        return records.commit_again(self.state, entry)

    # ------------------------------------------------------------ inputs: life

    def start(self, now: float) -> list[Effect]:
        """Begin this process's term (rule 20)."""
        history = self.state.history  # each lost entry may have been the record of a term
        record = runs.begin_term(self.state, history.epoch + history.lost_entries + 1)
        return [record, *runs.first(self.state), *self.tick_time(now)]

    def appended(self, entry: log.Entry, now: float) -> list[Effect]:
        """The entry is durable."""
        return self._without_ended(self._appended(entry, now))

    def _appended(self, entry: log.Entry, now: float) -> list[Effect]:
        state = self.state
        state.history.apply(entry)
        match entry:
            case log.TermBegun():
                return runs.term_begun(state, now)
            case log.RunStarted():
                return [*runs.started(entry), *sessions.admit_early(state, now)]
            case log.Taken():
                effects = sessions.taken(state, entry, state.standing(now), now)
                return [*effects, *seeding.release(state, now)]
            case log.Begun(shard=shard) if shard == state.number:
                seeding.marked(state)
                return [*recovery.found_empty(state, now), *self._move(now)]
            case log.Seeded():
                rounds.seeded(state)
                recovery.seeded(state)
                begun = self._without_ended(seeding.seeded(state))  # who has another model is gone
                return [*begun, *seeding.release(state, now), *companions.ask(state)]
            case log.Companion():
                return [*companions.appended(state, entry), *ending.index_when_whole(state)]
            case log.Committed(recovered=True):
                sessions.recovered(state)
                return [*recovery.committed(state, entry), *self._move(now)]
            case log.Committed():
                return [*rounds.committed(state, entry, now), *self._move(now)]
            case log.Ended() | log.ShardFinal() | log.Closed():
                return [*ending.appended(state, entry), *companions.ask(state)]
            case _:
                return []

    def deposed(self, now: float) -> list[Effect]:
        """Another process has the shard: what this one has under way cannot become durable."""
        return [Exit(ExitCode.SUPERSEDED, "another process has taken this shard over")]

    def stopping(self) -> list[Effect]:
        """The process is told to stop: what was trained since the last entry becomes durable."""
        unwritten = self.state.unwritten if self.state.term.durable else {}
        return [Append(log.Counted(trained=unwritten))] if unwritten else []

    def deadline(self) -> float:
        """When `tick_time` is due at the latest."""
        ends = [self._periodic_at + PERIODIC_SECONDS, *moves.deadlines(self.state)]
        return max(min(ends), self._periodic_at + 0.001)

    def tick_time(self, now: float) -> list[Effect]:
        """Time has passed."""
        self._periodic_at = now
        clock.catch_up(self.state, now)
        overlong = self._without_ended(transfers.overlong(self.state, now))
        silent = [*answers.unanswered(self.state, now), *answers.unseeded(self.state, now)]
        ends = [*shut_out.time_passed(self.state, now), *silent]
        unanswered = [*overlong, *self._without_ended(ends)]
        begins = [*runs.time_passed(self.state, now), *seeding.release(self.state, now)]
        return [*unanswered, *begins, *self._move(now), *moves.export(self.state, now)]

    def length_heard(self, length: Length, now: float) -> list[Effect]:
        """The operator's file says how long the job is; it is read again and again."""
        return self._without_ended([*ending.heard(self.state, length), *self._move(now)])

    def expected_heard(self, expected: Expected, now: float) -> list[Effect]:
        """The operator's file names the job's learners; it is read again and again."""
        ends = self._without_ended(shut_out.heard(self.state, expected, now))
        return self._without_ended([*ends, *seeding.release(self.state, now), *self._move(now)])

    # ------------------------------------------------------------ inputs: sessions

    def session_opened(
        self, session: int, join: pb.Join, now: float, certificate: Certificate = PLAIN_TEXT
    ) -> list[Effect]:
        """A Join; answered by Welcome or by the session's end."""
        if objection := validation.of_join(self.state, join):
            return [end_session(session, pb.BAD_MESSAGE, objection)]
        effects = sessions.opened(self.state, session, join, certificate, now)
        return self._without_ended([*effects, *seeding.release(self.state, now)])

    def lane_opened(self, session: int, now: float) -> list[Effect]:
        """One more lane of a session that has several; once for each (rule 34)."""
        sessions.lane_opened(self.state, session, now)
        return self._move(now)

    def session_closed(self, session: int, now: float) -> list[Effect]:
        """Both streams are gone. A session that the rules have ended counts no more already."""
        return [*sessions.closed(self.state, session), *self._move(now)]

    def message(self, session: int, message: pb.ToShard, now: float) -> list[Effect]:
        """A control message of a session."""
        return self._without_ended(self._message(session, message, now))

    def _message(self, session: int, message: pb.ToShard, now: float) -> list[Effect]:
        state, sender = self.state, self.state.sessions.open.get(session)
        if sender is None:
            return []
        if objection := validation.of_message(state, sender, message):
            return [end_session(session, pb.BAD_MESSAGE, objection)]
        kind = message.WhichOneof("kind")
        match kind:
            case "report" if sender.welcomed and sender.slot:
                if not sessions.reported(state, sender, message.report, now):
                    return []
                claimed = recovery.versions_claimed(state, sender, now)
                return [*claimed, *moves.move(state, now, state.sessions.slots[sender.slot])]
            case "leave" if sender.welcomed and sender.slot:
                sessions.leaves(state, sender, message.leave)
                return []
            case "model" if sender.welcomed and sender.slot:
                return seeding.model_arrived(state, sender, message.model)
            case "evaluation" if sender.join.observer:
                return sessions.evaluated(state, message.evaluation)
        return [end_session(session, pb.BAD_MESSAGE, f"message {kind} is out of place here")]

    # ------------------------------------------------------------ inputs: transfers

    def transfer_started(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Its head has come: an Accept, or its session's end."""
        return self._without_ended(transfers.started(self.state, session, transfer, now))

    def transfer_verified(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Whole, checksum right, all values finite: only now it counts (rule 12)."""
        standing = self.state.standing(now)
        effects = transfers.verified(self.state, session, transfer, standing, now)
        return self._without_ended(effects)

    def part_wanted(self, session: int, part: pb.Companion) -> bool:
        """Whether a part of a companion that is whole must be stored."""
        return companions.wants(self.state, session, part)

    def part_stored(
        self, session: int, transfer: pb.Transfer, name: str, now: float
    ) -> list[Effect]:
        """A part of a companion is whole, and stored as this object; empty: it was not wanted."""
        return self._without_ended(transfers.part_stored(self.state, session, transfer, name, now))

    def transfer_rejected(
        self,
        session: int,
        reason: str,
        now: float,
        transfer: pb.Transfer | None = None,
        *,
        final: bool = False,
    ) -> list[Effect]:
        """Truncated, corrupt: that session ends and nothing else. Not finite: the offer is late.

        `transfer` is its head, None where it has not begun. `final`: the bytes are as they were
        sent, and their values are wrong.
        """
        ends = transfers.rejected(self.state, session, reason, now, transfer, final=final)
        return [*self._without_ended(ends), *self._move(now)]

    # ------------------------------------------------------------ inputs: values

    def lost(self, fragments: set[int], now: float) -> list[Effect]:
        """The slices whose heads the store does not give back; before the first session."""
        return recovery.restored(self.state, fragments, now)

    def data_states_read(self, found: Mapping[str, bytes]) -> list[Effect]:
        """By slot: what the store holds of those in the history; before the first session."""
        data_states.read(self.state, found)
        return []

    def does_not_fit(self, digest: str, reason: str) -> list[Effect]:
        """There is no memory for the values of the layout that SetModel announced."""
        return self._without_ended(seeding.does_not_fit(self.state, digest, reason))

    def seeded(self, digests: tuple[str, ...], objects: tuple[str, ...]) -> list[Effect]:
        """Version 0 is written, by slice."""
        return seeding.stored(self.state, digests, objects)

    def merged(
        self,
        fragment: int,
        digest: str,
        name: str,
        now: float,
        left_out: frozenset[str] = frozenset(),
        data_states: str = "",
    ) -> list[Effect]:
        """A round's version is written, without the offers of `left_out`, or one that was held.

        `data_states` is the object with the data states of the Merge; empty where it had none.
        """
        lost = self.state.recovery
        if lost is not None and fragment in lost.asked:
            return recovery.stored(self.state, fragment, digest, name)
        return rounds.merged(self.state, fragment, digest, name, left_out, data_states)

    def part_written(self, file: str, digest: str) -> list[Effect]:
        """This shard's part of the export is written."""
        return ending.part_written(self.state, file, digest)

    def exported(self) -> list[Effect]:
        """The index is written."""
        return ending.exported()

    # ------------------------------------------------------------ inputs: registrar

    def answered(self, reply: Any, now: float) -> list[Effect]:
        """The registrar's answer to an Ask."""
        match reply:
            case pb.HelloReply():
                return [*runs.hello_answered(self.state, reply, now), *self._move(now)]
            case pb.MarkBegunReply():
                return [*runs.mark_answered(self.state, reply), *self._move(now)]
            case pb.ReportFinalReply():
                ending.part_reported(self.state)
                return []
            case _:
                return []

    def objection(self, request: Any) -> str:
        """Why a call to the registrar is refused, before it is an input; empty when it is not."""
        return validation.of_call(self.state, request)

    def registrar_request(self, token: int, request: Any, now: float) -> list[Effect]:
        """A call of another shard or of the operator; Reply follows once it is durable."""
        return self._without_ended(runs.requested(self.state, token, request))

    # ------------------------------------------------------------ what follows from an input

    def _without_ended(self, effects: list[Effect]) -> list[Effect]:
        return moves.without_ended(self.state, effects)

    def _move(self, now: float) -> list[Effect]:
        return moves.move(self.state, now)
