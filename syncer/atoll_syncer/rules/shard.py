"""One shard as a state machine without I/O: inputs with `now` in, effects out.

`Shard` turns each input into a list of effects, by the rules in the modules of this folder. It
waits for nothing and starts nothing, so a simulation runs it unchanged. Its driver owes it this;
model/effects says for each effect which input follows:

1. Read the whole log, and only then make a Shard with the history (storage/takeover says when).
   Call `start` once, then the rest. Read the slices of the history in the order of `next_unread`,
   and call for each `read_back`, or `lost` where the store does not give it back.
2. Call the inputs one at a time, from one thread, with a monotonic `now` that never goes back, and
   perform the effects of an input in order, before the next input.
3. Append one entry at a time, in order, and call `appended` when it is durable: the rules return
   what depends on an entry from there. Retry a full or unreachable store for ever. If another
   process holds that position of the log, call `deposed`.
4. Receive no transfer without an Accept of its head. When it is whole, verify length, checksum and
   values outside this machine, then call `transfer_verified` or `transfer_rejected`. Keep an offer
   whose Stage comes back until MergeOffers takes or Drop names it.
5. Ask `publish` for a head only when the session's stream is free; a newer PublishHead of the same
   slice replaces one that has not been sent.
6. Deliver in order for each session, and call `session_closed` once both streams are gone. After an
   EndSession nothing that comes on the session counts, so its streams may be closed later.
7. Repeat an Ask until the registrar answers, but for a Hello: the rules ask again by themselves.
8. Call `tick_time` no later than `deadline()`; look at it again after every input.

Most inputs end with `_move`, which does all that may have become possible.
"""

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.run_file import Expected
from atoll_protos.job.schedule import Length
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, EndProcess, EndSession, end_session
from atoll_syncer.model.history import History
from atoll_syncer.model.log import FoundCheckpoint
from atoll_syncer.model.roster import NOTHING_FOUND, PLAIN_TEXT, Certificate, MergeFindings, Slot
from atoll_syncer.model.state import Beginning, new_state
from atoll_syncer.rules import (
    calls,
    ending,
    publishing,
    recovery,
    rounds,
    runs,
    seeding,
    sessions,
    shut_out,
    status,
    validation,
)
from atoll_syncer.rules.publishing import take_data_states

PERIODIC_SECONDS: Final = 0.25
P = ParamSpec("P")
Input = Callable[Concatenate["Shard", P], list[Effect]]


def ends_sessions(rule: Input[P]) -> Input[P]:
    """Wrap an input whose effects may end sessions, which then count no more (rule 5)."""

    def settled(self: "Shard", /, *args: P.args, **kwargs: P.kwargs) -> list[Effect]:
        return self._without_ended(rule(self, *args, **kwargs))

    return settled


class Shard:
    """The dispatch of inputs; each rule is in the module of its topic. Times are monotonic s."""

    def __init__(self, beginning: Beginning, history: History, now: float) -> None:
        self.state = new_state(beginning, history, now)
        self._periodic_at = now

    def publish(self, session: int, fragment: int) -> pb.Publish | None:
        return publishing.publish(self.state, session, fragment)

    def start(self, now: float) -> list[Effect]:
        history = self.state.history  # each lost entry may have been the record of a term
        record = runs.begin_term(self.state, history.epoch + history.lost_entries + 1)
        begun = [record, *runs.first(self.state), *self.tick_time(now)]
        return [*begun, *recovery.suspected(self.state, now)]

    @ends_sessions
    def appended(self, entry: log.Entry, now: float) -> list[Effect]:
        state = self.state
        state.history.apply(entry)
        match entry:
            case log.TermBegun():
                return runs.term_begun(state, now)
            case log.RunStarted():
                begun = runs.started(state, entry)
                sessions.recovered(state)
                return [*begun, *sessions.admit_early(state, now)]
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
                return [*begun, *seeding.release(state, now)]
            case log.Committed(recovered=True):
                sessions.recovered(state)
                return [*recovery.committed(state, entry), *self._move(now)]
            case log.Committed():
                sessions.merged(state, entry)
                return [*rounds.committed(state, entry, now), *self._move(now)]
            case log.Ended() | log.ShardFinal() | log.Closed():
                return ending.appended(state, entry)
            case _:
                return []

    def deposed(self, now: float) -> list[Effect]:
        """Another process has the shard: what this one has under way cannot become durable."""
        return [EndProcess(ExitCode.SUPERSEDED, "another process has taken this shard over")]

    def stopping(self) -> list[Effect]:
        """Make durable what was trained since the last entry: the process is to stop."""
        unwritten = self.state.unwritten if self.state.term.durable else {}
        uptime = self.state.sessions.uptime
        return [Append(log.Counted(trained=unwritten, uptime=uptime))] if unwritten else []

    def deadline(self) -> float:
        ends = [self._periodic_at + PERIODIC_SECONDS, *rounds.deadlines(self.state)]
        return max(min(ends), self._periodic_at + 0.001)

    def tick_time(self, now: float) -> list[Effect]:
        self._periodic_at = now
        sessions.time_passed(self.state, now)
        calls.catch_up(self.state, now)
        overlong = self._without_ended(sessions.overlong(self.state, now))
        silent = [*status.unanswered(self.state, now), *status.unseeded(self.state, now)]
        ends = [*shut_out.time_passed(self.state, now), *silent]
        unanswered = [*overlong, *self._without_ended(ends)]
        begins = [*runs.time_passed(self.state, now), *seeding.release(self.state, now)]
        moved = [*self._move(now), *calls.say_again(self.state, now)]
        return [*unanswered, *begins, *moved, *ending.index_when_whole(self.state)]

    @ends_sessions
    def length_heard(self, length: Length, now: float) -> list[Effect]:
        return [*ending.heard(self.state, length), *self._move(now)]

    @ends_sessions
    def expected_heard(self, expected: Expected, now: float) -> list[Effect]:
        ends = self._without_ended(shut_out.heard(self.state, expected, now))
        return [*ends, *seeding.release(self.state, now), *self._move(now)]

    # ------------------------------------------------------------ inputs: sessions

    @ends_sessions
    def session_opened(
        self, session: int, join: pb.Join, now: float, certificate: Certificate = PLAIN_TEXT
    ) -> list[Effect]:
        if objection := validation.of_join(self.state, join):
            return [end_session(session, pb.BAD_MESSAGE, objection)]
        effects = sessions.opened(self.state, session, join, certificate, now)
        return [*effects, *seeding.release(self.state, now)]

    def session_closed(self, session: int, now: float) -> list[Effect]:
        """Both streams are gone. A session that the rules have ended counts no more already."""
        return [*sessions.closed(self.state, session), *self._move(now)]

    @ends_sessions
    def message(self, session: int, message: pb.ToShard, now: float) -> list[Effect]:
        state, sender = self.state, self.state.sessions.open.get(session)
        if sender is None:
            return []
        if objection := validation.of_message(state, message):
            return [end_session(session, pb.BAD_MESSAGE, objection)]
        kind = message.WhichOneof("kind")
        match kind:
            case "report" if sender.welcomed and sender.slot:
                if not sessions.reported(state, sender, message.report, now):
                    return []
                claimed = recovery.versions_claimed(state, sender, now)
                return [*claimed, *self._move(now, state.sessions.slots[sender.slot])]
            case "leave" if sender.welcomed and sender.slot:
                sessions.leaves(state, sender, message.leave)
                return []
            case "model" if sender.welcomed and sender.slot:
                return seeding.model_arrived(state, sender, message.model)
            case "evaluation" if sender.join.observer:
                return sessions.evaluated(state, message.evaluation)
        return [end_session(session, pb.BAD_MESSAGE, f"message {kind} is out of place here")]

    # ------------------------------------------------------------ inputs: transfers

    @ends_sessions
    def transfer_started(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        return sessions.started(self.state, session, transfer, now)

    @ends_sessions
    def transfer_verified(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Whole, checksum right, all values finite: only now it counts (rule 12)."""
        standing = self.state.standing(now)
        return sessions.verified(self.state, session, transfer, standing, now)

    def transfer_rejected(
        self,
        session: int,
        reason: str,
        now: float,
        transfer: pb.Transfer | None = None,
        *,
        final: bool = False,
    ) -> list[Effect]:
        """`transfer`: None where none has begun. `final`: it came as it was sent, and is wrong."""
        ends = sessions.rejected(self.state, session, reason, now, transfer, final=final)
        return [*self._without_ended(ends), *self._move(now)]

    # ------------------------------------------------------------ inputs: values

    def next_unread(self) -> int | None:
        """Return the slice whose head is to be read next; None: all are here."""
        return publishing.next_unread(self.state)

    def read_back(self, fragment: int, now: float) -> list[Effect]:
        """Take a slice's head, read from the store."""
        effects = publishing.is_here(self.state, fragment)
        return [*effects, *ending.say_final(self.state), *self._move(now)]

    def lost(self, fragments: set[int], now: float) -> list[Effect]:
        """Take the slices whose heads the store does not give back."""
        publishing.are_lost(self.state, fragments)
        return recovery.found_damaged(self.state, fragments, now)

    def previous_lost(self, fragment: int, now: float) -> list[Effect]:
        """Note that the version before the head is gone or damaged, too."""
        recovery.earlier_is_lost(self.state, fragment)
        return self._move(now)

    def data_states_read(self, found: Mapping[str, bytes]) -> list[Effect]:
        """By slot: what the store holds of those in the history; before the first session."""
        take_data_states(self.state, found)
        return []

    @ends_sessions
    def does_not_fit(
        self, digest: str, reason: str, code: pb.Code = pb.OTHER_LAYOUT
    ) -> list[Effect]:
        """There is no memory for the layout that SetModel announced, or no checkpoint of it."""
        return seeding.does_not_fit(self.state, digest, reason, code)

    def seeded(
        self, digests: tuple[str, ...], objects: tuple[str, ...], merges: tuple[int, ...] = ()
    ) -> list[Effect]:
        """Version 0 is written; `merges` that its momentum has taken in, of a checkpoint."""
        return seeding.stored(self.state, digests, objects, merges)

    def checkpoint_found(self, found: FoundCheckpoint) -> list[Effect]:
        """Take the checkpoint with which the run is to begin."""
        return runs.checkpoint_found(self.state, found)

    def no_checkpoint(self) -> list[Effect]:
        """Begin the run with a seed."""
        return runs.no_checkpoint(self.state)

    def merged(
        self,
        fragment: int,
        digest: str,
        name: str,
        now: float,
        found: MergeFindings = NOTHING_FOUND,
        data_states: str = "",
    ) -> list[Effect]:
        """Take a round's version, written without what its merge left out, or one that was held.

        `data_states` is the object with those of the MergeOffers; empty where it had none.
        """
        lost = self.state.recovery
        if lost is not None and fragment in lost.asked:
            return recovery.stored(self.state, fragment, digest, name)
        return rounds.merged(self.state, fragment, digest, name, found, data_states)

    def part_written(self, file: str, digest: str) -> list[Effect]:
        return ending.part_written(self.state, file, digest)

    def exported(self) -> list[Effect]:
        return [Append(log.Closed(result="Complete", reason="all slices are final"))]

    # ------------------------------------------------------------ inputs: registrar

    def answered(self, reply: Any, now: float) -> list[Effect]:
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

    @ends_sessions
    def registrar_request(self, token: int, request: Any, now: float) -> list[Effect]:
        return runs.requested(self.state, token, request)

    # ------------------------------------------------------------ what follows from an input

    def _move(self, now: float, only: Slot | None = None) -> list[Effect]:
        """Do all that an input and the time have made possible.

        As long as a report of `only` moves neither the tick nor who is Training, no other slot is
        asked, so that the cost of a report does not grow with the number of learners.
        """
        state = self.state
        back = self._without_ended(recovery.move(state, now))
        if not state.serving or state.history.ended:
            return back
        standing = state.standing(now)
        moved = calls.move(state, standing, now)
        if only is not None and rounds.has_seen(state, standing):
            begun = ending.last_rounds(state, standing, now)
        else:
            only = None
            begun = [*ending.last_rounds(state, standing, now), *calls.start_due(state, now)]
        looked = rounds.look_at_all(state, standing, now, only)
        return [*back, *moved, *begun, *looked, *ending.end_when_finished(state)]

    def _without_ended(self, effects: list[Effect]) -> list[Effect]:
        """Drop sessions that these effects end, although their streams may stay open."""
        for each in [each for each in effects if isinstance(each, EndSession)]:
            effects = [*effects, *sessions.ended(self.state, each)]
        return effects
