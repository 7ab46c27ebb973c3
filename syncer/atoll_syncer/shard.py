"""One shard as a machine without I/O: inputs with `now` in, effects out (PROTOCOL.md).

The driver performs effects in order; an Append is answered by `appended` once it is durable, a
Merge, StoreSeed or StoreHeld by `merged` or `seeded`. Nothing that depends on an entry is sent
before `appended`.
"""

from collections import deque
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.layout import Layout, TensorSpec, build_layout, from_model
from atoll_protos.names import REGISTRAR_SHARD, ExitCode
from atoll_protos.run import RunFile
from atoll_protos.wire import ENCODINGS
from atoll_syncer import log, ticks
from atoll_syncer.admission import admit, check, refuse
from atoll_syncer.effects import (
    Accept,
    Append,
    Ask,
    Drop,
    Effect,
    EndSession,
    Exit,
    Merge,
    PublishHead,
    Reply,
    Send,
    SetModel,
    Stage,
    StoreSeed,
    Tape,
    WriteIndex,
    WritePart,
)
from atoll_syncer.grace import Timings, grace_seconds, step_seconds, too_slow
from atoll_syncer.log import History, Participant
from atoll_syncer.roster import Session, Slot, State
from atoll_syncer.rounds import Round, decide, weight

PERIODIC_SECONDS = 0.25
HELLO_SECONDS = 2.0
MINT_SECONDS = 30.0  # a registrar with an empty store asks first (rule 2)
LAST_ROUND_SECONDS = 10.0


class Shard:
    """See the module. `new_run` is the random id that this process would mint."""

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
        self.run_file, self.sync, self.number = run_file, run_file.sync, shard
        self.pod, self.instance, self.fresh, self.new_run = pod, instance, fresh, new_run
        self.history = history
        self.epoch = history.epoch  # of this process's reign, durable or about to be
        self.started_at = now
        self.layout: Layout | None = None
        self.sessions: dict[int, Session] = {}
        self.slots: dict[str, Slot] = {}
        self.clock = ticks.Clock(period=self.sync.period, tick=history.tick)
        self.clock.drawn_at = history.tick
        self.rounds: dict[int, Round] = {}
        self.starts: dict[int, int] = dict(history.due)
        self.timings = Timings()
        self.tick_times: deque[tuple[float, int]] = deque(maxlen=32)
        self.reigning = False  # the record of this reign is durable
        self.serving = False  # begun is durable: rounds may open
        self.begun_asked = False
        self.seeding: int | None = None  # session
        self.seeds: set[int] = set()
        self.done: set[int] = set()  # fragments that had their last round
        self.ending_at: float | None = None
        self.failed = ""
        self.run_asked_at = -HELLO_SECONDS
        self.spoken: set[str] = set()  # runs that learners and shards held (rule 2)
        self.held_runs: set[str] = set()  # those of which a learner held more than version 0
        self.pending: dict[str, int] = {}  # slot: session whose Taken is on its way
        self.tokens_of_owner: dict[tuple[str, int], int] = {}
        self.evaluation = pb.Evaluation()
        self.late = 0
        self.refused_zombies = 0
        self.complete = history.closed is not None
        self.index_asked = False
        self.periodic_at = now

    # ------------------------------------------------------------ inputs: life

    def start(self, now: float) -> list[Effect]:
        """Begin this process's reign (rule 20)."""
        effects: list[Effect] = [self._begin_reign(self.history.epoch + 1)]
        if self.history.tensors:
            specs = [TensorSpec(**{**t, "shape": tuple(t["shape"])}) for t in self.history.tensors]
            self.layout = build_layout(specs, self.sync.fragments, self.run_file.shards)
        if self.registrar and not self.history.run and self.fresh:
            effects.append(Append(log.RunStarted(run=self.new_run)))
        return [*effects, *self.tick_time(now)]

    def _begin_reign(self, epoch: int) -> Append:
        self.epoch = epoch
        return Append(log.Reign(epoch=epoch, pod=self.pod, instance=self.instance))

    def _reigns(self) -> list[Effect]:
        """The record is durable: from now on this process may welcome and commit (rule 20)."""
        self.reigning = True
        effects = self._begin() if self.history.heads else []
        return [*effects, WritePart()] if self.history.ended else effects

    def appended(self, entry: log.Entry, now: float) -> list[Effect]:
        """The entry is durable."""
        self.history.apply(entry)
        match entry:
            case log.Reign():
                return self._reigns()
            case log.RunStarted():
                if entry.run in self.held_runs and not self.history.heads:
                    self.failed = self.failed or f"learners hold versions of {entry.run}"
                return [Tape({"event": "run", "run": entry.run})]
            case log.Taken():
                return self._taken(entry, now)
            case log.Begun(shard=shard) if shard == self.number:
                self.serving = True
                return self._move(now)
            case log.Seeded():
                return self._on_seeded()
            case log.Committed():
                return self._on_committed(entry, now)
            case log.Ended():
                return [*self._say_final(), WritePart()]
            case log.ShardFinal():
                return self._index_when_whole()
            case log.Closed():
                self.complete = entry.result == "Complete"
                return [Tape({"event": "closed", "result": entry.result})]
            case _:
                return []

    def deposed(self, now: float) -> list[Effect]:
        """Another process reigns: whatever this one still holds cannot be created."""
        return [Exit(ExitCode.SUPERSEDED, "another process reigns over this shard")]

    def deadline(self) -> float:
        """When `tick_time` is due at the latest."""
        ends = [self.periodic_at + PERIODIC_SECONDS]
        for each in self.rounds.values():
            if each.closed_at is None:
                if each.deadline is not None:
                    ends.append(each.deadline)
                elif each.quorum_at is not None and not self.sync.lockstep:
                    ends.append(each.quorum_at + each.grace_seconds)
        return max(min(ends), self.periodic_at + 0.001)

    def tick_time(self, now: float) -> list[Effect]:
        """Time has passed."""
        self.periodic_at = now
        effects: list[Effect] = []
        if not self.registrar and now - self.run_asked_at >= HELLO_SECONDS and not self.complete:
            self.run_asked_at = now
            effects.append(Ask(self._hello()))
        waited = now - self.started_at >= MINT_SECONDS
        if self.registrar and not self.history.run and not self.fresh and waited:
            self.fresh = True  # once
            run = min(self.spoken, default=self.new_run)
            effects.append(Append(log.RunStarted(run=run)))
        return [*effects, *self._move(now)]

    # ------------------------------------------------------------ inputs: sessions

    def session_opened(self, session: int, join: pb.Join, now: float) -> list[Effect]:
        """A Join; answered by Welcome or by the session's end."""
        if join.run:
            self.spoken.add(join.run)
        if any(each.version.number > 0 for each in join.held):
            self.held_runs.add(join.run)
        layout_digest = self.layout.digest if self.layout else ""
        end = check(join, self.run_file, layout_digest, self.history.run)
        if end is None and self.reigning and (epoch := self._higher_epoch(join)):
            self.reigning = False
            again = refuse(pb.NOT_READY, "this reign begins anew", "try again", retry=True)
            return [self._begin_reign(epoch + 1), EndSession(session, again)]
        if end is None and not self.reigning:
            end = refuse(
                pb.NOT_READY, "this reign's record is not durable", "try again", retry=True
            )
        if end is None and (lost := self._lost(join)):
            self.failed = self.failed or lost
        if end is None and self.failed:
            end = refuse(pb.STORE_LOST, self.failed, "restore from a checkpoint, or start anew")
        if end is not None:
            return [EndSession(session, end)]
        self.sessions[session] = Session(number=session, join=join)
        if join.observer:
            return self._welcome(session, 0, now)
        live = self._live_instance(join.slot)
        answer = admit(
            join,
            self.history,
            shard=self.number,
            live_instance=live,
            pending=join.slot in self.pending,
        )
        if isinstance(answer, pb.End):
            del self.sessions[session]
            self.refused_zombies += answer.code == pb.SUPERSEDED
            return [EndSession(session, answer)]
        if answer.entry is not None:
            self.pending[join.slot] = session
            return [Append(answer.entry)]
        effects = self._end_other_sessions(join.slot, session, pb.REPLACED)
        return [*effects, *self._welcome(session, answer.incarnation, now)]

    def session_closed(self, session: int, now: float) -> list[Effect]:
        """Both streams are gone."""
        closed = self.sessions.pop(session, None)
        if closed is None:
            return []
        slot = self.slots.get(closed.slot)
        if slot is not None and slot.session == session:
            slot.session = None
            for each in self.rounds.values():
                if closed.slot not in each.complete:
                    each.called.pop(closed.slot, None)
        effects: list[Effect] = []
        if self.seeding == session and len(self.seeds) < self.sync.fragments:
            self.seeding = None  # it died half-way; a whole seed is being written already
            effects += self._ask_for_seed()
        return [*effects, *self._move(now)]

    def message(self, session: int, message: pb.ToShard, now: float) -> list[Effect]:
        """A control message of a session."""
        sender = self.sessions.get(session)
        if sender is None:
            return []
        match message.WhichOneof("kind"):
            case "report" if sender.welcomed and sender.slot:
                return self._report(sender, message.report, now)
            case "leave" if sender.slot in self.slots:
                self.slots[sender.slot].left = message.leave.reason or "left"
                return []
            case "model" if sender.welcomed:
                return self._model(sender, message.model)
            case "evaluation" if sender.join.observer:
                self.evaluation = message.evaluation
                return []
        kind = message.WhichOneof("kind")
        return self._end(session, pb.BAD_MESSAGE, f"message {kind} is out of place here")

    # ------------------------------------------------------------ inputs: transfers

    def transfer_started(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Credit and size are checked before anything is allocated (rules 10, 25)."""
        sender = self.sessions.get(session)
        if sender is None or self.layout is None:
            return self._end(session, pb.BAD_TRANSFER, "a transfer without a welcome")
        kind = transfer.WhichOneof("kind")
        fragment = transfer.offer.slice if kind == "offer" else transfer.seed.slice
        if fragment >= self.sync.fragments:
            return self._end(session, pb.BAD_TRANSFER, f"slice {fragment} is unknown")
        if kind == "offer":
            encoding = ENCODINGS[self.sync.wire_up]
            reason = self._offer_objection(sender, transfer)
        elif kind == "seed":
            encoding = pb.F32
            reason = "" if self.seeding == session else "nobody asked for a seed"
        else:
            encoding, reason = pb.F32, f"a {kind} is out of place here"
        if reason:
            return self._end(session, pb.BAD_TRANSFER, reason)
        if transfer.encoding != encoding:
            return self._end(session, pb.BAD_TRANSFER, "the encoding is not the run file's")
        sender.receiving = transfer
        sender.credits.pop(fragment, None)
        element_count = self.layout.slice(self.number, fragment).element_count
        return [Accept(session, element_count, encoding)]

    def transfer_verified(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        """Whole, checksum right, all values finite: only now it counts (rule 12)."""
        sender = self.sessions.get(session)
        if sender is None:
            return []
        sender.receiving = None
        if transfer.HasField("offer"):
            return self._offer(sender, transfer.offer, now)
        self.seeds.add(transfer.seed.slice)
        if self.seeding == session and len(self.seeds) == self.sync.fragments:
            return [StoreSeed(session)]
        return []

    def transfer_rejected(self, session: int, reason: str, now: float) -> list[Effect]:
        """Truncated, corrupt, not finite: that session ends and nothing else."""
        return self._end(session, pb.BAD_TRANSFER, reason)

    # ------------------------------------------------------------ inputs: values

    def seeded(self, digests: tuple[str, ...], objects: tuple[str, ...]) -> list[Effect]:
        """Version 0 is written; its entry makes it count."""
        assert self.layout is not None, "a seed needs the layout"
        tensors = tuple(
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "merge": t.merge}
            for t in self.layout.tensors
        )
        entry = log.Seeded(
            tensors=tensors,
            layout_digest=self.layout.digest,
            epoch=self.epoch,
            digests=digests,
            objects=objects,
        )
        return [Append(entry)]

    def merged(self, fragment: int, digest: str, name: str, now: float) -> list[Effect]:
        """A round's objects are written; its entry makes it count."""
        each = self.rounds[fragment]
        tick = max(self.clock.tick, each.due) if self.sync.lockstep else self.clock.tick
        entry = log.Committed(
            slice=fragment,
            number=each.base + 1,
            epoch=self.epoch,
            digest=digest,
            object=name,
            base=each.base,
            tick=tick,
            due=each.due,
            reason=each.reason,
            last=each.last,
            recovered=False,
            participants=each.participants,
        )
        return [Append(entry)]

    def part_written(self, file: str, digest: str) -> list[Effect]:
        """This shard's part of the export is there."""
        if self.registrar:
            if self.number in self.history.finals:
                return self._index_when_whole()
            return [Append(log.ShardFinal(shard=self.number, file=file, digest=digest))]
        request = pb.ReportFinalRequest(
            shard=self.number,
            run=self.history.run,
            epoch=self.history.epoch,
            versions=self._heads(),
            file=file,
            file_digest=digest,
        )
        return [Ask(request)]

    def exported(self) -> list[Effect]:
        """The index is written: the job is Complete."""
        return [Append(log.Closed(result="Complete", reason="all slices are final"))]

    # ------------------------------------------------------------ inputs: registrar

    def answered(self, reply: Any, now: float) -> list[Effect]:
        """The registrar's answer to an Ask."""
        match reply:
            case pb.HelloReply():
                return self._on_hello(reply)
            case pb.MarkBegunReply():
                self.serving = True
                return self._move(now)
            case _:
                return []

    def registrar_request(self, token: int, request: Any, now: float) -> list[Effect]:
        """A call of another shard or of the operator; Reply follows once it is durable."""
        match request:
            case pb.HelloRequest():
                if request.run:
                    self.spoken.add(request.run)
                reply = pb.HelloReply(
                    run=self.history.run,
                    begun=request.shard in self.history.begun,
                    alive=[name for name, slot in self.slots.items() if slot.session is not None],
                    complete=self.complete,
                )
                return [Reply(token, reply)]
            case pb.MarkBegunRequest():
                known = request.shard in self.history.begun
                entry = log.Begun(shard=request.shard)
                return [*([] if known else [Append(entry)]), Reply(token, pb.MarkBegunReply())]
            case pb.ReportFinalRequest():
                final = log.ShardFinal(
                    shard=request.shard, file=request.file, digest=request.file_digest
                )
                known = request.shard in self.history.finals
                done = pb.ReportFinalReply(complete=self.complete)
                return [*([] if known else [Append(final)]), Reply(token, done)]
            case pb.SetOwnerRequest():
                return self._set_owner(token, request)
        raise AssertionError(f"{request} is no registrar call")

    # ------------------------------------------------------------ what the driver reads

    @property
    def registrar(self) -> bool:
        """Whether this shard has the second job."""
        return self.number == REGISTRAR_SHARD

    def publish(self, session: int, fragment: int) -> pb.Publish | None:
        """The head as this session gets it, asked for when it is actually sent."""
        receiver, head = self.sessions.get(session), self.history.heads.get(fragment)
        if receiver is None or head is None:
            return None
        publish = pb.Publish(
            version=self._slice_version(fragment), tick=self.clock.tick, last=head.last
        )
        merged = self.history.merged.get((fragment, receiver.slot))
        if merged is not None:
            incarnation, base, capture = merged
            publish.merged.CopyFrom(pb.Merged(incarnation=incarnation, base=base, capture=capture))
        return publish

    def held_by(self, session: int, fragment: int) -> int | None:
        """The version number that a session's learner holds, bit for bit."""
        receiver = self.sessions.get(session)
        return None if receiver is None else receiver.held.get(fragment)

    def training(self, now: float) -> frozenset[str]:
        """The slots that count for quorum and grace."""
        slots = self.slots.values()
        return frozenset(slot.name for slot in slots if slot.state(now) is State.TRAINING)

    def is_too_slow(self, slot: Slot) -> bool:
        """Rule 14: called when usable, waited for by nobody."""
        return too_slow(
            self.sync,
            step=slot.report.step_seconds,
            publish=slot.report.publish_seconds,
            tick_seconds=1 / rate if (rate := self.ticks_per_second) else 0.0,
        )

    @property
    def ticks_per_second(self) -> float:
        """The present rate of the clock; 0 while unknown."""
        if len(self.tick_times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.tick_times[0], self.tick_times[-1]
        return (high - low) / (last - first) if last > first else 0.0

    @property
    def tokens(self) -> int:
        """Tokens trained by all slots, over their incarnations, as reported here."""
        return sum(slot.tokens_before + slot.report.tokens for slot in self.slots.values())

    @property
    def over(self) -> bool:
        """t >= T."""
        if self.run_file.steps is not None:
            return self.clock.tick >= self.run_file.steps
        return self.run_file.tokens is not None and self.tokens >= self.run_file.tokens

    # ------------------------------------------------------------ joining

    def _lost(self, join: pb.Join) -> str:
        """Rule 22: a learner holds what this shard has committed and does not have any more."""
        for each in join.held:
            head = self.history.heads.get(each.slice)
            number = head.number if head is not None else 0
            if each.version.run == self.history.run and each.version.number > number:
                return f"slice {each.slice} has lost version {each.version.number}"
        return ""

    def _higher_epoch(self, join: pb.Join) -> int:
        """Rule 20: an epoch above this one that the learner has seen; 0 when there is none.

        Either this process is deposed, and appending tells it so, or its store was lost.
        """
        seen = join.epochs_seen[self.number] if len(join.epochs_seen) > self.number else 0
        return seen if join.run == self.history.run and seen > self.history.epoch else 0

    def _live_instance(self, slot: str) -> str:
        known = self.slots.get(slot)
        if known is None or known.session is None:
            return ""
        return self.sessions[known.session].join.instance

    def _taken(self, entry: log.Taken, now: float) -> list[Effect]:
        session = self.pending.pop(entry.slot, None)
        effects = self._end_other_sessions(entry.slot, session, pb.SUPERSEDED)
        for each in self.rounds.values():
            offer = each.complete.get(entry.slot)
            if offer is not None and each.closed_at is None:  # rule 5
                del each.complete[entry.slot]
                if len(each.complete) < self._quorum(now):
                    each.quorum_at = None
                effects.append(self._drop(each.slice, offer))
        effects.append(
            Tape(
                {
                    "event": "taken",
                    "slot": entry.slot,
                    "incarnation": entry.incarnation,
                    "instance": entry.instance,
                }
            )
        )
        if session in self.sessions:
            effects += self._welcome(session, entry.incarnation, now)
        return effects

    def _end_other_sessions(self, slot: str, keep: int | None, code: pb.Code) -> list[Effect]:
        effects: list[Effect] = []
        for number in [n for n, s in self.sessions.items() if s.slot == slot and n != keep]:
            if not self.sessions[number].welcomed:
                continue
            effects += self._end(number, code, f"{slot} has a newer session")
        return effects

    def _welcome(self, session: int, incarnation: int, now: float) -> list[Effect]:
        """Rule 5: the incarnation is durable."""
        joined = self.sessions[session]
        joined.welcomed = True
        join = joined.join
        if joined.slot:
            slot = self.slots.setdefault(joined.slot, Slot(name=joined.slot))
            slot.open(session, now)
        if self.history.heads:
            self.clock.raise_to(join.tick_seen)
        heads = self._heads()
        for each in join.held:
            head = self.history.heads.get(each.slice)
            if head is None or each.version.run != self.history.run:
                continue
            if each.version.digest == head.digest:
                joined.held[each.slice] = head.number
        welcome = pb.Welcome(
            run=self.history.run,
            incarnation=incarnation,
            epoch=self.history.epoch,
            session=session,
            tick=self.clock.tick,
            cursor=self.history.cursors.get(joined.slot, 0),
            needs_model=self.layout is None,
            heads=heads,
        )
        effects: list[Effect] = [Send(session, pb.ToLearner(welcome=welcome))]
        effects += [
            PublishHead(session, fragment)
            for fragment, head in sorted(self.history.heads.items())
            if joined.held.get(fragment) != head.number
        ]
        if self.history.ended:
            effects.append(Send(session, self._final()))
        return [*effects, *self._ask_for_seed()]

    def _model(self, sender: Session, model: pb.Model) -> list[Effect]:
        if self.layout is None:
            try:
                self.layout = from_model(model, self.sync.fragments, self.run_file.shards)
            except SpecError as error:
                return self._end(sender.number, pb.OTHER_LAYOUT, str(error))
            return [SetModel(model), *self._ask_for_seed()]
        if model.layout_digest != self.layout.digest:
            return self._end(sender.number, pb.OTHER_LAYOUT, "another model than this run's")
        return []

    # ------------------------------------------------------------ seeding

    def _ask_for_seed(self) -> list[Effect]:
        """Rule 1: from any admitted learner; if it dies half-way, from the next."""
        if self.history.heads or self.layout is None or self.seeding is not None or self.failed:
            return []
        for number, session in sorted(self.sessions.items()):
            if session.welcomed and session.slot:
                self.seeding = number
                self.seeds = set()
                return [Send(number, pb.ToLearner(send_seed=pb.SendSeed()))]
        return []

    def _on_seeded(self) -> list[Effect]:
        self.seeding = None
        self.starts = dict(self.history.due)
        effects: list[Effect] = [Tape({"event": "seeded", "epoch": self.history.epoch})]
        effects += [
            PublishHead(number, fragment)
            for number, session in sorted(self.sessions.items())
            if session.welcomed
            for fragment in sorted(self.history.heads)
        ]
        return [*effects, *self._begin()]

    def _begin(self) -> list[Effect]:
        """Marked begun at the registrar before the first commit above version 0 (rule 1)."""
        if self.registrar:
            if self.number in self.history.begun:
                self.serving = True
                return []
            return [Append(log.Begun(shard=self.number))]
        request = pb.MarkBegunRequest(
            shard=self.number, run=self.history.run, epoch=self.history.epoch
        )
        return [Ask(request)]

    def _hello(self) -> pb.HelloRequest:
        return pb.HelloRequest(
            shard=self.number,
            run_hash=self.run_file.hash,
            epoch=self.history.epoch,
            run=self.history.run or min(self.spoken, default=""),
            empty=not self.history.heads,
            tick=self.clock.tick,
        )

    def _on_hello(self, reply: pb.HelloReply) -> list[Effect]:
        self.complete = self.complete or reply.complete
        if not reply.run:
            return []
        if self.history.run and self.history.run != reply.run:
            reason = f"this store holds run {self.history.run}, the registrar has {reply.run}"
            return [Exit(ExitCode.OTHER_JOB, reason)]
        if reply.begun and not self.history.heads and not self.failed:
            self.failed = "the store of a shard that had begun is empty"
        return [] if self.history.run else [Append(log.RunStarted(run=reply.run))]

    def _set_owner(self, token: int, request: pb.SetOwnerRequest) -> list[Effect]:
        owned = self.history.owned.get(request.slot)
        word = owned.word if owned else 0
        if request.word != word:
            return [Reply(token, pb.SetOwnerReply(word=word))]
        entry = log.Owned(slot=request.slot, uid=request.uid, word=word + 1)
        effects: list[Effect] = [Append(entry)]
        slot = self.slots.get(request.slot)
        session = None if slot is None else slot.session
        if session is not None and self.sessions[session].join.uid != request.uid:
            effects += self._end(session, pb.SUPERSEDED, "the operator named another pod")
        return [*effects, Reply(token, pb.SetOwnerReply(word=word + 1))]

    # ------------------------------------------------------------ reports and the clock

    def _report(self, sender: Session, report: pb.Report, now: float) -> list[Effect]:
        slot = self.slots[sender.slot]
        if slot.session != sender.number:
            return []
        slot.take(report, now)
        for each in report.slices:
            sender.held[each.slice] = each.held
        if slot.name in self.clock.positions and report.t_m > slot.t_m_counted:
            self.clock.advance(slot.name, report.t_m - slot.t_m_counted)
        slot.t_m_counted = max(slot.t_m_counted, report.t_m)
        return self._move(now)

    def _quorum(self, now: float) -> int:
        return self.sync.awaited(len(self.training(now)))

    def _move(self, now: float) -> list[Effect]:
        """Everything that may have become possible."""
        if not self.serving or self.history.ended:
            return []
        self.clock.set_training(self.training(now))
        effects: list[Effect] = []
        if self.clock.update(self._quorum(now)):
            self.tick_times.append((now, self.clock.tick))
            effects += self._tell_tick()
        if self.over and self.ending_at is None:
            effects += self._end_of_training(now)
        if not self.sync.lockstep and self.ending_at is None:
            for fragment, due in ticks.starts(self.sync, self.clock.tick, self.starts):
                effects += self._due(fragment, due, now)
        for fragment in sorted(self.rounds):
            effects += self._look(fragment, now)
        return effects

    def _tell_tick(self) -> list[Effect]:
        message = pb.ToLearner(tick=pb.Tick(tick=self.clock.tick))
        return [Send(number, message) for number, s in sorted(self.sessions.items()) if s.welcomed]

    # ------------------------------------------------------------ rounds

    def _due(self, fragment: int, due: int, now: float) -> list[Effect]:
        self.starts[fragment] = due
        open_round = self.rounds.get(fragment)
        if open_round is not None:
            if open_round.closed_at is None:
                open_round.due = due  # one round, for the newest due tick
            return []
        return self._open(fragment, due, now)

    def _open(self, fragment: int, due: int, now: float, *, last: bool = False) -> list[Effect]:
        base = self.history.heads[fragment].number
        self.rounds[fragment] = Round(slice=fragment, due=due, base=base, opened_at=now, last=last)
        return [] if self.sync.lockstep else self._call(self.rounds[fragment], now)

    def _usable(self, slot: Slot, each: Round, now: float) -> bool:
        """Rule 10: Training, holds the current base, at least one step since; rule 14."""
        progress = slot.steps_since(each.slice)
        return (
            slot.state(now) is State.TRAINING
            and progress is not None
            and progress.held == each.base
            and progress.since.steps >= 1
            and slot.report.tick_seen <= self.clock.tick + 4 * self.sync.period
        )

    def _call(self, each: Round, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for name in sorted(self.slots):
            slot = self.slots[name]
            if name in each.called or slot.session is None or not self._usable(slot, each, now):
                continue
            session = self.sessions[slot.session]
            receiving = session.receiving
            if receiving is not None and receiving.offer.slice == each.slice:
                continue
            each.called[name] = now
            session.credits[each.slice] = each.base
            call = pb.Call(slice=each.slice, base=each.base, due=each.due)
            effects.append(Send(session.number, pb.ToLearner(call=call)))
        return effects

    def _awaited(self, each: Round, now: float) -> frozenset[str]:
        training = self.training(now)
        if self.sync.lockstep:
            return frozenset(
                name
                for name in training
                if name in each.complete or _may_hand_over(self.slots[name], each)
            )
        return frozenset(
            name
            for name in each.called
            if name in training and (each.last or not self.is_too_slow(self.slots[name]))
        )

    def _look(self, fragment: int, now: float) -> list[Effect]:
        """Call who has become usable, and close when it is time."""
        each = self.rounds[fragment]
        if each.closed_at is not None or not self.serving:
            return []
        awaited = self._awaited(each, now)
        quorum = self._quorum(now)
        if self.sync.lockstep:
            quorum = max(1, len(awaited | each.complete.keys()))  # rule 15: all hand over
        effects: list[Effect] = []
        if not self.sync.lockstep and len(each.complete) < quorum and not each.last:
            effects += self._call(each, now)
        if each.quorum_at is None and len(each.complete) >= quorum:
            each.quorum_at, each.grace_seconds = now, self._grace()  # K fell: a learner was lost
        decision = decide(each, awaited=self._awaited(each, now), quorum=quorum, now=now)
        if not decision.close:
            return effects
        if not each.complete:
            assert each.last, "only a last round may close with nothing"
            del self.rounds[fragment]
            self.done.add(fragment)
            return [*effects, *self._ended_when_done()]
        each.closed_at, each.reason = now, decision.reason
        waited = (each.quorum_at or now) - each.opened_at
        self.timings = Timings(
            quorum=self.timings.quorum.add(waited),
            sync=self.timings.sync,
            transfer=self.timings.transfer,
        )
        return [*effects, Merge(fragment, each.participants)]

    def _offer_objection(self, sender: Session, transfer: pb.Transfer) -> str:
        offer = transfer.offer
        if offer.capture < 1 or offer.counters.steps != offer.capture:
            return f"slice {offer.slice}: an offer of {offer.capture} steps"
        if self.sync.lockstep:
            head = self.history.heads.get(offer.slice)
            ahead = head is None or offer.base > head.number
            return f"slice {offer.slice}: base {offer.base} is not there" if ahead else ""
        if sender.credits.get(offer.slice) != offer.base:
            return f"slice {offer.slice}: an offer on base {offer.base} that nobody called for"
        return ""

    def _offer(self, sender: Session, offer: pb.Offer, now: float) -> list[Effect]:
        incarnation = self.history.taken[sender.slot].incarnation
        part = Participant(
            slot=sender.slot,
            incarnation=incarnation,
            capture=offer.capture,
            base=offer.base,
            steps=offer.counters.steps,
            tokens=offer.counters.tokens,
            cursor=offer.cursor,
            weight=weight(offer.counters.steps, offer.counters.tokens),
        )
        head = self.history.heads[offer.slice]
        if self.sync.lockstep and offer.slice not in self.rounds and offer.base == head.number:
            self._open(offer.slice, offer.t_m, now)
        each = self.rounds.get(offer.slice)
        if each is not None and sender.slot in each.called:
            took = now - each.called[sender.slot]
            self.timings = Timings(
                quorum=self.timings.quorum,
                sync=self.timings.sync,
                transfer=self.timings.transfer.add(took),
            )
        if each is None or each.closed_at is not None or each.base != offer.base:
            self.late += 1
            record = {"event": "late", "slot": part.slot, "slice": offer.slice, "base": part.base}
            return [Tape({**record, "capture": part.capture, "tokens": part.tokens})]
        effects: list[Effect] = []
        if sender.slot in each.complete:  # rule 13: the newest complete capture
            effects.append(self._drop(offer.slice, each.complete[sender.slot]))
        if self.sync.lockstep:
            each.due = min(each.due, offer.t_m)
        each.add(part, self._quorum(now), self._grace(), now)
        effects.append(Stage(part.slot, part.incarnation, offer.slice, part.capture))
        return [*effects, *self._look(offer.slice, now)]

    def _grace(self) -> float:
        step = step_seconds(slot.report.step_seconds for slot in self.slots.values())
        return grace_seconds(self.sync, self.timings, step)

    def _drop(self, fragment: int, offer: Participant) -> Drop:
        return Drop(offer.slot, offer.incarnation, fragment, offer.capture)

    def _on_committed(self, entry: log.Committed, now: float) -> list[Effect]:
        each = self.rounds.pop(entry.slice)
        self.clock.raise_to(entry.tick)
        self.starts[entry.slice] = max(self.starts[entry.slice], entry.due)
        if entry.last:
            self.done.add(entry.slice)
        closed_at = each.closed_at or now
        self.timings = Timings(
            quorum=self.timings.quorum,
            sync=self.timings.sync.add(now - closed_at),
            transfer=self.timings.transfer,
        )
        effects: list[Effect] = [
            PublishHead(number, entry.slice)
            for number, session in sorted(self.sessions.items())
            if session.welcomed
        ]
        effects.append(Tape(self._commit_record(entry, each, now)))
        if self.ending_at is not None and not entry.last:
            effects += self._last_round(entry.slice, now)
        return [*effects, *self._ended_when_done(), *self._move(now)]

    def _commit_record(self, entry: log.Committed, each: Round, now: float) -> dict[str, Any]:
        """One line of the event tape (rule 29)."""
        quorum_at = each.quorum_at or each.closed_at or now
        present = {part.slot for part in entry.participants}
        participants = [
            {name: getattr(part, name) for name in Participant.__slots__}
            for part in entry.participants
        ]
        left_out = [
            {"slot": name, "reason": self._why_left_out(name, each, now)}
            for name in sorted(self.slots)
            if name not in present
        ]
        return {
            "event": "commit",
            "shard": self.number,
            "epoch": entry.epoch,
            "tick": entry.tick,
            "due": entry.due,
            "slice": entry.slice,
            "version": entry.number,
            "base": entry.base,
            "digest": entry.digest,
            "reason": entry.reason,
            "quorum_wait_seconds": quorum_at - each.opened_at,
            "grace_seconds": (each.closed_at or now) - quorum_at,
            "commit_seconds": now - (each.closed_at or now),
            "participants": participants,
            "left_out": left_out,
            "last": entry.last,
        }

    def _why_left_out(self, name: str, each: Round, now: float) -> str:
        state = self.slots[name].state(now)
        if state is not State.TRAINING:
            return str(state)
        return "late" if name in each.called else "not usable"

    # ------------------------------------------------------------ the end

    def _end_of_training(self, now: float) -> list[Effect]:
        """Rule 27: at t >= T every slice gets one last round."""
        self.ending_at = now
        effects: list[Effect] = []
        for fragment in sorted(self.history.heads):
            effects += self._last_round(fragment, now)
        return [*effects, *self._ended_when_done()]

    def _last_round(self, fragment: int, now: float) -> list[Effect]:
        head = self.history.heads[fragment]
        steps = self.run_file.steps
        reached = steps is not None and self.history.due.get(fragment, 0) >= steps
        if head.last or (self.sync.lockstep and reached):
            self.done.add(fragment)
            return []
        effects: list[Effect] = []
        each = self.rounds.get(fragment)
        if each is not None and each.closed_at is not None:
            return []  # its commit comes back here
        if each is None:
            effects += self._open(fragment, self.clock.tick, now, last=True)
            each = self.rounds[fragment]
        each.last = True
        each.deadline = now + self._last_round_seconds()
        if not self.sync.lockstep:
            effects += self._call(each, now)
        return [*effects, *self._look(fragment, now)]

    def _last_round_seconds(self) -> float:
        bound = self.timings.transfer.or_else(0.0)
        return LAST_ROUND_SECONDS + bound * self.sync.fragments

    def _ended_when_done(self) -> list[Effect]:
        if self.ending_at is None or len(self.done) < self.sync.fragments or self.history.ended:
            return []
        self.ending_at = float("inf")  # once
        self.done = set()
        return [Append(log.Ended(tick=self.clock.tick))]

    def _final(self) -> pb.ToLearner:
        return pb.ToLearner(final=pb.Final(versions=self._heads()))

    def _say_final(self) -> list[Effect]:
        effects: list[Effect] = [Tape({"event": "final", "tick": self.clock.tick})]
        return effects + [
            Send(number, self._final()) for number, s in sorted(self.sessions.items()) if s.welcomed
        ]

    def _index_when_whole(self) -> list[Effect]:
        finals = self.history.finals
        if self.index_asked or self.complete or len(finals) < self.run_file.shards:
            return []
        self.index_asked = True
        parts = tuple((n, finals[n].file, finals[n].digest) for n in sorted(finals))
        return [WriteIndex(parts)]

    # ------------------------------------------------------------ helpers

    def _slice_version(self, fragment: int) -> pb.SliceVersion:
        head = self.history.heads[fragment]
        version = pb.Version(
            run=self.history.run, number=head.number, epoch=head.epoch, digest=head.digest
        )
        return pb.SliceVersion(slice=fragment, version=version)

    def _heads(self) -> list[pb.SliceVersion]:
        return [self._slice_version(fragment) for fragment in sorted(self.history.heads)]

    def _end(self, session: int, code: pb.Code, reason: str) -> list[Effect]:
        retry = code in (pb.BAD_MESSAGE, pb.BAD_TRANSFER, pb.REPLACED)
        remedies = {
            pb.SUPERSEDED: "end this process; another one has its place",
            pb.OTHER_LAYOUT: "give every learner the same model",
        }
        end = refuse(code, reason, remedies.get(code, "join anew"), retry=retry)
        return [EndSession(session, end)]


def _may_hand_over(slot: Slot, each: Round) -> bool:
    """In lock-step: whether this learner's position has not passed the round's due tick.

    Nobody waits for one that has passed it: it may itself wait, for another slice (rule 15).
    """
    position, progress = slot.report.t_m, slot.steps_since(each.slice)
    if position == each.due:
        return progress is not None and progress.since.steps >= 1
    return position < each.due
